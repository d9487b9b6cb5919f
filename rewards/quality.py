"""How good suggestions are, judged by the oracle of the game."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rewards.suggestions.oracle import EFFECTIVE, possible_goals
from rewards.suggestions.suggester import Situation

GOOD, POORLY_TIMED, BAD, NONSENSE = GRADES = ("good", "poorly_timed", "bad", "nonsense")
SUGGESTED, REWARDED = OCCASIONS = ("suggested", "rewarded")


class Quality:
    """Counts of goals by how good they are: all that were suggested, and those that were rewarded.

    *good*: the oracle suggests it as well; *poorly timed*: an action that has an effect in some
    state; *bad*: an action that never has one; *nonsense*: no action at all.

    Args:
        action_names: What the actions are called.
    """

    def __init__(self, action_names: Iterable[str]) -> None:
        self._actions = frozenset(action_names)
        self._at_odds: dict[str, str] = {}  # the grade of each goal where the oracle disagrees
        self._counts = {(occasion, grade): 0 for occasion in OCCASIONS for grade in GRADES}

    def grades(
        self, goals: Sequence[str], situation: Situation, done: Collection[str]
    ) -> dict[str, str]:
        """Return how good each goal is in a situation, in their order.

        Args:
            goals: As suggested.
            situation: For which they were suggested.
            done: What was done in the episode, which the oracle does not suggest again.
        """
        agreed = set(possible_goals(situation)).difference(done)
        return {goal: GOOD if goal in agreed else self._grade_at_odds(goal) for goal in goals}

    def count(self, occasion: str, grades: Iterable[str]) -> None:
        """Count goals on an occasion."""
        for grade, n in Counter(grades).items():
            self._counts[occasion, grade] += n

    def metrics(self) -> dict[str, float]:
        """Return the counts since the run began."""
        return {f"goals/{occasion}_{grade}": n for (occasion, grade), n in self._counts.items()}

    def state_dict(self) -> list[int]:
        """Return the counts."""
        return list(self._counts.values())

    def load_state_dict(self, state: Any) -> None:
        """Go on from saved counts."""
        for key, count in zip(self._counts, state, strict=True):
            self._counts[key] = int(count)

    def _grade_at_odds(self, goal: str) -> str:
        """Return how good a goal is that the oracle does not suggest."""
        if goal not in self._at_odds:
            never = BAD if goal in self._actions else NONSENSE
            self._at_odds[goal] = POORLY_TIMED if goal in EFFECTIVE else never
        return self._at_odds[goal]
