"""Labelled pictures of Crafter's tiles, and the accuracy of a reader of such pictures.

Worlds are played so that much comes into view: they differ in their maps, in the player's place,
possessions and needs, and in the time of day, a third of them dark.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from envs.crafter import GOOD_ACTIONS, TEXT_LENGTH
from envs.crafter.render import DARK, GRID, draw, look_of
from envs.crafter.rules import DAY, daylight_of, rules_of_text, step_worlds
from envs.crafter.sentences import (
    CENTRE,
    FIRST_AMOUNT,
    FIRST_LOOK,
    UNSEEN,
    UNTARGETED,
    Facts,
    facts_of_tiles,
    facts_of_worlds,
    said,
    shown_at,
    text_commands,
)
from envs.crafter.tile_reader import TileReader
from envs.crafter.vector import MOST_SEED, SIDE, CrafterTextVectorEnv
from envs.crafter.world import (
    ARROW,
    GRASS,
    HEALTH,
    ITEMS,
    MOST,
    N_MATERIALS,
    N_VITALS,
    NAMES,
    PATH,
    PLAYER,
    SAND,
    SKELETON,
    VIEW,
    WATER,
    WORLD,
    add_creature,
    compiled,
    move,
    new_world,
)
from envs.crafter.world import SIDE as SIDE_OF_MAP

# The deeds with faced things.
DEALING = ("eat plant", "attack ", "chop ", "mine ", "drink ")
DEEDS = {phrase.split()[1]: phrase for phrase in GOOD_ACTIONS if phrase.startswith(DEALING)}
BUILDING = tuple(phrase for phrase in GOOD_ACTIONS if phrase.startswith(("place ", "make ")))
TURNS, DEALS, BUILDS, SLEEPS = 0.2, 0.4, 0.1, 0.01  # shares of steps

STEPS_BETWEEN = 6  # two pictures of a world
PICTURES_OF_A_PLACE = 4  # before the player is somewhere else
PLACES_OF_A_WORLD = 10  # before there is another world
HELD, LACKS = 0.4, 0.5  # probabilities of an item and of a need
ASLEEP, STREWN = 0.1, 0.5  # of a place where the player sleeps; where more things are put into view
N_STREWN = 8

# Episodes held out, to tell how often a reader is right.
SEED = 1_000_000  # of the first environment
N_ENVS = 32  # half of them play at random, half with some sense
PARTS = ("faced", "scene", "inventory", "amounts", "status", "caption")
SAYABLE = [number for number in range(len(NAMES)) if number not in UNSEEN]


class ScriptedPlayer:
    """Plays N worlds: walks about, uses the thing it faces, builds, and sleeps when it can."""

    def __init__(self, n_worlds: int, generator: np.random.Generator) -> None:
        self._generator = generator
        self._ways = generator.integers(4, size=n_worlds)
        self._moves = _numbers(("move left", "move right", "move up", "move down"))
        self._building = _numbers(BUILDING)
        self._deeds = np.full(len(NAMES), GOOD_ACTIONS.index("do nothing"))
        self._deeds[[NAMES.index(name) for name in DEEDS]] = _numbers(DEEDS.values())

    def actions(self, worlds: np.ndarray) -> np.ndarray:
        """Return the next actions in worlds [N] of WORLD, as numbers of GOOD_ACTIONS.  [N]"""
        n_worlds, generator = len(worlds), self._generator
        sight = facts_of_worlds(worlds).sight
        faced = np.where(sight[:, 2] > 0, sight[:, 2], sight[:, 1])
        turns = generator.random(n_worlds) < TURNS
        self._ways = np.where(turns, generator.integers(4, size=n_worlds), self._ways)
        chance = generator.random(n_worlds)
        actions = self._moves[self._ways]
        actions[chance < DEALS] = self._deeds[faced[chance < DEALS]]
        builds = (chance >= DEALS) & (chance < DEALS + BUILDS)
        actions[builds] = generator.choice(self._building, builds.sum())
        actions[chance >= 1 - SLEEPS] = GOOD_ACTIONS.index("sleep")
        return actions


@dataclass(frozen=True)
class TiledFrameBatches:
    """Batches of pictures with the contents of their tiles; the same each time around."""

    seed: int
    n_batches: int
    batch_size: int = 64

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield pictures [B, 3, 64, 64] uint8 and numbers of sentences.KINDS [B, 9, 9]."""
        generator = np.random.default_rng(self.seed)
        worlds, rows = np.zeros(self.batch_size, WORLD), np.arange(self.batch_size)
        player, noise = ScriptedPlayer(self.batch_size, generator), [generator] * self.batch_size
        for number in range(self.n_batches):
            # Worlds are renewed by turns, so that a batch holds all stages.
            stages = (number + rows) % (PICTURES_OF_A_PLACE * PLACES_OF_A_WORLD)
            is_first = number == 0
            for row in np.flatnonzero(is_first | (stages == 0)):
                new_world(worlds, int(row), int(generator.integers(MOST_SEED)))
            for row in np.flatnonzero(is_first | (stages % PICTURES_OF_A_PLACE == 0)):
                _scatter(worlds[row], generator)
            _play(worlds, player)
            yield draw(worlds, rows, SIDE, noise), tiles_of(worlds)


def _scatter(world: np.void, generator: np.random.Generator) -> None:
    ground = generator.choice([GRASS, SAND, PATH])
    free = (world["materials"] == ground) & (world["standing"] == 0)
    if free.any():
        places = np.argwhere(free)
        move(world, 0, *places[generator.integers(len(places))].tolist())
    if generator.random() < STREWN:
        _strew(world, generator)
    is_vital = np.arange(len(ITEMS)) < N_VITALS
    amounts = generator.integers(1, MOST + 1, len(ITEMS))
    changed = generator.random(len(ITEMS)) < np.where(is_vital, LACKS, HELD)
    world["inventory"] = np.where(changed, amounts, np.where(is_vital, MOST, 0))
    world["steps"] = generator.integers(DAY)
    world["sleeping"] = generator.random() < ASLEEP


def _strew(world: np.void, generator: np.random.Generator) -> None:
    x, y = int(world["x"][0]), int(world["y"][0])
    reach = [side // 2 for side in VIEW]
    for number in generator.integers(WATER, len(NAMES), N_STREWN).tolist():
        right, down = (int(generator.integers(-most, most + 1)) for most in reach)
        place = x + right, y + down
        if not all(0 <= each < SIDE_OF_MAP for each in place) or world["standing"][place]:
            continue
        if number < N_MATERIALS:
            world["materials"][place] = number
        elif number not in (PLAYER, ARROW):
            world["materials"][place] = PATH if number == SKELETON else GRASS
            add_creature(world, number, *place)


def _play(worlds: np.ndarray, player: ScriptedPlayer) -> None:
    commands, rules = text_commands(GOOD_ACTIONS), rules_of_text()
    changed = np.zeros(len(worlds), bool)
    for _ in range(STEPS_BETWEEN):
        light = daylight_of(worlds["steps"] + 1)
        step_worlds(worlds, commands[player.actions(worlds)], light, rules, changed)
        health = worlds["inventory"][:, HEALTH]
        worlds["inventory"][:, HEALTH] = np.maximum(health, 1)


def _numbers(phrases: Iterable[str]) -> np.ndarray:
    return np.array([GOOD_ACTIONS.index(phrase) for phrase in phrases])


def tiles_of(worlds: np.ndarray) -> np.ndarray:
    """Return the content of each tile of worlds [R], as numbers of KINDS.  [R, 9, 9] uint8"""
    tiles = np.full((len(worlds), GRID, GRID), FIRST_AMOUNT, np.uint8)
    _fill_maps(worlds, tiles)
    first_item = GRID * VIEW[1]
    amounts = tiles.reshape(-1, GRID * GRID)[:, first_item : first_item + len(ITEMS)]  # a view
    amounts += worlds["inventory"].astype(np.uint8)
    return tiles


@compiled
def _fill_maps(worlds: np.ndarray, tiles: np.ndarray) -> None:
    for row in range(len(worlds)):
        world = worlds[row]
        left, top = world.x[0] - VIEW[0] // 2, world.y[0] - VIEW[1] // 2
        for i in range(VIEW[0]):
            for j in range(VIEW[1]):
                tiles[row, j, i] = shown_at(world, left + i, top + j)
        tiles[row, CENTRE[1], CENTRE[0]] = FIRST_LOOK + look_of(world, 0)


class Accuracy(NamedTuple):
    """The accuracy of a reader in M pictures.

    Attributes:
        shares: Of right readings, by time ("all", "day", "dark", "asleep") and by subject;
            "pictures" is the share of pictures.
        names: By name of a thing or material: the share of pictures that show it, the reader's
            recall and its precision; nan where there are none.
    """

    shares: dict[str, dict[str, float]]
    names: dict[str, tuple[float, float, float]]


def accuracy(reader: TileReader, n_steps: int = TEXT_LENGTH, n_envs: int = N_ENVS) -> Accuracy:
    """Return the accuracy of a reader of pictures, in so many steps; 400 is an episode."""
    env = CrafterTextVectorEnv(
        n_envs, SEED, TEXT_LENGTH, GOOD_ACTIONS, is_grey=False, use_text=False
    )
    generator = np.random.default_rng(SEED)
    player, at_random = ScriptedPlayer(n_envs, generator), np.arange(n_envs) < n_envs // 2
    shown, _ = env.reset()
    found = []
    for _ in range(n_steps):
        worlds = env.worlds
        light = np.where(worlds["daylight"] < DARK, 1, 0)
        when = np.where(worlds["sleeping"], 2, light)
        found.append((facts_of_worlds(worlds), facts_of_tiles(reader(shown["image"])), when))
        guesses = generator.integers(len(GOOD_ACTIONS), size=n_envs)
        shown, *_ = env.step(np.where(at_random, guesses, player.actions(worlds)))
    there, read, moments = (list(part) for part in zip(*found, strict=True))
    return _compared(_joined(there), _joined(read), np.concatenate(moments))


def _joined(parts: list[Facts]) -> Facts:
    return Facts(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _compared(there: Facts, read: Facts, moments: np.ndarray) -> Accuracy:
    right = _right(there, read)
    groups = {"all": moments >= 0}
    groups |= {name: moments == number for number, name in enumerate(("day", "dark", "asleep"))}
    shares = {
        name: {"pictures": float(chosen.mean())}
        | {part: float(each[chosen].mean()) for part, each in right.items() if chosen.any()}
        for name, chosen in groups.items()
    }
    names = {NAMES[number]: _of_name(number, there, read) for number in SAYABLE}
    return Accuracy(shares, names)


def _of_name(number: int, there: Facts, read: Facts) -> tuple[float, float, float]:
    true, said = (facts.sight[:, 0] >> number & 1 > 0 for facts in (there, read))
    found, right = (
        float(other[each].mean()) if each.any() else math.nan
        for each, other in ((true, said), (said, true))
    )
    return float(true.mean()), found, right


def _right(there: Facts, read: Facts) -> dict[str, np.ndarray]:
    one, other = said(there), said(read)
    right = {part: one[part] == other[part] for part in PARTS if part in one}
    right["faced"] = _faced(there) == _faced(read)
    right["amounts"] = (there.items[:, N_VITALS:] == read.items[:, N_VITALS:]).all(1)
    return {part: right[part] for part in PARTS}


def _faced(facts: Facts) -> np.ndarray:
    """Return the number of the faced thing in the sentences, 0 for nothing.  [M]"""
    material, kind = facts.sight[:, 1], facts.sight[:, 2]
    return np.where(kind > 0, kind, np.where(np.isin(material, UNTARGETED), 0, material))
