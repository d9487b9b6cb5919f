"""Suggested goals and their payment (Du et al. 2023, arXiv:2302.06692).

Goals of a game are reached by the similarity of words; those of a household are things to tidy up.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.sentence_encoder import load_sentence_encoder
from rewards.single_tasks import NOTHING, SYNONYMS, Episode, GoalReward, StepOutcome
from rewards.suggesters.rules import EFFECTIVE, TextState, possible_goals
from utils.household import PICK_UP, PLACE, Goal
from utils.starting import one_thread

SAME_TEXT = "same-text"
EFFECT = "effect"
LAST_ACTIONS = 5  # told to a suggester
GOOD, CONTEXT_INSENSITIVE, COMMON_SENSE_INSENSITIVE, IMPOSSIBLE = GRADES = (
    "good",
    "context_insensitive",
    "common_sense_insensitive",
    "impossible",
)
SUGGESTED, REWARDED = EVENTS = ("suggested", "rewarded")
AS_SUGGESTED, UNSUGGESTED, FAILED = 2.5, -0.25, -0.2  # paid for tidying up


class Similarity:
    """The similarity of an action's phrase and a suggested goal.

    It is the cosine of the vectors of a frozen sentence encoder; with "same-text" 1 for equal texts
    and 0 for others. Double precision makes it exactly 1 for equal vectors:

        s = x.y / sqrt(x.x * y.y)

    Raises:
        UserError: there is no encoder of the name.
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
        if phrase in goals:  # similarity 1, known without the encoder
            return phrase, 1.0
        if self._encoder is None or not goals:  # unequal texts are not alike without an encoder
            return None, 0.0
        goal = max(goals, key=lambda each: self.cosine(phrase, each))
        return goal, self.cosine(phrase, goal)

    def cosine(self, one: str, other: str) -> float:
        pair = (one, other)
        if pair not in self._cosines:
            x, y = self._vector(one), self._vector(other)
            self._cosines[pair] = (x.dot(y) / torch.sqrt(x.dot(x) * y.dot(y))).item()
        return self._cosines[pair]

    def _vector(self, text: str) -> Tensor:
        """Return the encoder's vector of a text.  [D] float64"""
        assert self._encoder is not None, "equal texts need no vectors"
        if text not in self._vectors:
            with one_thread():  # the same bits with any number of them
                self._vectors[text] = self._encoder([text])[0].double()
        return self._vectors[text]


class Quality:
    """Counts of suggested and of rewarded goals by quality.

    *good*: the oracle suggests it as well; *context-insensitive*: an action with an effect in
    some other state; *common-sense-insensitive*: one without any; *impossible*: no action.
    """

    def __init__(self, action_names: Iterable[str]) -> None:
        self._actions = frozenset(action_names)
        self._counts = {(occasion, grade): 0 for occasion in EVENTS for grade in GRADES}

    def grades(
        self, goals: Iterable[str], situation: TextState, done: Collection[str]
    ) -> dict[str, str]:
        """Return the grade of each goal; the oracle does not suggest deeds again that are done."""
        agreed = set(possible_goals(situation)).difference(done)
        kinds = (
            (agreed, GOOD),
            (EFFECTIVE, CONTEXT_INSENSITIVE),
            (self._actions, COMMON_SENSE_INSENSITIVE),
        )
        return {
            goal: next((grade for names, grade in kinds if goal in names), IMPOSSIBLE)
            for goal in goals
        }

    def count(self, occasion: str, grades: Iterable[str]) -> None:
        for grade in grades:
            self._counts[occasion, grade] += 1

    def metrics(self) -> dict[str, float]:
        return {f"goals/{occasion}_{grade}": n for (occasion, grade), n in self._counts.items()}

    def state_dict(self) -> list[int]:
        return list(self._counts.values())

    def load_state_dict(self, state: Sequence[int]) -> None:
        self._counts = dict(zip(self._counts, map(int, state), strict=True))


class RewardRule(NamedTuple):
    """The rule of payment for suggested goals, the same in all environments.

    Attributes:
        threshold: Similarity above which an action reaches a goal.
        once: Whether a goal is paid, and suggested, once an episode.
        checks_success: Whether only an action that succeeds is paid; EFFECT: one that really
            changes the world.
        quality: Counts of good and bad goals; None for worlds without an oracle.
    """

    similarity: Similarity
    threshold: float = 0.99
    once: bool = True
    checks_success: bool | str = True
    quality: Quality | None = None


class SuggestedGoals(Episode):
    """Goals suggested for each situation, reached by the similarity of words.

        s_g = similarity(phrase, g),    reward = max_g s_g if that is above the threshold, else 0

    where the phrase is the action's name and g runs over the goals suggested before it (Du
    et al. 2023, arXiv:2302.06692, section 3). The goal of the greatest similarity is achieved, and
    its other name with it.

    Attributes:
        done: Actions that succeeded, paid or not, under both names: the memory of an oracle.
        goals: The suggestions now, with their grades.
    """

    def __init__(self, payment: RewardRule) -> None:
        self.payment = payment
        self.begin()

    def begin(self) -> None:
        self.goals: dict[str, str] = {}
        self.achieved: set[str] = set()
        self.done: set[str] = set()
        self.actions: deque[str] = deque(maxlen=LAST_ACTIONS)

    def told(self, situation: TextState) -> TextState:
        return situation._replace(actions=tuple(self.actions))

    def wanted(self, suggested: Sequence[str]) -> Collection[str]:
        if not self.payment.once:
            return suggested
        return [goal for goal in suggested if goal not in self.achieved]

    def look(self, situation: TextState, suggested: Sequence[str]) -> None:
        goals, quality = self.wanted(suggested), self.payment.quality
        if quality is None:
            self.goals = dict.fromkeys(goals, "")
        else:
            self.goals = quality.grades(goals, situation, self.done)
            quality.count(SUGGESTED, self.goals.values())

    def reached(self, deed: StepOutcome) -> GoalReward:
        reached, payment = NOTHING, self.payment
        if deed.changed:  # suggesters are told of effective actions only
            self.actions.append(deed.phrase)
        has_effect = deed.changed or payment.checks_success != EFFECT
        if has_effect and (deed.succeeded or not payment.checks_success):
            self.done |= _both_names(deed.phrase)
            goal, likeness = payment.similarity.best(deed.phrase, self.goals)
            if goal is not None and likeness > payment.threshold:
                self.achieved |= _both_names(goal)
                reached = GoalReward(goal, likeness)
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
    """The goals in one household, and the payment for tidying it up.

    The rewards of Du et al. (2023, section 4.2) depend on suggestions alone, not on where things
    really belong:

        +2.5    a thing is picked up as suggested, for the first time in the episode (else 0)
        +2.5    a thing is placed as suggested; it is achieved then
        -0.25   a thing is picked up or placed without being suggested
        -0.2    a grab or a release fails
         0      anything else
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.picked_up: set[str] = set()
        self.achieved: list[str] = []

    def told(self, situation: TextState) -> TextState:
        return situation._replace(achieved=tuple(self.achieved))

    def reached(self, deed: StepOutcome) -> GoalReward:
        if not deed.succeeded:
            return GoalReward(reward=FAILED if deed.phrase in (PICK_UP, PLACE) else 0.0)
        goal = Goal.read(deed.phrase)
        if goal is None:
            return NOTHING
        is_again = goal.thing in self.picked_up
        self.picked_up.add(goal.thing)  # one that was not suggested counts, too
        if deed.phrase not in self.goals:
            return GoalReward(reward=UNSUGGESTED)
        if goal.receptacle:
            self.achieved.append(deed.phrase)
        elif is_again:
            return NOTHING
        return GoalReward(deed.phrase, AS_SUGGESTED)

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
    return {deed, SYNONYMS.get(deed, deed)}
