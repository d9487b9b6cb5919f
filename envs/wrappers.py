"""What every suite is wrapped in: statistics of episodes, then normalised rewards."""

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from utils.running_statistics import RunningMeanVariance

EPSILON = 1e-8
REWARD_LIMIT = 1.0

Transitions = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class EpisodeStatistics(RecordEpisodeStatistics):
    """Raw return and length of every episode that ends, as Gymnasium records them.

    Where an episode ended, info["episode"] holds "r" [N] and "l" [N], valid where the mask
    info["_episode"] [N] is true. Has no state worth saving: restored environments begin anew.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, which is empty."""


class RewardNormalization(VectorWrapper):
    """Rewards divided by the running standard deviation of the discounted return, then clipped.

        R_t = gamma * R_{t-1} + r_t,    r'_t = clip(r_t / sqrt(Var[R] + 1e-8), -1, 1)

    R starts from 0 in every episode. The statistics take in R_t of all environments before r_t is
    divided (Engstrom et al. 2020, arXiv:2005.12729).

    Args:
        env: Vector environment in SAME_STEP autoreset mode.
        gamma: Discount per step.
    """

    def __init__(self, env: VectorEnv, gamma: float) -> None:
        super().__init__(env)
        self.gamma = gamma
        self.statistics = RunningMeanVariance()
        self._returns = np.zeros(self.num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a new episode everywhere; the statistics stay."""
        self._returns[:] = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: np.ndarray) -> Transitions:
        """Take one step everywhere; rewards [N] come back normalised."""
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        self._returns = self._returns * self.gamma + rewards
        self.statistics.update(self._returns)
        self._returns[terminated | truncated] = 0.0
        deviation = np.sqrt(self.statistics.variance + EPSILON)
        rewards = np.clip(rewards / deviation, -REWARD_LIMIT, REWARD_LIMIT)
        return observations, rewards, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics as plain numbers."""
        return {"returns": self.statistics.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved statistics."""
        self.statistics.load_state_dict(state["returns"])
