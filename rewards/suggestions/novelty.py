"""Every action there is, as a goal: what was not done yet is worth doing."""

from collections.abc import Sequence

from rewards.suggestions.suggester import RuleSuggester, Situation
from settings import Config


class Novelty(RuleSuggester):
    """Suggests all actions, wherever the agent is (the novel goals of Du et al. 2023).

    With each goal paid once an episode that rewards any action done for the first time, so whether
    it succeeds is not asked (`check_success`).

    Args:
        action_names: What the actions are called.
    """

    checks_success = False

    def __init__(self, action_names: Sequence[str]) -> None:
        self._goals = list(dict.fromkeys(action_names))

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "Novelty":
        """Return the suggester for an environment of such actions."""
        return cls(action_names)

    def suggest(self, situations: Sequence[Situation]) -> list[list[str]]:
        """Return all actions for each of N situations."""
        return [list(self._goals) for _ in situations]
