"""What every suite is wrapped in: statistics of episodes, and the actions that lead to the present.

An environment that can play episodes again has `running()`, which episodes run now, and
`replay(running, actions) -> bool` (envs/episodes.py). If it has `state_dict()` and
`load_state_dict(state)`, too, they hold what outlasts episodes. What an environment raises is told
in one line.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from utils.errors import RunError, UserError, told

LONGEST_REPLAY = 100_000  # steps; an environment without an end would fill the memory
STEPS_UNTIL_FORGOTTEN = 1_000  # actions of ended episodes are kept so long

log = logging.getLogger(__name__)


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
        # Of the last steps, back to where the longest running episode began.  [N] each
        self._actions: deque[np.ndarray] = deque(maxlen=LONGEST_REPLAY)

    @property
    def has_success(self) -> bool:
        """Whether episodes succeed or fail."""
        return getattr(self.unwrapped, "has_success", False)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode everywhere."""
        self._actions.clear()
        return self._told(super().reset, seed=seed, options=options)

    def step(
        self, actions: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step everywhere and add the statistics of episodes that ended."""
        self._n_steps += 1
        observations, rewards, terminated, truncated, info = self._told(super().step, actions)
        if "success" in info:
            info["episode"]["success"] = info["success"]
        self._actions.append(np.array(actions))
        if self._n_steps % STEPS_UNTIL_FORGOTTEN == 0:
            self._actions = deque(self._running_actions(), LONGEST_REPLAY)
        return observations, rewards, terminated, truncated, info

    def metrics(self) -> dict[str, float]:
        """Return what the environments themselves have to log; always the same names."""
        own = getattr(self.env, "metrics", None)
        return {} if own is None else own()

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of what the environments read their pictures with, if they do."""
        return getattr(self.env, "fingerprints", dict)()

    def state_dict(self) -> dict[str, Any]:
        """Return the running episodes, or nothing of them where they cannot be played again."""
        env: Any = self.env
        is_short = self.episode_lengths.max() <= len(self._actions)
        if not hasattr(env, "replay") or not is_short:
            return {"resumable": False}
        actions = self._running_actions()
        return {
            "resumable": True,
            "running": env.running(),
            "actions": torch.from_numpy(np.array(actions, np.int64).reshape(-1, self.num_envs)),
            "returns": torch.from_numpy(self.episode_returns.copy()),
            "lengths": torch.from_numpy(self.episode_lengths.copy()),
            "own": getattr(env, "state_dict", dict)(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Play saved episodes again; return False where that cannot be: begin new ones then.

        Raises:
            Exception: of several kinds; it is not the state of such environments.
        """
        env: Any = self.env
        if not hasattr(env, "replay") or not state["resumable"]:
            return False
        actions, lengths = state["actions"].numpy(), state["lengths"].numpy()
        self._check(actions, lengths)
        n_steps = len(actions)
        taken = [actions[n_steps - length :, row] for row, length in enumerate(lengths)]
        is_same = env.replay(state["running"], taken)
        if state["own"]:
            env.load_state_dict(state["own"])
        if not is_same:
            log.warning(
                "env: in '%s' the same seeds and actions lead elsewhere than when the run was "
                "saved. Something else decides, too, or it has changed. New episodes begin",
                self.name,
            )
            return False
        self._actions = deque(actions, LONGEST_REPLAY)
        self.episode_returns[:] = state["returns"].numpy()
        self.episode_lengths[:] = lengths
        return True

    def _running_actions(self) -> list[np.ndarray]:
        """Return those since the longest running episode began.  [N] each"""
        n_old = len(self._actions) - int(self.episode_lengths.max())
        return list(itertools.islice(self._actions, max(n_old, 0), None))

    def _check(self, actions: np.ndarray, lengths: np.ndarray) -> None:
        """Raise ValueError unless these can be actions of as many episodes as there are here."""
        if actions.shape[1:] != (self.num_envs,) or lengths.shape != (self.num_envs,):
            n_saved = len(lengths)
            raise ValueError(f"the state holds {n_saved} environments, this is {self.num_envs}")
        if not ((lengths >= 0) & (lengths <= len(actions))).all():
            raise ValueError(f"the state holds {len(actions)} steps, episodes have {lengths}")
        n_actions = cast(Discrete, self.single_action_space).n
        if not ((actions >= 0) & (actions < n_actions)).all():
            raise ValueError(f"the state holds actions beyond those from 0 to {n_actions - 1}")

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
