"""Colour-v0: the first image is red or blue; ten grey ones later say which it was."""

import numpy as np

from envs.vector import NumpyVectorEnv
from utils.environments import Suite
from utils.settings import Config

N_STEPS = 10


class Colour(Suite):
    action_names = ("red", "blue")

    def make(self, config: Config, seed: int) -> "ColourVectorEnv":
        return ColourVectorEnv(config.n_envs, seed)


class ColourVectorEnv(NumpyVectorEnv):
    """The last action is rewarded with 1 if it names the colour of the first image."""

    def __init__(self, n_envs: int, seed: int) -> None:
        super().__init__(n_envs, seed, image_shape=(3, 9, 9), n_actions=2)
        self._colours = np.zeros(n_envs, dtype=np.int64)
        self._steps = np.zeros(n_envs, dtype=np.int64)

    def begin(self, row: int, generator: np.random.Generator) -> None:
        self._colours[row], self._steps[row] = generator.integers(2), 0

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._steps += 1
        ended = self._steps == N_STEPS
        return ended * (actions == self._colours) * 1.0, ended, np.zeros_like(ended)

    def observe(self, rows: np.ndarray) -> np.ndarray:
        images = np.full((len(rows), 3, 9, 9), 128, dtype=np.uint8)
        for image, row in zip(images, rows, strict=True):
            if self._steps[row] == 0:
                image[:] = 0
                image[2 * self._colours[row]] = 255
        return images
