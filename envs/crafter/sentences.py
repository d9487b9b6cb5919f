"""CrafterText's phrases for actions; sentences on a player's view, possessions and needs.

The words are those of Du et al. (2023, arXiv:2302.06692), their slips included: a crafting table is
called one where it is seen and "table" where it is faced, held items keep their underscores.

A picture is 9 x 9 tiles: the upper seven rows show the map around the player, the lower two how
many of each item are held.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from envs.crafter.render import LOOKS, SLEEPER
from envs.crafter.rules import COLLECT, EAT, FAIL, GAME_COMMANDS, HIT, PLACE, PLACES, WAIT
from envs.crafter.world import (
    ACHIEVEMENTS,
    ARROW,
    COW,
    DIRECTIONS,
    ITEMS,
    MOST,
    N_MATERIALS,
    N_VITALS,
    NAMES,
    OUTSIDE,
    PATH,
    PLANT,
    PLAYER,
    SAND,
    SKELETON,
    VIEW,
    WATER,
    ZOMBIE,
    World,
    compiled,
    kind_at,
    material_at,
    target,
)
from utils.files import object_array

HELD_NAMES = ("plant", *ITEMS[N_VITALS + 1 :])  # a sapling is a plant to be
NEEDS = ("hurt", "hungry", "thirsty", "sleepy")
UNSEEN = (OUTSIDE, SAND, PLAYER, ARROW)
UNTARGETED = (OUTSIDE, PATH, SAND, NAMES.index("lava"))
MOST_LETTERS = 600  # of the three sentences together; the longest has 541

# The contents of a tile: a thing or material, one of NAMES; the player, in four directions or
# asleep; so many of an item.
FIRST_LOOK = len(NAMES)
FIRST_AMOUNT = FIRST_LOOK + SLEEPER + 1
N_KINDS = FIRST_AMOUNT + MOST + 1
KINDS = (*NAMES, *LOOKS[: SLEEPER + 1], *map(str, range(MOST + 1)))
CENTRE = (VIEW[0] // 2, VIEW[1] // 2)  # where the player is
LEAST = 0.5  # probability from which something is said to be in view
# The command of each phrase and its object (rules.py); a table is a crafting table there.
TEXT_COMMANDS = (
    {
        name.replace("_", " ").replace("table", "crafting table"): command
        for name, command in GAME_COMMANDS.items()
    }
    | {"do nothing": (WAIT, 0), "eat plant": (EAT, PLANT), "eat cow": (HIT, COW)}
    | {f"attack {NAMES[kind]}": (HIT, kind) for kind in (ZOMBIE, SKELETON, COW)}
    | {f"chop {name}": (COLLECT, NAMES.index(name)) for name in ("tree", "grass")}
    | {
        f"mine {name}": (COLLECT, NAMES.index(name))
        for name in ("stone", "coal", "iron", "diamond")
    }
    | {"drink water": (COLLECT, WATER), "make crafting table": (PLACE, PLACES.index("table"))}
)


def text_commands(phrases: Sequence[str]) -> np.ndarray:
    """Return the command of each phrase, and its object.  [A, 2]"""
    return np.array([TEXT_COMMANDS.get(phrase, (FAIL, 0)) for phrase in phrases])


def text_nouns(phrases: Sequence[str]) -> np.ndarray:
    """Return the material, the kind and the item that each phrase names, -1 for none.  [A, 3]"""
    nouns = np.full((len(phrases), 3), -1)
    for row, phrase in enumerate(phrases):
        noun = phrase.partition(" ")[2]
        if noun in NAMES:
            number = NAMES.index(noun)
            nouns[row, int(number >= N_MATERIALS)] = number
        if noun.replace(" ", "_") in ITEMS:
            nouns[row, 2] = ITEMS.index(noun.replace(" ", "_"))
    return nouns


class Facts(NamedTuple):
    """The content of the sentences on R players.

    Attributes:
        sight: Names in view as bits, the material and the kind that are faced, held items and
            vitals below nine as bits: see `look`.  [R, 5] int64
        items: How many of each item.  [R, 16]
    """

    sight: np.ndarray
    items: np.ndarray


def facts_of_worlds(worlds: np.ndarray) -> Facts:
    sight = np.empty((len(worlds), 5), np.int64)
    look(worlds, sight)
    return Facts(sight, worlds["inventory"].astype(np.int64))


def facts_of_tiles(probabilities: np.ndarray) -> Facts:
    """Return the facts that follow from probabilities of KINDS at each tile.  [R, K, 9, 9]

    Something is in view if the probability that any cell shows it is at least a half, cells being
    taken as independent. A sleeper is drawn alike in any direction, so it is taken to face the name
    that is most likely around it.
    """
    cells = probabilities[:, :FIRST_LOOK, : VIEW[1]]
    counters = probabilities[:, FIRST_AMOUNT:, VIEW[1] :].reshape(len(cells), MOST + 1, -1)
    items = counters.argmax(1)[:, : len(ITEMS)]
    sight = np.zeros((len(cells), 5), np.int64)
    others = 1 - cells.clip(0, 1)
    others[:, :, CENTRE[1], CENTRE[0]] = 1  # the player itself
    is_in_view = 1 - others.prod((2, 3)) >= LEAST  # [R, 19]
    sight[:, 0] = is_in_view @ (1 << np.arange(FIRST_LOOK))
    faced = _faced(probabilities)
    sight[:, 1] = np.where(faced < N_MATERIALS, faced, OUTSIDE)
    sight[:, 2] = np.where(faced < N_MATERIALS, 0, faced)
    sight[:, 0] |= 1 << faced
    sight[:, 3] = (items[:, N_VITALS:] > 0) @ (1 << np.arange(len(ITEMS) - N_VITALS))
    sight[:, 4] = (items[:, :N_VITALS] < MOST) @ (1 << np.arange(N_VITALS))
    return Facts(sight, items)


def _faced(probabilities: np.ndarray) -> np.ndarray:
    """Return the number of NAMES that each player most likely faces.  [R]

        P(name) = sum over ways of P(way) P(name at the cell of that way)

    A sleeper's probability is shared by the four ways.
    """
    column, row = CENTRE
    looks = probabilities[:, FIRST_LOOK:FIRST_AMOUNT, row, column]
    ways = looks[:, :SLEEPER] + looks[:, SLEEPER:] / len(DIRECTIONS)  # [R, 4]
    steps = DIRECTIONS.T
    cells = probabilities[:, :FIRST_LOOK, row + steps[1], column + steps[0]]  # [R, 19, 4]
    return (cells * ways[:, None]).sum(2).argmax(1)


@compiled
def shown_at(world: World, x: int, y: int) -> int:
    kind = kind_at(world, x, y)
    return kind if kind else material_at(world, x, y)


@compiled
def look(worlds: np.ndarray, facts: np.ndarray) -> None:
    """Fill facts [N, 5] int64 on the players of worlds [N] of WORLD.

    They are: the names in view, a bit for each of NAMES; the material that is faced; the kind that
    is faced, 0 for none; a bit for each item held; a bit for each vital below nine.
    """
    for row in range(len(worlds)):
        world, seen, held = worlds[row], 0, 0
        left, top = world.x[0] - VIEW[0] // 2, world.y[0] - VIEW[1] // 2
        for i in range(VIEW[0]):
            for j in range(VIEW[1]):
                seen |= 1 << shown_at(world, left + i, top + j)
        x, y = target(world)
        for item in range(len(ITEMS)):
            limit = MOST if item < N_VITALS else 1
            held |= int(world.inventory[item] >= limit) << item
        facts[row, 0] = seen
        facts[row, 1], facts[row, 2] = material_at(world, x, y), kind_at(world, x, y)
        facts[row, 3] = held >> N_VITALS
        facts[row, 4] = ~held & ((1 << N_VITALS) - 1)


@compiled
def look_around_target(worlds: np.ndarray, around: np.ndarray) -> None:
    """Fill around [N, 3, 3] uint8 with numbers of NAMES on the nine cells around the faced one."""
    for row in range(len(worlds)):
        x, y = target(worlds[row])
        for i in range(3):
            for j in range(3):
                around[row, i, j] = shown_at(worlds[row], x + i - 1, y + j - 1)


@functools.cache
def scene_sentence(seen: int, material: int, kind: int) -> str:
    """Return the sentence on the names in view, bits of `seen`, and on the faced thing."""
    numbers = [n for n in range(len(NAMES)) if seen >> n & 1 and n not in UNSEEN]
    names = sorted({"table": "crafting table"}.get(NAMES[n], NAMES[n]) for n in numbers)
    if len(names) > 1:
        names[-1] = f"and {names[-1]}"
    sentence = f"you see {', '.join(names)}."
    if kind or material not in UNTARGETED:
        sentence += f" you are targeting {NAMES[kind or material]}."
    return sentence


@functools.cache
def inventory_sentence(held: int) -> str:
    """Return the sentence on held items, given a bit for each; nothing if there are none."""
    names = [name for n, name in enumerate(HELD_NAMES) if held >> n & 1]
    return f"you have in your inventory {', '.join(names)}." if names else ""


@functools.cache
def status_sentence(needs: int) -> str:
    """Return how the player feels, given a bit for each vital below nine; nothing if well."""
    names = [name for n, name in enumerate(NEEDS) if needs >> n & 1]
    return f"you feel {', '.join(names)}." if names else ""


@functools.cache
def names_around(cells: bytes) -> tuple[tuple[str | None, ...], ...]:
    """Return the names of nine cells [3, 3] of numbers; None off the map."""
    names = [NAMES[number] if number else None for number in cells]
    return tuple(tuple(names[3 * i : 3 * i + 3]) for i in range(3))


@functools.cache
def unlocked_names(achievements: bytes) -> tuple[str, ...]:
    return tuple(name for name, has in zip(ACHIEVEMENTS, achievements, strict=True) if has)


def said(facts: Facts) -> dict[str, np.ndarray]:
    """Return the sentences on R players.

    They are "scene", "inventory" and "status", and all three as one "caption"; "items" are numbers
    of held things, by name.  [R] of objects each
    """
    rows = facts.sight.tolist()
    parts: dict[str, list[object]] = {
        "scene": [scene_sentence(*row[:3]) for row in rows],
        "inventory": [inventory_sentence(row[3]) for row in rows],
        "status": [status_sentence(row[4]) for row in rows],
    }
    sentences = zip(*parts.values(), strict=True)
    parts["caption"] = [" ".join(filter(None, each)) for each in sentences]
    parts["items"] = [
        {name: n for name, n in zip(ITEMS[N_VITALS:], amounts, strict=True) if n}
        for amounts in facts.items[:, N_VITALS:].tolist()
    ]
    return {name: object_array(values) for name, values in parts.items()}
