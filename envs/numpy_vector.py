"""The frame of our own environments: N of them in NumPy arrays, resumable to the bit."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

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
    they show. Environment i draws from a generator of its own, seeded with seed + i, so that its
    stream does not depend on its neighbours.

    Args:
        n_envs: Number of environments.
        seed: Seeds the environments until `reset` is given another.
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
        self._generators = self._seeded(seed)

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

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """Return by name the arrays [N, ...] that together are the episodes in progress."""

    def succeeded(self) -> np.ndarray:
        """Return whether each episode has succeeded, asked for where one has just ended.  [N]"""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode everywhere; a seed restarts every random stream.

        Returns:
            First observations [N, ...], and an empty info.
        """
        if seed is not None:
            self._generators = self._seeded(seed)
        for row, generator in enumerate(self._generators):
            self.begin(row, generator)
        return self.observe(self._rows), {}

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
        shown = self.observe(self._rows)
        ended = terminated | truncated
        if not ended.any():
            return shown, rewards, terminated, truncated, {}
        rows = np.flatnonzero(ended)
        info = {"final_obs": final_observations(shown, rows), "_final_obs": ended}
        if self.has_success:
            info |= {"success": self.succeeded() & ended, "_success": ended}
        for row in rows.tolist():
            self.begin(row, self._generators[row])
        _put(shown, rows, self.observe(rows))
        return shown, rewards, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        """Return the episodes in progress and the random streams, as tensors and plain types."""
        return {
            "arrays": {name: torch.from_numpy(a.copy()) for name, a in self.arrays().items()},
            "generators": [generator.bit_generator.state for generator in self._generators],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            Exception: of several kinds; it is not the state of such environments.
        """
        saved = len(state["generators"])
        if saved != self.num_envs:
            raise ValueError(f"the state holds {saved} environments, this is {self.num_envs}")
        for name, array in self.arrays().items():
            found = state["arrays"][name].numpy()
            if found.shape != array.shape or found.dtype != array.dtype:
                raise ValueError(f"{name}: {found.dtype} {found.shape}, not {array.shape}")
            array[...] = found
        self.observe(self._rows)  # where nothing can be seen, nothing can go on
        for generator, generator_state in zip(self._generators, state["generators"], strict=True):
            generator.bit_generator.state = generator_state

    def _seeded(self, seed: int) -> list[np.random.Generator]:
        return [np.random.default_rng(seed + i) for i in range(self.num_envs)]
