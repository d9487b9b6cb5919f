"""What every suite is wrapped in: statistics of episodes, and one line for what it raises."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from utils.errors import RunError, UserError, told


class EpisodeStatistics(RecordEpisodeStatistics):
    """Raw return and length of every episode that ends, as Gymnasium records them.

    Where an episode ended, info["episode"] holds "r" [N] and "l" [N], and where the environment
    says so "success" [N], valid where the mask info["_episode"] [N] is true.

    Args:
        env: The environments.
        name: What the settings call them.
    """

    def __init__(self, env: VectorEnv, name: str) -> None:
        super().__init__(env)
        self.name, self._n_steps = name, 0

    @property
    def has_success(self) -> bool:
        """Whether episodes succeed or fail."""
        return getattr(self.unwrapped, "has_success", False)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode everywhere."""
        return self._told(super().reset, seed=seed, options=options)

    def step(
        self, actions: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step everywhere and add the statistics of episodes that ended."""
        self._n_steps += 1
        observations, rewards, terminated, truncated, info = self._told(super().step, actions)
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

    def _told(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Let the environments work.

        Raises:
            RunError: one of them raised something, or wanted to end the program.
        """
        try:
            return work(*arguments, **options)
        except (UserError, RunError, OSError, MemoryError):
            raise
        except (Exception, SystemExit) as error:  # whatever its author did
            raise RunError(
                f"env: '{self.name}' raised {told(error)} in vector step {self._n_steps:,} of this "
                "process. A run's last checkpoint stays: mend the environment, then --resume"
            ) from error
