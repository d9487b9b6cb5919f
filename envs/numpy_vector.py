"""The frame of our own environments: N of them in NumPy arrays."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.episodes import FIRST_ENV, checksum, episode_generators, episode_seed

# What N environments show: an array [N, ...], or several by name, those of text holding objects.
Shown = np.ndarray | dict[str, np.ndarray]


def final_observations(shown: Shown, rows: Iterable[int]) -> np.ndarray:
    """Return Gymnasium's `final_obs`: what the given rows show, None elsewhere.  [N] of objects."""
    parts = shown if isinstance(shown, dict) else {"": shown}
    final = np.full(len(next(iter(parts.values()))), None, dtype=object)
    for row in rows:
        own = {name: _kept(values[row]) for name, values in parts.items()}
        final[row] = own if isinstance(shown, dict) else own[""]
    return final


def _kept(value: Any) -> Any:
    """Return what one environment shows, so that the next step leaves it alone."""
    return value.copy() if isinstance(value, np.ndarray) else value


def _put(shown: Shown, rows: np.ndarray, fresh: Shown) -> None:
    """Put what the given environments show now in its place."""
    if isinstance(shown, dict):
        assert isinstance(fresh, dict), "an environment shows the same kinds always"
        for name, values in shown.items():
            values[rows] = fresh[name]
    else:
        shown[rows] = fresh


class NumpyVectorEnv(VectorEnv):
    """N environments stepped together, in SAME_STEP autoreset mode.

    A subclass says how an episode begins in one environment, how all of them advance, and what
    they show. Every episode draws from a generator of its own (envs/episodes.py).

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
        if (image_shape is None) == (observation_space is None):
            raise TypeError("give either image_shape or observation_space")
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
        """Return which episodes run, and a checksum of what they show."""
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
