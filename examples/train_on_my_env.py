"""Train on your own environment object: a colour is shown once and asked for later.

python examples/train_on_my_env.py
"""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import helm


class RecallColour(gymnasium.Env):
    """The first image is red or blue, the next ones are grey; the last action must name it."""

    observation_space = Box(0, 255, (3, 9, 9), np.uint8)
    action_space = Discrete(2)
    length = 5

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.colour, self.steps = int(self.np_random.integers(2)), 0
        image = np.zeros((3, 9, 9), np.uint8)
        image[2 * self.colour] = 255
        return image, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        # The colour's number in the last step is rewarded with 1.
        self.steps += 1
        is_last = self.steps == self.length
        reward = float(is_last and action == self.colour)
        return np.full((3, 9, 9), 128, np.uint8), reward, is_last, False, {}


def main(n_steps: int = 30_000) -> Path:
    settings = {"model": "LSTM", "n_steps": n_steps, "memory_width": 32, "learning_rate": 1e-3}
    return helm.train(settings | {"ent_coef": 0.01}, env=RecallColour)


if __name__ == "__main__":  # environments in processes (env_processes) import this file, too
    print(main())
