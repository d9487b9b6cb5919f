"""Learning to learn: arms that pay otherwise in every episode, so that an agent has to try them.

The observation is always the same: without its last action and reward an agent pulls blindly.
docs/reference/memories.md has the command that trains an agent.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Bandit(gymnasium.Env):
    """Arm k pays 1 with a probability drawn from U(0, 1) for the episode (arXiv:1611.02779)."""

    observation_space = Box(0, 1, (1,), np.float32)

    def __init__(self, arms: int = 2, pulls: int = 50) -> None:
        self.action_space, self.arms, self.pulls = Discrete(arms), arms, pulls

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.chances, self.n_pulled = self.np_random.random(self.arms), 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.n_pulled += 1
        reward = float(self.np_random.random() < self.chances[action])
        return np.zeros(1, np.float32), reward, self.n_pulled == self.pulls, False, {}


gymnasium.register("Bandit-v0", f"{__name__}:Bandit")
