"""The goals of an episode and their payment (Du et al. 2023, arXiv:2302.06692).

A single task of Crafter pays 1 for every step that does it and changes the world, as often as it is
done. Its subgoals can be shown and paid on the way. Odd rules are those of the original: three
tasks are never done unless their subgoals are goals, and of the eight neighbours of a cell two on a
diagonal do not count.

Suggested goals of a game are reached by the similarity of words; those of a household are things to
tidy up.
"""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from models.caching import one_thread
from models.language.load import load_sentence_encoder
from rewards.settings import EFFECT, MANY_TREES, SAME_TEXT, SUBGOALS, SURVIVAL, TASK, TASKS
from rewards.suggesters.rules import EFFECTIVE, TextState, possible_goals
from utils.environments import State
from utils.household import PICK_UP, PLACE, Goal

PAID_FOR_SURVIVING = 0.05  # for each step
LAST_ACTIONS = 5  # told to a suggester
GOOD, CONTEXT_INSENSITIVE, COMMON_SENSE_INSENSITIVE, IMPOSSIBLE = GRADES = (
    "good",
    "context_insensitive",
    "common_sense_insensitive",
    "impossible",
)
SUGGESTED, REWARDED = EVENTS = ("suggested", "rewarded")
AS_SUGGESTED, UNSUGGESTED, FAILED = 2.5, -0.25, -0.2  # paid for tidying up

# Two names of one deed.
SYNONYMS = {
    "eat cow": "attack cow",
    "attack cow": "eat cow",
    "place crafting table": "make crafting table",
    "make crafting table": "place crafting table",
}

# Subgoals that are no actions, and the actions behind them.
DONE_BY = {"plant grass": "place plant", "chop grass with wood pickaxe": "chop grass"}
NEIGHBOURS = [(dx, dy) for dx, dy in product((-1, 0, 1), repeat=2) if dx != dy]


class StepOutcome(NamedTuple):
    """The outcome of one step.

    Attributes:
        phrase: The name of the action.
        succeeded: Whether it counts as done.
        changed: Whether it really changed the world.
        items: Items held afterwards, by name.
        around: Things around the faced cell afterwards, [dx + 1][dy + 1].
    """

    phrase: str
    succeeded: bool
    changed: bool = False
    items: Mapping[str, int] = {}
    around: Sequence[Sequence[str | None]] = ()


class GoalReward(NamedTuple):
    goal: str | None = None
    reward: float = 0.0
    completed: bool = False


NOTHING = GoalReward()


class EpisodeGoals(ABC):
    goals: Collection[str] = ()
    has_success = False

    @abstractmethod
    def begin(self) -> None:
        """Begin another episode; the goals may stay until `look` sets others."""

    def with_history(self, situation: TextState) -> TextState:
        return situation

    def wanted(self, suggested: Sequence[str]) -> Collection[str]:
        return tuple(suggested)

    def look(self, situation: TextState, suggested: Sequence[str]) -> None:
        self.goals = self.wanted(suggested)

    @abstractmethod
    def reached(self, deed: StepOutcome) -> GoalReward:
        """Take in a step and return its payment."""

    @abstractmethod
    def state_dict(self) -> State:
        """Return all of it."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Load a saved state."""


class SingleTask(EpisodeGoals):
    """A single task in the course of one episode; suggestions are ignored.

    `kind` is the shown and paid part: the "task" alone; the "subgoals", one after the other; or all
    shown and the last one paid, "reward-last".
    """

    def __init__(self, name: str, kind: str = TASK) -> None:
        self.name, self.kind = name, kind
        self.has_success = name != SURVIVAL
        self._subgoals = TASKS[name]
        self.begin()

    @property
    def goal(self) -> str:
        return self.name if self.kind == TASK else self._subgoals[self.place]

    def begin(self) -> None:
        self.place = 0
        self._done: Counter[str] = Counter()  # effective deeds of this episode

    def wanted(self, suggested: Sequence[str]) -> Collection[str]:
        return (self.goal,)

    def reached(self, deed: StepOutcome) -> GoalReward:
        if self.name == SURVIVAL:
            return GoalReward(reward=PAID_FOR_SURVIVING)
        if not deed.changed:
            return NOTHING
        self._done[deed.phrase] += 1
        goal = self.goal
        if not self._is_done_by(deed):
            return NOTHING
        is_last = self.kind == TASK or self.place == len(self._subgoals) - 1
        if not is_last:
            self.place += 1
        is_paid = is_last or self.kind == SUBGOALS
        return GoalReward(goal, 1.0, is_last) if is_paid else NOTHING

    def state_dict(self) -> State:
        return {"place": self.place, "done": dict(self._done)}

    def load_state_dict(self, state: State) -> None:
        if not 0 <= state["place"] < len(self._subgoals):
            raise ValueError(f"the task '{self.name}' has no subgoal {state['place']}")
        self.place = state["place"]
        self._done = Counter(state["done"])

    def _is_done_by(self, deed: StepOutcome) -> bool:
        wanted, phrase = self.goal, deed.phrase
        # From the third subgoal on every table of a workshop must stand by another.
        if self.name == "make workshop" and (self.kind == TASK or self.place >= 2):
            return same_deed(phrase, "place crafting table") and _by_another(deed, "table")
        if wanted in ("plant row", "plant grass"):
            return phrase == "place plant" and _by_another(deed, "plant")
        if wanted == "chop grass with wood pickaxe":
            return phrase == "chop grass" and deed.items.get("wood_pickaxe", 0) > 0
        if wanted == "vegetarianism":
            return phrase == "chop grass" and self._done["drink water"] > 0
        if wanted == "deforestation":
            return self._done["chop tree"] >= MANY_TREES
        return same_deed(phrase, wanted)


def same_deed(phrase: str, goal: str) -> bool:
    return goal in (phrase, SYNONYMS.get(phrase))


def actions_of(name: str) -> set[str]:
    return {DONE_BY.get(subgoal, subgoal) for subgoal in TASKS[name] if name != SURVIVAL}


def _by_another(deed: StepOutcome, thing: str) -> bool:
    return any(deed.around[dx + 1][dy + 1] == thing for dx, dy in NEIGHBOURS)


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
        return SAME_TEXT if self._encoder is None else self._encoder.fingerprint

    def best(self, phrase: str, goals: Collection[str]) -> tuple[str | None, float]:
        if phrase in goals:  # similarity 1, known without the encoder
            return phrase, 1.0
        if self._encoder is None or not goals:  # unequal texts are not alike without an encoder
            return None, 0.0
        # Of equals the first suggested: `max` keeps it.
        goal = max(goals, key=lambda each: self.cosine(phrase, each))
        return goal, self.cosine(phrase, goal)

    def cosine(self, one: str, other: str) -> float:
        # Frozen vectors do not change, and phrases and goals are few: each pair is compared once.
        pair = (one, other)
        if pair not in self._cosines:
            x, y = self._vector(one), self._vector(other)
            # Kept: few phrases meet few goals, again and again.
            self._cosines[pair] = (x.dot(y) / torch.sqrt(x.dot(x) * y.dot(y))).item()
        return self._cosines[pair]

    def _vector(self, text: str) -> Tensor:
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
        # The first that has a goal counts: they go from good to bad.
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


class SuggestedGoals(EpisodeGoals):
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

    def with_history(self, situation: TextState) -> TextState:
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
            # Also where nothing was paid: an oracle must not suggest again what is done.
            self.done |= _both_names(deed.phrase)
            goal, likeness = payment.similarity.best(deed.phrase, self.goals)
            if goal is not None and likeness > payment.threshold:
                # Its synonym names the same deed, and would pay twice.
                self.achieved |= _both_names(goal)
                reached = GoalReward(goal, likeness)
                if payment.quality is not None:
                    payment.quality.count(REWARDED, [self.goals[goal]])
        return reached

    def state_dict(self) -> State:
        return {
            "achieved": sorted(self.achieved),
            "done": sorted(self.done),
            "actions": list(self.actions),
            "goals": dict(self.goals),
        }

    def load_state_dict(self, state: State) -> None:
        self.achieved, self.done = set(state["achieved"]), set(state["done"])
        self.actions = deque(state["actions"], LAST_ACTIONS)
        self.goals = dict(state["goals"])


class Tidying(EpisodeGoals):
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

    def with_history(self, situation: TextState) -> TextState:
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

    def state_dict(self) -> State:
        return {
            "goals": list(self.goals),
            "picked_up": sorted(self.picked_up),
            "achieved": list(self.achieved),
        }

    def load_state_dict(self, state: State) -> None:
        self.goals = tuple(state["goals"])
        self.picked_up, self.achieved = set(state["picked_up"]), list(state["achieved"])


def _both_names(deed: str) -> set[str]:
    return {deed, SYNONYMS.get(deed, deed)}
