"""What every suite is wrapped in: statistics of episodes, then normalised rewards."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from utils.running_statistics import RunningMeanVariance

EPSILON = 1e-8
REWARD_LIMIT = 1.0

AllRows = Callable[[torch.Tensor], torch.Tensor]
Transitions = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class EpisodeStatistics(RecordEpisodeStatistics):
    """Raw return and length of every episode that ends, as Gymnasium records them.

    Where an episode ended, info["episode"] holds "r" [N] and "l" [N], valid where the mask
    info["_episode"] [N] is true.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the running episodes, or nothing of them where the suite cannot save them."""
        save = getattr(self.env, "state_dict", None)
        worlds = None if save is None else save()
        if worlds is None:
            return {"resumable": False}
        return {
            "resumable": True,
            "worlds": worlds,
            "returns": torch.from_numpy(self.episode_returns.copy()),
            "lengths": torch.from_numpy(self.episode_lengths.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Continue the saved episodes; return False where that cannot be: begin new ones then."""
        load = getattr(self.env, "load_state_dict", None)
        if load is None or not state["resumable"]:
            return False
        load(state["worlds"])
        self.episode_returns[:] = state["returns"].numpy()
        self.episode_lengths[:] = state["lengths"].numpy()
        return True

    def share_statistics(self, rows: AllRows) -> None:
        """Do nothing: those of an episode are its own."""


class RewardNormalization(VectorWrapper):
    """Rewards divided by the running standard deviation of the discounted return, then clipped.

        R_t = gamma * R_{t-1} + r_t,    r'_t = clip(r_t / sqrt(Var[R] + 1e-8), -1, 1)

    R starts from 0 in every episode. The statistics take in R_t of all environments before r_t is
    divided (Engstrom et al. 2020, arXiv:2005.12729).

    Args:
        env: Vector environment in SAME_STEP autoreset mode, its episodes recorded.
        gamma: Discount per step, the run's; the original takes 0.99 here whatever the run's is.
    """

    env: EpisodeStatistics

    def __init__(self, env: EpisodeStatistics, gamma: float) -> None:
        super().__init__(env)
        self.gamma = gamma
        self.statistics = RunningMeanVariance()
        self._returns = np.zeros(self.num_envs)
        self._all_rows: AllRows = lambda own: own

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
        self.statistics.update(self._all_rows(torch.from_numpy(self._returns)))
        self._returns[terminated | truncated] = 0.0
        deviation = np.sqrt(self.statistics.variance + EPSILON)
        rewards = np.clip(rewards / deviation, -REWARD_LIMIT, REWARD_LIMIT)
        return observations, rewards, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics, the running discounted returns and the episodes themselves."""
        episodes = self.env.state_dict()
        return {
            "resumable": episodes["resumable"],
            "statistics": self.statistics.state_dict(),
            "discounted": torch.from_numpy(self._returns.copy()),
            "episodes": episodes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Continue from saved statistics; return whether the saved episodes go on, too."""
        self.statistics.load_state_dict(state["statistics"])
        goes_on = self.env.load_state_dict(state["episodes"])
        if goes_on:
            self._returns[:] = state["discounted"].numpy()
        return goes_on

    def share_statistics(self, rows: AllRows) -> None:
        """Let the statistics take in the returns of all ranks, [n] -> [N]."""
        self._all_rows = rows
