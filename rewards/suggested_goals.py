"""Goals that a suggester names as the episode goes: how they are reached, and their payment.

Two kinds: goals of a game, reached by the likeness of words, and of a household to tidy up (both
of Du et al. 2023, arXiv:2302.06692).
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.sentence_encoder import load_sentence_encoder
from rewards.single_tasks import NOTHING, TWINS, Deed, Episode, Reached
from rewards.suggesters.rules import EFFECTIVE, Situation, possible_goals
from utils.household import PICK_UP, PLACE, Goal
from utils.starting import one_thread

SAME_TEXT = "same-text"
LAST_ACTIONS = 5  # that a suggester is told
GOOD, POORLY_TIMED, BAD, NONSENSE = GRADES = ("good", "poorly_timed", "bad", "nonsense")
SUGGESTED, REWARDED = OCCASIONS = ("suggested", "rewarded")
AS_SUGGESTED, UNSUGGESTED, FAILED = 2.5, -0.25, -0.2  # paid for tidying up


class Similarity:
    """How much a phrase that was done is like a goal that was suggested.

    It is the cosine of the vectors that a frozen sentence encoder makes of two texts, or 1 for two
    texts that are the same letter by letter and 0 for others. Each text is read once, by itself and
    with one thread, so that the same bits come out with any number of them. The cosine is
    x.y / sqrt(x.x * y.y) in double precision, which of two equal vectors is exactly 1: a phrase
    that is among the goals need not be read for that.

    Args:
        name: Of the encoder, a folder, or "same-text".

    Raises:
        UserError: there is no such encoder.
    """

    def __init__(self, name: str) -> None:
        self._encoder = None if name == SAME_TEXT else load_sentence_encoder(name, "goal_encoder")
        self._vectors: dict[str, Tensor] = {}
        self._cosines: dict[tuple[str, str], float] = {}

    @property
    def fingerprint(self) -> str:
        """The sha256 of the encoder's weights, if there are any."""
        return SAME_TEXT if self._encoder is None else self._encoder.fingerprint

    def best(self, phrase: str, goals: Collection[str]) -> tuple[str | None, float]:
        """Return the goal that is most like a phrase, the first of equals, and how much it is.

        The phrase itself comes before others; None and 0 where there are no goals.
        """
        if phrase in goals:  # nothing is more alike, and no text need be read
            return phrase, 1.0
        if self._encoder is None or not goals:
            return None, 0.0
        goal = max(goals, key=lambda each: self.cosine(phrase, each))
        return goal, self.cosine(phrase, goal)

    def cosine(self, one: str, other: str) -> float:
        """Return how much two texts are alike, from -1 to 1."""
        pair = (one, other)
        if pair not in self._cosines:
            x, y = self._vector(one), self._vector(other)
            self._cosines[pair] = (x.dot(y) / torch.sqrt(x.dot(x) * y.dot(y))).item()
        return self._cosines[pair]

    def _vector(self, text: str) -> Tensor:
        """Return the encoder's vector of a text.  [D] float64"""
        assert self._encoder is not None, "equal texts need no vectors"
        if text not in self._vectors:
            with one_thread():
                self._vectors[text] = self._encoder([text])[0].double()
        return self._vectors[text]


class Quality:
    """Counts of goals by how good they are: all that were suggested, and those that were rewarded.

    *good*: the oracle suggests it as well; *poorly timed*: an action that has an effect in some
    state; *bad*: an action that never has one; *nonsense*: no action at all.

    Args:
        action_names: The names of the actions.
    """

    def __init__(self, action_names: Iterable[str]) -> None:
        self._actions = frozenset(action_names)
        self._counts = {(occasion, grade): 0 for occasion in OCCASIONS for grade in GRADES}

    def grades(
        self, goals: Iterable[str], situation: Situation, done: Collection[str]
    ) -> dict[str, str]:
        """Return how good each goal is in a situation, in their order.

        Args:
            goals: As suggested.
            situation: For which they were suggested.
            done: Deeds of the episode, which the oracle does not suggest again.
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
        return list(self._counts.values())

    def load_state_dict(self, state: Sequence[int]) -> None:
        self._counts = dict(zip(self._counts, map(int, state), strict=True))

    def _grade_at_odds(self, goal: str) -> str:
        """Return how good a goal is that the oracle does not suggest."""
        if goal in EFFECTIVE:
            return POORLY_TIMED
        return BAD if goal in self._actions else NONSENSE


class Payment(NamedTuple):
    """How suggested goals are paid, the same in all environments.

    Attributes:
        similarity: Compares deeds with them.
        threshold: Similarity above which an action reaches a goal.
        once: Whether a goal is paid, and suggested, once an episode.
        checks_success: Whether an action must succeed.
        quality: Counts how good goals are, where somebody can judge.
    """

    similarity: Similarity
    threshold: float = 0.99
    once: bool = True
    checks_success: bool = True
    quality: Quality | None = None


class SuggestedGoals(Episode):
    """Goals that are suggested for each situation and reached by the likeness of words.

        s_g = similarity(phrase, g),    reward = max_g s_g if that is above the threshold, else 0

    where the phrase is the action's name and g runs over the goals suggested before it (Du
    et al. 2023, arXiv:2302.06692, section 3). The goal of the greatest similarity is achieved, and
    its twin with it.

    Attributes:
        achieved: Goals that were paid, and their twins.
        done: Actions that succeeded, paid or not, and their twins: what an oracle remembers.
        actions: The last ones that really changed the world.
        goals: The suggestions now, and how good each is.
    """

    def __init__(self, payment: Payment) -> None:
        self.payment = payment
        self.goals: dict[str, str] = {}
        self.begin()

    def begin(self) -> None:
        self.achieved: set[str] = set()
        self.done: set[str] = set()
        self.actions: deque[str] = deque(maxlen=LAST_ACTIONS)

    def told(self, situation: Situation) -> Situation:
        return situation._replace(actions=tuple(self.actions))

    def wanted(self, suggested: Sequence[str]) -> Collection[str]:
        """Return the goals that can still be paid."""
        if not self.payment.once:
            return suggested
        return [goal for goal in suggested if goal not in self.achieved]

    def look(self, situation: Situation, suggested: Sequence[str]) -> None:
        goals, quality = self.wanted(suggested), self.payment.quality
        if quality is None:
            self.goals = dict.fromkeys(goals, "")
        else:
            self.goals = quality.grades(goals, situation, self.done)
            quality.count(SUGGESTED, self.goals.values())

    def reached(self, deed: Deed) -> Reached:
        reached, payment = NOTHING, self.payment
        if deed.changed:  # a suggester is told of real changes alone
            self.actions.append(deed.phrase)
        if deed.succeeded or not payment.checks_success:
            self.done |= _both_names(deed.phrase)
            goal, likeness = payment.similarity.best(deed.phrase, self.goals)
            if goal is not None and likeness > payment.threshold:
                self.achieved |= _both_names(goal)
                reached = Reached(goal, likeness)
                if payment.quality is not None:
                    payment.quality.count(REWARDED, [self.goals[goal]])
        return reached

    def state_dict(self) -> dict[str, Any]:
        return {
            "achieved": sorted(self.achieved),
            "done": sorted(self.done),
            "actions": list(self.actions),
            "goals": dict(self.goals),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.achieved, self.done = set(state["achieved"]), set(state["done"])
        self.actions = deque(state["actions"], LAST_ACTIONS)
        self.goals = dict(state["goals"])


class Tidying(Episode):
    """The suggestions in one household, and the payment for tidying it up.

    The rewards of Du et al. (2023, section 4.2) know of suggestions alone, not of where things
    really belong:

        +2.5    a thing is picked up as suggested, the first time in the episode (0 after that)
        +2.5    a thing is placed as suggested; it is achieved then
        -0.25   a thing is picked up or placed as nobody suggested
        -0.2    a grab or a release fails
         0      anything else

    Attributes:
        picked_up: Things that were picked up as suggested.
        achieved: Placements that were paid.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.picked_up: set[str] = set()
        self.achieved: list[str] = []

    def told(self, situation: Situation) -> Situation:
        return situation._replace(achieved=tuple(self.achieved))

    def reached(self, deed: Deed) -> Reached:
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

    def state_dict(self) -> dict[str, Any]:
        return {
            "goals": list(self.goals),
            "picked_up": sorted(self.picked_up),
            "achieved": list(self.achieved),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.goals = tuple(state["goals"])
        self.picked_up, self.achieved = set(state["picked_up"]), list(state["achieved"])


def _both_names(deed: str) -> set[str]:
    """Return the name of a deed, and its other name if it has one."""
    return {deed, TWINS.get(deed, deed)}
