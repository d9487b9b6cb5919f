"""Crafter as it comes: the yardstick of `benchmarks.crafter`."""

import contextlib
import io
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from envs.episodes import SingleEnvs


class PlainCrafter(gymnasium.Env):
    """The package's game by Gymnasium's interface, its images channel first."""

    observation_space = Box(0, 255, (3, 64, 64), np.uint8)

    def __init__(self) -> None:
        with contextlib.redirect_stderr(io.StringIO()):  # of the old gym, where that is installed
            import crafter
        self._game = crafter.Env()
        self.action_space = Discrete(len(self._game.action_names))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin the next of its worlds, with a seed the first one of `crafter.Env(seed=seed)`."""
        super().reset(seed=seed)
        if seed is not None:
            self._game._seed, self._game._episode = seed, 0
        return self._game.reset().transpose(2, 0, 1), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        image, reward, done, _ = self._game.step(action)
        return image.transpose(2, 0, 1), reward, done, False, {}


def vector_env(n_envs: int, seed: int) -> SingleEnvs:
    """Return games one after the other, with the worlds of a run of a seed."""
    return SingleEnvs(PlainCrafter, n_envs, seed)
