"""Every action there is, as a goal: what was not done yet is worth doing."""

from collections.abc import Sequence
from typing import Any, ClassVar

from rewards.suggestions.suggester import Situation
from settings import Config, Part


class Novelty:
    """Suggests all actions, wherever the agent is (the novel goals of Du et al. 2023).

    With each goal paid once an episode that rewards any action done for the first time, so whether
    it succeeds is not asked (`check_success`).

    Args:
        action_names: What the actions are called.
    """

    reads: ClassVar[tuple[type[Part], ...]] = ()

    def __init__(self, action_names: Sequence[str]) -> None:
        self._goals = list(dict.fromkeys(action_names))

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "Novelty":
        """Return the suggester for an environment of such actions."""
        return cls(action_names)

    def suggest(self, situations: Sequence[Situation]) -> list[list[str]]:
        """Return all actions for each of N situations."""
        return [list(self._goals) for _ in situations]

    def metrics(self) -> dict[str, float]:
        """Return nothing: nobody is asked."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: it remembers nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on, which needs nothing."""
