"""The oracle of Crafter: suggests whatever would succeed now, by the rules of the game."""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rewards.suggestions.suggester import RuleSuggester, Situation
from settings import Config
from utils.errors import UserError

NOTHING: Mapping[str, int] = {}
# What has an effect in some state and is no goal: nobody needs to be told to walk.
UNGUIDED = ("do nothing", "move left", "move right", "move up", "move down")


class Rule(NamedTuple):
    """When a goal can be reached.

    Attributes:
        goal: As it is suggested.
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

    def fits(self, scene: str, status: str) -> bool:
        """Return whether the goal can be reached from what is seen and felt, whatever is held."""
        if self.unseen and self.unseen in scene:
            return False
        return self.felt in status and all(word in scene for word in self.seen)

    def affords(self, items: Mapping[str, int]) -> bool:
        """Return whether the things that the goal needs are held."""
        return all(items.get(thing, 0) >= n for thing, n in self.needs.items())


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


def possible_goals(situation: Situation) -> list[str]:
    """Return the goals that can be reached from a situation, in the order of the rules."""
    fitting = _fitting(situation.scene, situation.status)
    held = situation.items
    return [rule.goal for rule in fitting if not rule.needs or rule.affords(held)]


@functools.lru_cache(maxsize=2**14)
def _fitting(scene: str, status: str) -> tuple[Rule, ...]:
    """Return the rules that fit what is seen and felt, which differs little from step to step."""
    return tuple(rule for rule in RULES if rule.fits(scene, status))


def knows(action_names: Sequence[str]) -> bool:
    """Return whether actions of these names are Crafter's, as far as one can see."""
    return not EFFECTIVE.isdisjoint(action_names)


class Oracle(RuleSuggester):
    """Suggests every goal whose rule holds (SimpleOracle of Du et al. 2023, arXiv:2302.06692).

    It does so whatever actions there are: with 27 of them it proposes *eat cow*, too.
    """

    @classmethod
    def configured(cls, config: Config, action_names: Sequence[str]) -> "Oracle":
        """Return the oracle for an environment of such actions.

        Raises:
            UserError: they are none of Crafter.
        """
        if not knows(action_names):
            raise UserError(
                f"suggester: the oracle knows the rules of Crafter alone, and {config.env} has "
                "other actions. Choose another suggester, or env=CrafterText-v0"
            )
        return cls()

    def suggest(self, situations: Sequence[Situation]) -> list[list[str]]:
        """Return what can be reached from each of N situations."""
        return [possible_goals(situation) for situation in situations]
