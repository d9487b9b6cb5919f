"""What a suggester of goals is told, and what it answers; one that suggests nothing."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from settings import Config, Part


class Situation(NamedTuple):
    """What one environment shows in words, before the next action.

    Attributes:
        scene: What is seen, one or two sentences.
        inventory: What is held, a sentence; empty if nothing is.
        status: How the agent feels, a sentence; empty if nothing is to be said.
        items: How many of each thing are held, by name; what is not held may be left out.
        actions: What the last actions that really changed the world were called, newest last.
        achieved: The goals that have been reached in this episode, in any order.
    """

    scene: str
    inventory: str
    status: str
    items: Mapping[str, int]
    actions: tuple[str, ...] = ()
    achieved: tuple[str, ...] = ()


class Suggester(Protocol):
    """Suggests goals, as phrases, for the situations that N environments are in."""

    def suggest(self, situations: Sequence[Situation]) -> list[list[str]]:
        """Return the goals for each of N situations, in the order of suggesting, none twice.

        What was achieved already is for the caller to leave out.
        """

    def metrics(self) -> dict[str, float]:
        """Return what there is to log: what was asked, and what it cost; always the same names."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""


class RuleSuggester:
    """What suggesters share that ask nobody and remember nothing."""

    reads: ClassVar[tuple[type[Part], ...]] = ()
    checks_success: ClassVar[bool] = True

    def metrics(self) -> dict[str, float]:
        """Return nothing: a rule costs nothing."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: a rule remembers nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on, which needs nothing."""


class Silent(RuleSuggester):
    """Suggests nothing: how an agent that reads its goals is played where no model is asked."""

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "Silent":
        """Return the suggester for any environment."""
        return cls()

    def suggest(self, situations: Sequence[Situation]) -> list[list[str]]:
        """Return no goals for each of N situations."""
        return [[] for _ in situations]
