"""What every suite is wrapped in: statistics of episodes."""

from typing import Any

import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics


class EpisodeStatistics(RecordEpisodeStatistics):
    """Raw return and length of every episode that ends, as Gymnasium records them.

    Where an episode ended, info["episode"] holds "r" [N] and "l" [N], and where the environment
    says so "success" [N], valid where the mask info["_episode"] [N] is true.
    """

    @property
    def has_success(self) -> bool:
        """Whether episodes succeed or fail."""
        return getattr(self.unwrapped, "has_success", False)

    def step(
        self, actions: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step everywhere and add the statistics of episodes that ended."""
        observations, rewards, terminated, truncated, info = super().step(actions)
        if "success" in info:
            info["episode"]["success"] = info["success"]
        return observations, rewards, terminated, truncated, info

    def metrics(self) -> dict[str, float]:
        """Return what the environments themselves have to log; always the same names."""
        own = getattr(self.env, "metrics", None)
        return {} if own is None else own()

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of what the environments read their pictures with, if they do."""
        return getattr(self.env, "fingerprints", dict)()

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
