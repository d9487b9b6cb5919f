"""Single tasks of Crafter as the reward, and the parts that goals of any kind share.

A task pays 1 for every step that does it and changes the world, as often as it is done. Its
subgoals can be shown and paid on the way. Odd rules are those of the original (Du et al. 2023,
arXiv:2302.06692): three tasks are never done unless their subgoals are goals, and of the eight
neighbours of a cell two on a diagonal do not count.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from rewards.suggesters.rules import TextState

TASK, SUBGOALS, REWARD_LAST = KINDS = ("task", "subgoals", "reward-last")
SURVIVAL = "survival"
PAID_FOR_SURVIVING = 0.05  # for each step
MANY_TREES = 5  # chopped for a deforestation

# Two names of one deed.
SYNONYMS = {
    "eat cow": "attack cow",
    "attack cow": "eat cow",
    "place crafting table": "make crafting table",
    "make crafting table": "place crafting table",
}

_TABLE = ("chop tree", "chop tree", "place crafting table")
_WOOD_PICKAXE = (*_TABLE, "make wood pickaxe")
_STONE_PICKAXE = (*_WOOD_PICKAXE, "mine stone", "make stone pickaxe")
_IRON = (*_STONE_PICKAXE, "mine stone", "place furnace", "mine coal", "mine iron")
_IRON_PICKAXE = (*_IRON, "make iron pickaxe")
# The subgoals of each task, the last of which is the task itself.
TASKS: dict[str, tuple[str, ...]] = {
    "eat plant": ("chop grass", "place plant", "eat plant"),
    "attack zombie": ("attack zombie",),
    "attack skeleton": ("attack skeleton",),
    "attack cow": ("attack cow",),
    "chop tree": ("chop tree",),
    "mine stone": (*_WOOD_PICKAXE, "mine stone"),
    "mine coal": (*_WOOD_PICKAXE, "mine coal"),
    "mine iron": (*_STONE_PICKAXE, "mine iron"),
    "mine diamond": (*_IRON_PICKAXE, "mine diamond"),
    "drink water": ("drink water",),
    "chop grass": ("chop grass",),
    "sleep": ("sleep",),
    "place stone": (*_WOOD_PICKAXE, "mine stone", "place stone"),
    "place crafting table": ("chop tree", "place crafting table"),
    "place furnace": (*_WOOD_PICKAXE, *("mine stone",) * 4, "place furnace"),
    "place plant": ("chop grass", "place plant"),
    "make wood pickaxe": _WOOD_PICKAXE,
    "make stone pickaxe": _STONE_PICKAXE,
    "make iron pickaxe": _IRON_PICKAXE,
    "make wood sword": (*_TABLE, "make wood sword"),
    "make stone sword": (*_WOOD_PICKAXE, "mine stone", "make stone sword"),
    "make iron sword": (*_IRON, "make iron sword"),
    "plant row": ("chop grass", "place plant", "chop grass", "plant grass"),
    "chop grass with wood pickaxe": (*_WOOD_PICKAXE, "chop grass with wood pickaxe"),
    "vegetarianism": ("drink water", "chop grass"),
    "make workshop": ("chop tree", "place crafting table") * 2,
    SURVIVAL: (SURVIVAL,),
    "deforestation": ("chop tree",) * MANY_TREES,
    "work and sleep": ("chop tree", "sleep", "place crafting table"),
    "gardening": ("chop grass", "chop tree", "place plant"),
    "wilderness survival": ("sleep", "chop grass", "attack zombie"),
}
ONLY_BY_SUBGOALS = ("work and sleep", "gardening", "wilderness survival")
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


class Episode(ABC):
    goals: Collection[str] = ()
    has_success = False

    @abstractmethod
    def begin(self) -> None:
        """Begin another episode; the goals may stay until `look` sets others."""

    def told(self, situation: TextState) -> TextState:
        """Add the events of this episode that a suggester needs."""
        return situation

    def wanted(self, suggested: Sequence[str]) -> Collection[str]:
        return tuple(suggested)

    def look(self, situation: TextState, suggested: Sequence[str]) -> None:
        self.goals = self.wanted(suggested)

    @abstractmethod
    def reached(self, deed: StepOutcome) -> GoalReward:
        """Take in a step and return its payment."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all of it."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state."""


class Task(Episode):
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

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "done": dict(self._done)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
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
    """Return the actions that a task needs; of two names of one, the name it uses."""
    return {DONE_BY.get(subgoal, subgoal) for subgoal in TASKS[name] if name != SURVIVAL}


def _by_another(deed: StepOutcome, thing: str) -> bool:
    return any(deed.around[dx + 1][dy + 1] == thing for dx, dy in NEIGHBOURS)
