"""Tidying up as suggested: what Housekeep's agents are paid for what they pick up and place.

The rewards of Du et al. (2023, arXiv:2302.06692, section 4.2), which know of suggestions alone, not
of where things really belong:

    +2.5    a thing is picked up as suggested, the first time in the episode (0 after that)
    +2.5    a thing is placed as suggested; it is achieved then
    -0.25   a thing is picked up or placed as nobody suggested
    -0.2    a grab or a release fails
     0      anything else
"""

from collections.abc import Sequence
from typing import Any

from rewards.suggestions.suggester import Situation, Suggester
from rewards.tasks import NOTHING, Deed, Reached
from utils.household import PICK_UP, PLACE, Goal

AS_SUGGESTED, UNSUGGESTED, FAILED = 2.5, -0.25, -0.2


class Episode:
    """What is known of one environment's episode.

    Attributes:
        goals: What is suggested now.
        picked_up: Things that were picked up as suggested.
        achieved: Placements that were paid.
    """

    def __init__(self) -> None:
        self.goals: tuple[str, ...] = ()
        self.begin()

    def begin(self) -> None:
        """Forget all of it but what is suggested: another episode begins."""
        self.picked_up: set[str] = set()
        self.achieved: list[str] = []

    def reached(self, deed: Deed) -> Reached:
        """Take in a step and return what it is paid for."""
        if not deed.succeeded:
            return Reached(reward=FAILED if deed.phrase in (PICK_UP, PLACE) else 0.0)
        goal = Goal.read(deed.phrase)
        if goal is None:
            return NOTHING
        if deed.phrase not in self.goals:
            return Reached(reward=UNSUGGESTED)
        if goal.receptacle:
            self.achieved.append(deed.phrase)
        elif goal.thing in self.picked_up:
            return NOTHING
        else:
            self.picked_up.add(goal.thing)
        return Reached(deed.phrase, AS_SUGGESTED)

    def told(self, situation: Situation) -> Situation:
        """Return what a suggester is told of a situation in this episode."""
        return situation._replace(achieved=tuple(self.achieved))

    def state_dict(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "goals": list(self.goals),
            "picked_up": sorted(self.picked_up),
            "achieved": list(self.achieved),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.goals = tuple(state["goals"])
        self.picked_up, self.achieved = set(state["picked_up"]), list(state["achieved"])


class TidyingGoals:
    """What is suggested in N households, and what is paid for it.

    Args:
        suggester: Suggests it, as phrases of `utils.household.Goal`.
        n_envs: N.
    """

    has_success = False

    def __init__(self, suggester: Suggester, n_envs: int) -> None:
        self.suggester = suggester
        self.episodes = [Episode() for _ in range(n_envs)]

    @property
    def shown(self) -> list[tuple[str, ...]]:
        """What is suggested now in each environment."""
        return [episode.goals for episode in self.episodes]

    def begin(self, rows: Sequence[int]) -> None:
        """Note that other episodes begin in some environments."""
        for row in rows:
            self.episodes[row].begin()

    def reached(self, deeds: Sequence[Deed]) -> list[Reached]:
        """Take in a step of each environment and return what it is paid for."""
        pairs = zip(self.episodes, deeds, strict=True)
        return [episode.reached(deed) for episode, deed in pairs]

    def look(self, situations: Sequence[Situation]) -> None:
        """Take in what is seen in each environment, and have goals suggested for it."""
        pairs = zip(self.episodes, situations, strict=True)
        suggested = self.suggester.suggest([episode.told(seen) for episode, seen in pairs])
        for episode, goals in zip(self.episodes, suggested, strict=True):
            episode.goals = tuple(goals)

    def foreseen(self, row: int, situation: Situation) -> tuple[str, ...]:
        """Return what would be suggested next if the episode of an environment went on."""
        (goals,) = self.suggester.suggest([self.episodes[row].told(situation)])
        return tuple(goals)

    def fingerprints(self) -> dict[str, str]:
        """Return nothing: what is paid follows from the phrases alone."""
        return {}

    def metrics(self) -> dict[str, float]:
        """Return what the suggester has to log."""
        return self.suggester.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on."""
        return {
            "episodes": [episode.state_dict() for episode in self.episodes],
            "suggester": self.suggester.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for episode, saved in zip(self.episodes, state["episodes"], strict=True):
            episode.load_state_dict(saved)
        self.suggester.load_state_dict(state["suggester"])
