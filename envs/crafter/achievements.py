"""Which of Crafter's achievements episodes unlock: shares over the last hundred, and over a run."""

import math
from typing import Any

import numpy as np
import torch

from envs.crafter.world import ACHIEVEMENTS

EPISODES_AVERAGED = 100


class AchievementStatistics:
    """Takes in what every ended episode has unlocked.

    Attributes:
        episodes: Of the last hundred, which achievements each has unlocked.  [E, 22] bool
        ever: Which have been unlocked since the run began.  [22] bool
    """

    def __init__(self) -> None:
        self.episodes = np.zeros((0, len(ACHIEVEMENTS)), bool)
        self.ever = np.zeros(len(ACHIEVEMENTS), bool)

    def note(self, news: np.ndarray) -> None:
        """Take in what a step has unlocked.  [N, 22] bool"""
        self.ever |= news.any(0)

    def note_episodes(self, unlocked: np.ndarray) -> None:
        """Take in what episodes that have just ended had unlocked.  [E, 22] bool"""
        self.episodes = np.concatenate([self.episodes, unlocked])[-EPISODES_AVERAGED:]

    def metrics(self) -> dict[str, float]:
        """Return what to log, NaN for what only ended episodes can tell."""
        shares = np.full(len(ACHIEVEMENTS), math.nan)
        if len(self.episodes):
            shares = self.episodes.mean(0)
        figures = {
            "rollout/achievements_mean": float(shares.sum()),
            "rollout/achievements_total": float(self.ever.sum()),
        }
        names = (f"achievements/{name}" for name in ACHIEVEMENTS)
        return figures | dict(zip(names, shares.tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {
            "episodes": torch.from_numpy(self.episodes.copy()),
            "ever": torch.from_numpy(self.ever.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        episodes, ever = state["episodes"].numpy(), state["ever"].numpy()
        if episodes.shape[1:] != self.ever.shape or ever.shape != self.ever.shape:
            raise ValueError(f"achievements {episodes.shape}, {ever.shape}: not those of Crafter")
        self.episodes, self.ever = episodes.copy(), ever.copy()
