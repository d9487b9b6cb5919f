"""Vector environments: N of our own in NumPy arrays, and statistics of episodes around any.

An environment that can play episodes again has `running()`, which episodes run now, and
`replay(running, actions) -> bool` (envs/episodes.py). If it has `state_dict()` and
`load_state_dict(state)`, too, they hold all that outlasts episodes. An exception of an environment
is told in one line. A cue, which an agent has to remember, is told to analyses, never to an agent.
"""

import itertools
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from envs.episodes import FIRST_ENV, checksum, episode_generators, episode_seed
from utils.errors import RunError, UserError, told

LONGEST_REPLAY = 100_000  # steps; an environment without an end would fill the memory
STEPS_UNTIL_FORGOTTEN = 1_000  # actions of ended episodes are kept so long

NOT_SHOWN = -1
# Of N environments: an array [N, ...], or several by name, those of text holding objects.
Shown = np.ndarray | dict[str, np.ndarray]

log = logging.getLogger(__name__)


def final_observations(shown: Shown, rows: Iterable[int]) -> np.ndarray:
    """Return Gymnasium's `final_obs`: of the given rows, None elsewhere.  [N] of objects."""
    parts = shown if isinstance(shown, dict) else {"": shown}
    final = np.full(len(next(iter(parts.values()))), None, dtype=object)
    for row in rows:
        own = {name: _kept(values[row]) for name, values in parts.items()}
        final[row] = own if isinstance(shown, dict) else own[""]
    return final


def _kept(value: Any) -> Any:
    """Return a copy, which the next step leaves alone."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _put(shown: Shown, rows: np.ndarray, fresh: Shown) -> None:
    """Put the new observations of the given environments in their places."""
    if isinstance(shown, dict):
        assert isinstance(fresh, dict), "an environment shows the same kinds always"
        for name, values in shown.items():
            values[rows] = fresh[name]
    else:
        shown[rows] = fresh


class NumpyVectorEnv(VectorEnv):
    """N environments stepped together, in SAME_STEP autoreset mode.

    A subclass has `begin` for one environment, `advance` and `observe` for all. Every
    episode draws from a generator of its own (envs/episodes.py).

    Args:
        n_envs: Number of environments.
        seed: Of the run, until `reset` is given another.
        image_shape: (C, H, W), where an environment shows uint8 images.
        n_actions: Number of discrete actions.
        observation_space: Of one environment, where it shows anything else.

    Attributes:
        has_success: Whether an episode succeeds or fails, which `succeeded` tells then.
    """

    has_success = False

    def __init__(
        self,
        n_envs: int,
        seed: int,
        image_shape: tuple[int, int, int] | None = None,
        n_actions: int = 2,
        observation_space: gymnasium.Space | None = None,
    ) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = n_envs
        self.single_observation_space = observation_space or gymnasium.spaces.Box(
            0, 255, image_shape, np.uint8
        )
        self.observation_space = batch_space(self.single_observation_space, n_envs)
        self.single_action_space = gymnasium.spaces.Discrete(n_actions)
        self.action_space = batch_space(self.single_action_space, n_envs)
        self._rows = np.arange(n_envs)
        self._seed, self._first_env = seed, 0
        self._episodes = np.full(n_envs, -1)  # how many have begun before the present one
        self._generators = [np.random.default_rng(seed)] * n_envs  # every episode brings its own
        self._following = [episode_generators(seed, row, 0) for row in range(n_envs)]
        self._observations: Any = None

    @abstractmethod
    def begin(self, row: int, generator: np.random.Generator) -> None:
        """Begin a new episode in environment `row`, drawing only from its generator."""

    @abstractmethod
    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take one step everywhere: actions [N] -> rewards [N], terminated [N], truncated [N]."""

    @abstractmethod
    def observe(self, rows: np.ndarray) -> Any:
        """Return fresh observations of the given environments: rows [R] -> [R, ...].

        Where an observation is a dictionary, that is one of arrays, of objects where it is text.
        """

    def succeeded(self) -> np.ndarray:
        """Return whether each episode has succeeded, asked for where one has just ended.  [N]"""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode everywhere, or with a seed the first ones of a run of that seed.

        Returns:
            First observations [N, ...], and an empty info.
        """
        if seed is not None:
            self._seed, self._first_env = seed, (options or {}).get(FIRST_ENV, 0)
            self._go_to(self._rows, [0] * self.num_envs)
        self._begin_next(self._rows)
        self._observations = self.observe(self._rows)
        return self._observations, {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step everywhere and begin the next episode where one ended.

        Args:
            actions: One action per environment.  [N]

        Returns:
            Observations [N, ...], rewards [N], terminated [N], truncated [N], and where an episode
            ended an info with `final_obs` and, where there is such a thing, `success` [N], valid
            where the masks `_final_obs` and `_success` are true.
        """
        rewards, terminated, truncated = self.advance(np.asarray(actions))
        self._observations = shown = self.observe(self._rows)
        ended = terminated | truncated
        if not ended.any():
            return shown, rewards, terminated, truncated, {}
        rows = np.flatnonzero(ended)
        info = {"final_obs": final_observations(shown, rows), "_final_obs": ended}
        if self.has_success:
            info |= {"success": self.succeeded() & ended, "_success": ended}
        self._begin_next(rows)
        _put(shown, rows, self.observe(rows))
        return shown, rewards, terminated, truncated, info

    def running(self) -> dict[str, Any]:
        """Return which episodes run, and a checksum of their observations."""
        return {
            "seed": self._seed,
            "first_env": self._first_env,
            "episodes": self._episodes.tolist(),
            "checksum": checksum(self._observations),
        }

    def replay(self, running: dict[str, Any], actions: Sequence[np.ndarray]) -> bool:
        """Play saved episodes again; return whether they came out the same.

        All are stepped together and end at the same step, so each begins when as many steps are
        left as it has. Until then its environment plays something else.

        Args:
            running: Which they are.
            actions: Taken in each so far.  N of [T]
        """
        lengths = np.array([len(taken) for taken in actions])
        n_steps = int(lengths.max())
        padded = np.stack([np.pad(taken, (n_steps - len(taken), 0)) for taken in actions])
        self._seed, self._first_env = running["seed"], running["first_env"]
        self.reset()
        for step in range(n_steps + 1):
            if step:
                self.step(padded[:, step - 1])
            rows = np.flatnonzero(lengths == n_steps - step)
            if len(rows):
                self._go_to(rows, [running["episodes"][row] for row in rows])
                self._begin_next(rows)
                _put(self._observations, rows, self.observe(rows))
        return checksum(self._observations) == running["checksum"]

    def seed_of(self, row: int) -> int:
        """Return the seed of the present episode of environment `row`."""
        return episode_seed(self._seed, self._first_env + row, int(self._episodes[row]))

    def _begin_next(self, rows: np.ndarray) -> None:
        """Begin the next episode of some environments."""
        self._episodes[rows] += 1
        for row in rows.tolist():
            self._generators[row] = next(self._following[row])
            self.begin(row, self._generators[row])

    def _go_to(self, rows: np.ndarray, episodes: Sequence[int]) -> None:
        """Let these be the next episodes of some environments."""
        for row, episode in zip(rows.tolist(), episodes, strict=True):
            self._episodes[row] = episode - 1
            self._following[row] = episode_generators(self._seed, self._first_env + row, episode)


class EpisodeStatistics(RecordEpisodeStatistics):
    """Raw return and length of every episode that ends, as Gymnasium records them.

    Where an episode ended, info["episode"] holds "r" [N] and "l" [N], and where the environment
    says so "success" [N], valid where the mask info["_episode"] [N] is true.

    Args:
        env: The environments.
        name: Of the environments in the settings.
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
        """Return the metrics of the environments themselves; always the same names."""
        own = getattr(self.env, "metrics", None)
        return {} if own is None else own()

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the weights that read the environments' pictures, if any do."""
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


def cues_of(env: VectorEnv) -> np.ndarray | None:
    """Return the cue that each of N environments shows now, which is to be remembered.

    A vector environment, or a wrapper of one, has `cues()`: numbers from 0 on, and NOT_SHOWN or
    None where it shows no such thing now. A single one has `cue()`, see `envs/any_gymnasium.py`.

    Returns:
        [N] int64, or None if the environment does not say.

    Raises:
        UserError: it says something else.
    """
    teller = env
    while isinstance(teller, VectorWrapper) and not hasattr(teller, "cues"):
        teller = teller.env
    told = teller.cues() if hasattr(teller, "cues") else None
    if told is None:
        return None
    if len(told) != env.num_envs:
        raise UserError(f"env: cues() has {len(told)} numbers and there are {env.num_envs} worlds")
    return np.array([_number(cue) for cue in np.asarray(told, object).tolist()], dtype=np.int64)


def _number(cue: Any) -> int:
    if cue is None:
        return NOT_SHOWN
    if not isinstance(cue, Integral) or cue < NOT_SHOWN:
        raise UserError(
            f"env: its cue is {cue!r}. Tell a number from 0 on, or None while it shows nothing "
            "that is to be remembered"
        )
    return int(cue)
