"""The contract of a run with its environments, beside Gymnasium's, and with their makers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

Info = dict[str, Any]  # of a step, as Gymnasium returns it
# As an environment shows it: an array, a text, a number, or a dictionary or tuple of those.
Observation = Any
Action = np.ndarray | np.integer | int  # of one environment
# Of a run or a part of it: numbers, texts, tensors, and lists and dictionaries of those.
State = dict[str, Any]
NOT_SHOWN = -1  # of cues


class Legend(NamedTuple):
    """The names of actions and of numbers in a vector, and the meaning of a picture's colours."""

    actions: list[str]
    numbers: list[str]
    picture: str = ""


class Environments(VectorEnv):
    """N environments that a run is trained in; each method has a default.

    With `has_success` episodes succeed or fail: info has "success" [N] where one ended.
    """

    has_success: bool = False

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the environments themselves; always the same names."""
        return {}

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of pretrained weights that observations or rewards depend on."""
        return {}

    def cues(self) -> Sequence[object] | np.ndarray | None:
        """Return the thing to be remembered that each shows now, a number from 0 on.  N

        NOT_SHOWN or None stand for nothing; None alone: these environments have no cues.
        """
        return None

    def legend(self) -> Legend:
        """Return the words for all that is shown, as far as it has any."""
        return Legend([], [])

    def running(self) -> object:
        """Return the running episodes for `replay`; None: they cannot be played again."""
        return None

    def replay(self, running: Any, actions: Sequence[np.ndarray]) -> bool:
        """Play saved episodes again, given the actions of each, N of [T]; return if they agree."""
        return False

    def state_dict(self) -> State:
        """Return all that outlasts episodes."""
        return {}

    def load_state_dict(self, state: State) -> bool:
        """Restore a state; return whether the running episodes go on, if it is of them, too."""
        return True


class Wrapped(VectorWrapper, Environments):
    """A wrapper that hands on all of this; a subclass overrides its own part."""

    # A vector environment that is none of `Environments` has their defaults.

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._inner = env if isinstance(env, Environments) else Environments()
        self.has_success = self._inner.has_success

    def metrics(self) -> dict[str, float]:
        return self._inner.metrics()

    def fingerprints(self) -> dict[str, str]:
        return self._inner.fingerprints()

    def cues(self) -> Sequence[object] | np.ndarray | None:
        env = self.env
        while isinstance(env, VectorWrapper) and not isinstance(env, Environments):
            env = env.env  # one of Gymnasium's, which shows the same things
        return env.cues() if isinstance(env, Environments) else None

    def legend(self) -> Legend:
        return self._inner.legend()

    def running(self) -> object:
        return self._inner.running()

    def replay(self, running: Any, actions: Sequence[np.ndarray]) -> bool:
        return self._inner.replay(running, actions)

    def state_dict(self) -> State:
        return self._inner.state_dict()

    def load_state_dict(self, state: State) -> bool:
        return self._inner.load_state_dict(state)


class Suite(ABC):
    """Environments of one kind. SUITES of envs/__init__.py says which names lead to it.

    Attributes:
        scale_rewards: Whether rewards are scaled by default.
        clip_rewards: Whether those that are scaled are clipped, too.
        action_names: Of its actions, in their order. Where environments differ, these names and
            the next stand in their `metadata`, as "action_names" and "number_names".
        number_names: Of the numbers of a vector it shows.
        picture_legend: The meaning of the colours in `render`.
    """

    scale_rewards: ClassVar[bool] = False
    clip_rewards: ClassVar[bool] = True
    action_names: ClassVar[Sequence[str]] = ()
    number_names: ClassVar[Sequence[str]] = ()
    picture_legend: ClassVar[str] = ""

    @abstractmethod
    def make(self, config: Any, seed: int) -> VectorEnv:
        """Return `config.n_envs` times `config.env`, in a run of that seed."""

    def make_drawn(self, config: Any, seed: int) -> VectorEnv:
        """Return environments with a `render`, where those of `make` may have none."""
        return self.make(config, seed)

    def names(self) -> Sequence[str] | None:
        """Return all names of its environments; None: those that SUITES has."""
        return None
