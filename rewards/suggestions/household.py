"""What to tidy up next: things that lie where they do not belong, and places where they do.

The rules of Housekeep's suggestions (Du et al. 2023, arXiv:2302.06692, section 4.2). Who holds a
thing is told the receptacles seen so far that suit it; who holds nothing, the things in view that
lie somewhere unsuitable. What suits is judged by a language model (`yes_no.py`), by the household
itself (the oracle), or not at all (novelty).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from rewards.suggestions.suggester import RuleSuggester, Situation
from utils.household import Goal, read_known, read_sights


class Household(NamedTuple):
    """What one environment knows of its household.

    Attributes:
        holding: The thing that is held, None if there is none.
        receptacles: All that have been seen, each with its room.
        visible: The things in view, and the receptacle where each of them is.
        achieved: Things that have been placed as suggested.
    """

    holding: str | None
    receptacles: Sequence[str]
    visible: Mapping[str, str]
    achieved: AbstractSet[str] = frozenset()

    @classmethod
    def of(cls, situation: Situation) -> "Household":
        """Return what a situation says in words."""
        held = (name for name, count in situation.items.items() if count)
        goals = (Goal.read(phrase) for phrase in situation.achieved)
        placed = frozenset(goal.thing for goal in goals if goal and goal.receptacle)
        sights, known = read_sights(situation.scene), read_known(situation.status)
        return cls(next(held, None), known, sights, placed)


class Candidate(NamedTuple):
    """Something that might be suggested.

    Attributes:
        goal: The thing, and where it might be placed or now lies.
        is_held: Whether it might be placed there; otherwise it might be picked up from there.
    """

    goal: Goal
    is_held: bool

    @property
    def suggestion(self) -> Goal:
        """What is suggested if this is."""
        return self.goal if self.is_held else Goal(self.goal.thing)


class HouseholdSuggester(RuleSuggester, ABC):
    """Suggests what to pick up and where to place it."""

    def suggest(self, situations: Sequence[Situation]) -> list[list[str]]:
        """Return the goals for each of N situations, as phrases."""
        suggested = self.goals([Household.of(situation) for situation in situations])
        return [[goal.phrase for goal in goals] for goals in suggested]

    def goals(self, households: Sequence[Household]) -> list[list[Goal]]:
        """Return the goals for each of N households."""
        candidates = [self.candidates(household) for household in households]
        self.prepare(each.goal for some in candidates for each in some)
        return [[each.suggestion for each in some if self.accepts(each)] for some in candidates]

    def candidates(self, household: Household) -> list[Candidate]:
        """Return what there is to choose from, in the order of suggesting."""
        held, achieved = household.holding, household.achieved
        if held is not None and held not in achieved:
            return [Candidate(Goal(held, place), True) for place in household.receptacles]
        in_view = household.visible.items()
        return [Candidate(Goal(*pair), False) for pair in in_view if pair[0] not in achieved]

    def prepare(self, goals: Iterable[Goal]) -> None:
        """Find out what all judgements need, those of N households at once."""

    @abstractmethod
    def accepts(self, candidate: Candidate) -> bool:
        """Return whether a candidate is suggested."""


class HouseholdNovelty(HouseholdSuggester):
    """Suggests all that has not been achieved: every thing in view, every receptacle seen."""

    def accepts(self, candidate: Candidate) -> bool:
        """Return true."""
        return True


class HouseholdOracle(HouseholdSuggester):
    """Suggests what the household itself holds for right.

    Args:
        suitable: The receptacles where each thing belongs.
    """

    def __init__(self, suitable: Mapping[str, Iterable[str]]) -> None:
        self._suitable = {thing: frozenset(places) for thing, places in suitable.items()}

    def accepts(self, candidate: Candidate) -> bool:
        """Return whether a thing that is held belongs there, or one in view does not."""
        thing, place = candidate.goal
        return (place in self._suitable.get(thing, ())) == candidate.is_held


def by_rule(name: str, suitable: Mapping[str, Iterable[str]]) -> HouseholdSuggester | None:
    """Return who suggests by a rule, by the suggester's name; None if that asks a language model.

    Args:
        name: "oracle", "novelty", or another.
        suitable: The receptacles where each thing belongs.
    """
    if name == "oracle":
        return HouseholdOracle(suitable)
    return HouseholdNovelty() if name == "novelty" else None
