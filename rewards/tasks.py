"""Single tasks of Crafter in the place of suggestions: what they ask for, and when that is done.

A task is paid with 1 for every step that does it and really changes the world, as often as it is
done. Its subgoals can be shown and paid on the way. What is odd here is so in the original
(Du et al. 2023, arXiv:2302.06692): three tasks are never done unless their subgoals are goals, and
of the eight neighbours of a cell two on a diagonal do not count.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

TASK, SUBGOALS, REWARD_LAST = KINDS = ("task", "subgoals", "reward-last")
SURVIVAL = "survival"
PAID_FOR_SURVIVING = 0.05  # for each step
MANY_TREES = 5  # that make a deforestation

# Two names of one deed.
TWINS = {
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
NEIGHBOURS = [(dx, dy) for dx, dy in product((-1, 0, 1), repeat=2) if dx != dy]


class Deed(NamedTuple):
    """What one step did.

    Attributes:
        phrase: What the action is called.
        succeeded: Whether it counts as done.
        changed: Whether it really changed the world.
        items: What is held afterwards, by name.
        around: The names of what is around the faced cell afterwards, [dx + 1][dy + 1].
    """

    phrase: str
    succeeded: bool
    changed: bool
    items: Mapping[str, int]
    around: Sequence[Sequence[str | None]] = ()


class Reached(NamedTuple):
    """What a step is paid for.

    Attributes:
        goal: The one that was reached and paid, if one was.
        reward: For it.
        completed: Whether that was all of a task.
    """

    goal: str | None = None
    reward: float = 0.0
    completed: bool = False


NOTHING = Reached()


class Task:
    """A single task in the course of one episode.

    Args:
        name: In `TASKS`.
        kind: What is shown and paid: the "task" alone; the "subgoals", one after the other; or
            these shown and the last one paid, "reward-last".

    Attributes:
        place: Of the subgoal that is next.
    """

    def __init__(self, name: str, kind: str = TASK) -> None:
        self.name, self.kind = name, kind
        self._subgoals = TASKS[name]
        self.begin()

    def begin(self) -> None:
        """Forget the episode: another begins."""
        self.place = 0
        self._done: Counter[str] = Counter()  # effective deeds of this episode

    @property
    def goal(self) -> str:
        """What is wanted now."""
        return self.name if self.kind == TASK else self._subgoals[self.place]

    def reached(self, deed: Deed) -> Reached:
        """Take in a step and return what it is paid for."""
        if self.name == SURVIVAL:
            return Reached(reward=PAID_FOR_SURVIVING)
        if not deed.changed:
            return NOTHING
        self._done[deed.phrase] += 1
        wanted = self.goal
        if not self._is_done_by(deed):
            return NOTHING
        is_last = self.kind == TASK or self.place == len(self._subgoals) - 1
        if not is_last:
            self.place += 1
        is_paid = is_last or self.kind == SUBGOALS
        return Reached(wanted, 1.0, is_last) if is_paid else NOTHING

    def state_dict(self) -> dict[str, Any]:
        """Return how far the episode is."""
        return {"place": self.place, "done": dict(self._done)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        if not 0 <= state["place"] < len(self._subgoals):
            raise ValueError(f"the task '{self.name}' has no subgoal {state['place']}")
        self.place = state["place"]
        self._done = Counter(state["done"])

    def _is_done_by(self, deed: Deed) -> bool:
        """Return whether an effective deed does what is wanted."""
        if self.kind == TASK and self.name in _WHOLE:
            return _WHOLE[self.name](deed, self._done)
        # From the third subgoal on every table of a workshop must stand by another.
        if self.name == "make workshop" and self.place >= 2:
            return _table_by_table(deed, self._done)
        if self.goal in _OF_SUBGOALS:
            return _OF_SUBGOALS[self.goal](deed, self._done)
        return same_deed(deed.phrase, self.goal)


class TaskGoals:
    """The same single task in N environments, in the place of suggestions.

    Args:
        name: In `TASKS`.
        kind: What of it is shown and paid.
        n_envs: N.
    """

    def __init__(self, name: str, kind: str, n_envs: int) -> None:
        self._tasks = [Task(name, kind) for _ in range(n_envs)]
        self.has_success = name != SURVIVAL

    @property
    def shown(self) -> list[tuple[str, ...]]:
        """What is wanted now in each environment."""
        return [(task.goal,) for task in self._tasks]

    def begin(self, rows: Sequence[int]) -> None:
        """Note that other episodes begin in some environments."""
        for row in rows:
            self._tasks[row].begin()

    def reached(self, deeds: Sequence[Deed]) -> list[Reached]:
        """Take in a step of each environment and return what it is paid for."""
        return [task.reached(deed) for task, deed in zip(self._tasks, deeds, strict=True)]

    def look(self, situations: Sequence[Any]) -> None:
        """Take in what is seen, which makes no difference to a task."""

    def foreseen(self, row: int, situation: Any) -> tuple[str, ...]:
        """Return what would be wanted next if the episode of an environment went on."""
        return self.shown[row]

    def fingerprints(self) -> dict[str, str]:
        """Return nothing: no weights are needed."""
        return {}

    def metrics(self) -> dict[str, float]:
        """Return nothing beyond what is logged of all goals."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return how far each environment is."""
        return {"tasks": [task.state_dict() for task in self._tasks]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for task, saved in zip(self._tasks, state["tasks"], strict=True):
            task.load_state_dict(saved)


def same_deed(phrase: str, goal: str) -> bool:
    """Return whether an action is what a goal names, by one or the other of two names."""
    return goal in (phrase, TWINS.get(phrase))


def actions_of(name: str) -> set[str]:
    """Return the actions that a task cannot do without, of twins the one it names."""
    named = set() if name == SURVIVAL else set(TASKS[name])
    return {_IN_OTHER_WORDS.get(subgoal, subgoal) for subgoal in named}


def _by_another(deed: Deed, thing: str) -> bool:
    """Return whether something stands at a neighbour of the faced cell."""
    return any(deed.around[dx + 1][dy + 1] == thing for dx, dy in NEIGHBOURS)


def _plant_by_plant(deed: Deed, done: Counter[str]) -> bool:
    return deed.phrase == "place plant" and _by_another(deed, "plant")


def _table_by_table(deed: Deed, done: Counter[str]) -> bool:
    return same_deed(deed.phrase, "place crafting table") and _by_another(deed, "table")


def _grass_with_pickaxe(deed: Deed, done: Counter[str]) -> bool:
    return deed.phrase == "chop grass" and deed.items.get("wood_pickaxe", 0) > 0


def _grass_after_water(deed: Deed, done: Counter[str]) -> bool:
    return deed.phrase == "chop grass" and done["drink water"] > 0


def _after_many_trees(deed: Deed, done: Counter[str]) -> bool:
    return done["chop tree"] >= MANY_TREES


def _never(deed: Deed, done: Counter[str]) -> bool:
    return False


_Test = Callable[[Deed, Counter[str]], bool]
# Tasks that are no action of that name; "done" counts the effective deeds, this one included.
_WHOLE: Mapping[str, _Test] = {
    "plant row": _plant_by_plant,
    "make workshop": _table_by_table,
    "chop grass with wood pickaxe": _grass_with_pickaxe,
    "vegetarianism": _grass_after_water,
    "deforestation": _after_many_trees,
} | dict.fromkeys(ONLY_BY_SUBGOALS, _never)
_OF_SUBGOALS: Mapping[str, _Test] = {
    "plant grass": _plant_by_plant,
    "chop grass with wood pickaxe": _grass_with_pickaxe,
}
_IN_OTHER_WORDS = {"plant grass": "place plant", "chop grass with wood pickaxe": "chop grass"}
