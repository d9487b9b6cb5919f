"""The base class of suggesters, and those that follow rules: of Crafter, of a household, or none.

A suggester is a subclass of `Suggester` in the registry of `rewards/suggesters`; its name stands
among the choices of `suggester` in rewards/settings.py, too, and there in what it reads.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar, NamedTuple

from utils.environments import State
from utils.errors import UserError
from utils.household import Goal, read_known, read_sights
from utils.settings import Config

NOTHING: Mapping[str, int] = {}
# Actions that have an effect in some state and are no goals: walking needs no suggestion.
UNGUIDED = ("do nothing", "move left", "move right", "move up", "move down")


class TextState(NamedTuple):
    """One environment's description of itself, before the next action.

    Attributes:
        scene: The things in view, one or two sentences.
        inventory: The things held, a sentence; may be empty.
        status: The agent's condition, a sentence; may be empty.
        items: How many of each thing are held, by name; others may be left out.
        actions: The names of the last actions that really changed the world, newest last.
        achieved: The goals that have been reached in this episode, in any order.
    """

    scene: str
    inventory: str
    status: str
    items: Mapping[str, int]
    actions: tuple[str, ...] = ()
    achieved: tuple[str, ...] = ()


class Suggester(ABC):
    """Suggests goals, as phrases, for N environments; by default without settings, costs or state.

    With `checks_success` its goals are paid for success alone.
    """

    checks_success: ClassVar[bool] = True

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "Suggester":
        """Return a run's suggester for actions of these names; UserError if it cannot be used."""
        return cls()

    @abstractmethod
    def suggest(self, situations: Sequence[TextState]) -> Sequence[list[str] | None]:
        """Return the goals for each of N situations, in the order of suggesting, none twice.

        None where the last goals hold until others are known. The caller leaves out goals that are
        achieved already.
        """

    def metrics(self) -> dict[str, float]:
        """Return the numbers of questions, and their costs; always the same names."""
        return {}

    def close(self) -> None:  # noqa: B027  most have nothing open
        """End the thread that asks questions, if there is one."""

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        if state:
            raise ValueError("the state is of another suggester")


class Silent(Suggester):
    """Suggests nothing, to an agent that reads goals but is played without a language model."""

    def suggest(self, situations: Sequence[TextState]) -> list[list[str]]:
        return [[] for _ in situations]


class Novelty(Suggester):
    """Suggests all actions in every situation (the novel goals of Du et al. 2023)."""

    # Each goal is paid once an episode, so any action is when first tried: success is not checked.

    checks_success = False

    def __init__(self, action_names: Sequence[str]) -> None:
        self._goals = list(dict.fromkeys(action_names))

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "Novelty":
        return cls(action_names)

    def suggest(self, situations: Sequence[TextState]) -> list[list[str]]:
        return [list(self._goals) for _ in situations]


class Rule(NamedTuple):
    """The conditions of a goal.

    Attributes:
        needs: How many of which things must be held.
        seen: Words that must all stand in the sentence of the scene, also as parts of others.
        felt: A word that must stand in the sentence of the status.
        unseen: Words that must not stand in the sentence of the scene.
    """

    goal: str
    needs: Mapping[str, int] = NOTHING
    seen: tuple[str, ...] = ()
    felt: str = ""
    unseen: str = ""


WOODEN, STONY = {"wood": 1}, {"wood": 1, "stone": 1}
IRON = {"wood": 1, "coal": 1, "iron": 1}
SMITHY = ("table", "furnace")
# In the order of suggesting.
RULES = (
    Rule("eat plant", seen=("plant",)),
    Rule("attack zombie", seen=("zombie",)),
    Rule("attack skeleton", seen=("skeleton",)),
    Rule("attack cow", seen=("cow",)),
    Rule("eat cow", seen=("cow",)),
    Rule("chop tree", seen=("tree",)),
    Rule("mine stone", {"wood_pickaxe": 1}, seen=("stone",)),
    Rule("mine coal", {"wood_pickaxe": 1}, seen=("coal",)),
    Rule("mine iron", {"stone_pickaxe": 1}, seen=("iron",)),
    Rule("mine diamond", {"iron_pickaxe": 1}, seen=("diamond",)),
    Rule("drink water", seen=("water",)),
    Rule("chop grass", seen=("grass",)),
    Rule("sleep", felt="sleepy"),
    Rule("place stone", {"stone": 1}),
    Rule("place crafting table", WOODEN, unseen="crafting table"),
    Rule("make crafting table", WOODEN),
    Rule("place furnace", {"stone": 4}),
    Rule("place plant", {"sapling": 1}),
    Rule("make wood pickaxe", WOODEN, seen=("table",)),
    Rule("make stone pickaxe", STONY, seen=("table",)),
    Rule("make iron pickaxe", IRON, seen=SMITHY),
    Rule("make wood sword", WOODEN, seen=("table",)),
    Rule("make stone sword", STONY, seen=("table",)),
    Rule("make iron sword", IRON, seen=SMITHY),
)
GOALS = tuple(rule.goal for rule in RULES)
EFFECTIVE = frozenset((*UNGUIDED, *GOALS))


def possible_goals(situation: TextState) -> list[str]:
    held = situation.items
    return [
        rule.goal
        for rule in _fitting(situation.scene, situation.status)
        if not rule.needs or all(held.get(thing, 0) >= n for thing, n in rule.needs.items())
    ]


@functools.lru_cache(maxsize=2**14)
def _fitting(scene: str, status: str) -> tuple[Rule, ...]:
    # Cached: scene and status repeat from step to step, unlike the things held.
    return tuple(
        rule
        for rule in RULES
        if all(word in scene for word in rule.seen)
        and rule.felt in status
        and not (rule.unseen and rule.unseen in scene)
    )


def knows(action_names: Sequence[str]) -> bool:
    return not EFFECTIVE.isdisjoint(action_names)


class Oracle(Suggester):
    """Suggests every goal with a valid rule (SimpleOracle of Du et al. 2023, arXiv:2302.06692)."""

    # It ignores the set of actions: with 27 of them it suggests *eat cow*, too.

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "Oracle":
        if not knows(action_names):
            raise UserError(
                f"suggester: the oracle knows the rules of Crafter alone, and {config.env} has "
                "other actions. Choose another suggester, or env=CrafterText-v0"
            )
        return cls()

    def suggest(self, situations: Sequence[TextState]) -> list[list[str]]:
        return [possible_goals(situation) for situation in situations]


class Household(NamedTuple):
    """The known part of one household.

    Attributes:
        holding: The thing that is held, None if there is none.
        receptacles: All that have been seen, each with its room.
        visible: The things in view, each with its receptacle.
        achieved: Things that have been placed as suggested.
    """

    holding: str | None
    receptacles: Sequence[str]
    visible: Mapping[str, str]
    achieved: AbstractSet[str] = frozenset()

    @classmethod
    def of(cls, situation: TextState) -> "Household":
        held = (name for name, count in situation.items.items() if count)
        goals = (Goal.read(phrase) for phrase in situation.achieved)
        placed = frozenset(goal.thing for goal in goals if goal and goal.receptacle)
        sights, known = read_sights(situation.scene), read_known(situation.status)
        return cls(next(held, None), known, sights, placed)

    @property
    def is_placing(self) -> bool:
        return self.holding is not None and self.holding not in self.achieved


class HouseholdSuggester(Suggester):
    """Suggests things to pick up and places for them in a household: all not achieved yet.

    The rules of Housekeep's suggestions (Du et al. 2023, arXiv:2302.06692, section 4.2). An agent
    that holds a thing is told the receptacles seen so far that suit it; one with empty hands, the
    things in view that lie somewhere unsuitable. Here everything suits: the novelty suggester.
    """

    def suggest(self, situations: Sequence[TextState]) -> list[list[str]]:
        suggested = self.goals([Household.of(situation) for situation in situations])
        return [[goal.phrase for goal in goals] for goals in suggested]

    def goals(self, households: Sequence[Household]) -> list[list[Goal]]:
        candidates = [self.candidates(household) for household in households]
        self.prepare([goal for some in candidates for goal in some])
        return [
            [
                goal if household.is_placing else Goal(goal.thing)
                for goal in some
                if self.fits(goal, household.is_placing)
            ]
            for household, some in zip(households, candidates, strict=True)
        ]

    def candidates(self, household: Household) -> list[Goal]:
        if household.is_placing:
            return [Goal(str(household.holding), place) for place in household.receptacles]
        in_view = household.visible.items()
        return [Goal(*pair) for pair in in_view if pair[0] not in household.achieved]

    def prepare(self, goals: Sequence[Goal]) -> None:
        """Prepare the judgements of N households at once."""

    def fits(self, goal: Goal, is_placing: bool) -> bool:
        return True


class HouseholdOracle(HouseholdSuggester):
    def __init__(self, suitable: Mapping[str, Iterable[str]]) -> None:
        self._suitable = {thing: frozenset(places) for thing, places in suitable.items()}

    def fits(self, goal: Goal, is_placing: bool) -> bool:
        return (goal.receptacle in self._suitable.get(goal.thing, ())) == is_placing
