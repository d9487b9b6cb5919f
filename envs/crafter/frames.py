"""Pictures of Crafter with what their tiles show, from worlds played so that much comes into view.

The worlds differ in their maps, in where the player stands, in what it holds and needs, and in the
time of day, a third of them dark.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from envs.crafter.actions import text_commands
from envs.crafter.creatures import add_creature
from envs.crafter.drawing import draw
from envs.crafter.landscape import new_world
from envs.crafter.package import rules_of_text
from envs.crafter.phrases import GOOD_ACTIONS
from envs.crafter.step import DAY, daylight_of, look, step_worlds
from envs.crafter.tiles import tiles_of
from envs.crafter.vector import MOST_SEED, SIDE
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
    move,
)
from envs.crafter.world import SIDE as SIDE_OF_MAP

# What is done about what is faced.
DEEDS = {
    "tree": "chop tree",
    "grass": "chop grass",
    "water": "drink water",
    "stone": "mine stone",
    "coal": "mine coal",
    "iron": "mine iron",
    "diamond": "mine diamond",
    "zombie": "attack zombie",
    "skeleton": "attack skeleton",
    "cow": "attack cow",
    "plant": "eat plant",
}
BUILDING = tuple(phrase for phrase in GOOD_ACTIONS if phrase.startswith(("place ", "make ")))
TURNS, DEALS, BUILDS, SLEEPS = 0.2, 0.4, 0.1, 0.01  # shares of steps

STEPS_BETWEEN = 6  # two pictures of a world
PICTURES_OF_A_PLACE = 4  # before the player is somewhere else
PLACES_OF_A_WORLD = 10  # before there is another world
HELD, LACKS = 0.4, 0.5  # probabilities of an item and of a need
ASLEEP, STREWN = 0.1, 0.5  # of a place where the player sleeps; where more things are put into view
N_STREWN = 8


class Player:
    """Plays N worlds: walks about, deals with what it faces, builds, and sleeps when it can.

    Args:
        n_worlds: N.
        generator: Of all that it chooses.
    """

    def __init__(self, n_worlds: int, generator: np.random.Generator) -> None:
        self._generator = generator
        self._ways = generator.integers(4, size=n_worlds)
        self._moves = _numbers(("move left", "move right", "move up", "move down"))
        self._building = _numbers(BUILDING)
        self._deeds = np.full(len(NAMES), GOOD_ACTIONS.index("do nothing"))
        self._deeds[[NAMES.index(name) for name in DEEDS]] = _numbers(DEEDS.values())

    def actions(self, worlds: np.ndarray) -> np.ndarray:
        """Return what to do next, as numbers of GOOD_ACTIONS.

        Args:
            worlds: [N] of WORLD.
        """
        n_worlds, generator = len(worlds), self._generator
        sight = np.empty((n_worlds, 5), np.int64)
        look(worlds, sight)
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
    """Pictures of played worlds with what their tiles show, in batches; the same each time around.

    Attributes:
        seed: Decides all of them.
        n_batches: How many there are.
        batch_size: B, worlds that are played side by side.
    """

    seed: int
    n_batches: int
    batch_size: int = 64

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield pictures [B, 3, 64, 64] uint8 and numbers of tiles.KINDS [B, 9, 9]."""
        generator = np.random.default_rng(self.seed)
        worlds, rows = np.zeros(self.batch_size, WORLD), np.arange(self.batch_size)
        player, noise = Player(self.batch_size, generator), [generator] * self.batch_size
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
    """Bring a player somewhere else, at another time, with other things and needs."""
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
    """Put things into view that are rarely there."""
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


def _play(worlds: np.ndarray, player: Player) -> None:
    """Take a few steps in worlds [B]; nobody dies."""
    commands, rules = text_commands(GOOD_ACTIONS), rules_of_text()
    changed = np.zeros(len(worlds), bool)
    for _ in range(STEPS_BETWEEN):
        light = daylight_of(worlds["steps"] + 1)
        step_worlds(worlds, commands[player.actions(worlds)], light, rules, changed)
        health = worlds["inventory"][:, HEALTH]
        worlds["inventory"][:, HEALTH] = np.maximum(health, 1)


def _numbers(phrases: Iterable[str]) -> np.ndarray:
    return np.array([GOOD_ACTIONS.index(phrase) for phrase in phrases])
