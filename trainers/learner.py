"""A learner as a run knows it: a policy that acts, and updates that change it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from models.agent import Agent, Memory, Step, Transitions
from models.observations import Percept
from utils.settings import Part


class Transition(NamedTuple):
    """One step of N environments.

    Attributes:
        percept: What the agent was told.
        step: What it did.
        rewards: What it is rewarded with, scaled where rewards are.  [N] float64
        terminated: Whether the episode reached an end of its own.  [N] bool
        truncated: Whether a limit cut the episode off.  [N] bool
        following: What the agent would be told next if no environment had begun a new episode.
        after: What the agent will be told next; new episodes have begun.
        memory: What the agent remembers now, advanced by `step`.
        info: What the environments say besides, as they say it.
    """

    percept: Percept
    step: Step
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    following: Percept
    after: Percept
    memory: Memory
    info: dict[str, Any]

    @property
    def ended(self) -> Tensor:
        """Whether this step was the last of its episode.  [N] bool"""
        return self.terminated | self.truncated


class Learner(Protocol):
    """Acts, takes in what happens, and learns from it when enough has happened.

    Attributes:
        reads: The settings it reads.
    """

    reads: ClassVar[tuple[type[Part], ...]]

    @staticmethod
    def contradictions(config: Any, agent: type[Agent]) -> list[str]:
        """Return one line for every pair of settings that cannot both hold with such an agent."""

    @property
    def agent(self) -> Agent:
        """What is trained."""

    def act(self, percept: Percept, memory: Memory) -> Step:
        """Choose actions, exploration included, and advance the memory in place."""

    def observe(self, transition: Transition) -> None:
        """Take in one step, and learn from it where a learner learns along the way."""

    @property
    def update_due(self) -> bool:
        """Whether enough has happened, or the run is over."""

    def update(self, progress: float) -> dict[str, float]:
        """Learn, and return what to log; `progress` is the share of the run that is over."""

    def keep_in(self, folder: Path) -> None:
        """Say where the learner may keep, for its state, what grows too large for a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on after an update but the agent."""

    def load_state_dict(
        self, state: dict[str, Any], percept: Percept, memory: Memory | None
    ) -> None:
        """Go on from what `state_dict` returned, before the agent takes over its own state.

        Args:
            state: That, found to be like the one of a new learner.
            percept: What the agent will be told next.
            memory: What it remembers; None where new episodes begin, and running ones are lost.

        Raises:
            Exception: of several kinds; it is not a state of this learner.
        """


class Reward(Protocol):
    """The rewards that a batch is learned from, beside what it computes them by.

    Attributes:
        metrics: The names of what it has to log.
        reads_context: Whether it reads `Transitions.context`, which is then a frozen memory's.
    """

    metrics: tuple[str, ...]
    reads_context: bool

    def __call__(self, steps: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the rewards of B steps [B] and what to log, having learned from them."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""


class NotFiniteError(Exception):
    """A loss or a gradient that is infinite or no number.

    Attributes:
        minibatch: The first that had one, with its epoch and number, as tensors and plain types.
    """

    def __init__(self, minibatch: dict[str, Any]) -> None:
        super().__init__(f"in epoch {minibatch['epoch']}, minibatch {minibatch['number']}")
        self.minibatch = minibatch


class LoggedMeans:
    """Sums of logged values and the number of steps they come from."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._n_steps = 0

    @property
    def are_finite(self) -> bool:
        """Whether no sum is NaN or infinite."""
        return all(map(math.isfinite, self._sums.values()))

    def add(self, sums: Mapping[str, float], n_steps: int = 1) -> None:
        """Add the sums over a number of gradient steps."""
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._n_steps += n_steps

    def means(self) -> dict[str, float]:
        """Return the mean of each value over the steps that were added."""
        return {name: total / self._n_steps for name, total in self._sums.items()}
