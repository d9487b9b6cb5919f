"""Crafter's pictures as 9 x 9 tiles: what each of them shows, and what follows from that.

The upper seven rows show the map around the player, the lower two how many of each item are held.
"""

from typing import NamedTuple

import numpy as np

from envs.crafter.drawing import GRID, LOOKS, SLEEPER
from envs.crafter.world import (
    DIRECTIONS,
    ITEMS,
    MOST,
    N_MATERIALS,
    N_VITALS,
    NAMES,
    OUTSIDE,
    SIDE,
    VIEW,
    World,
)

# What a tile can show: a thing or material, one of NAMES; the player, in four directions or
# asleep; so many of an item.
FIRST_LOOK = len(NAMES)
FIRST_AMOUNT = FIRST_LOOK + SLEEPER + 1
N_KINDS = FIRST_AMOUNT + MOST + 1
KINDS = (*NAMES, *LOOKS[: SLEEPER + 1], *map(str, range(MOST + 1)))

CENTRE = (VIEW[0] // 2, VIEW[1] // 2)  # where the player is
LEAST = 0.5  # probability from which something is said to be in view


class Facts(NamedTuple):
    """What there is to say of R players.

    Attributes:
        sight: Names in view as bits, the material and the kind that are faced, held items and
            vitals below nine as bits: see `step.look`.  [R, 5] int64
        items: How many of each item.  [R, 16]
    """

    sight: np.ndarray
    items: np.ndarray


def tiles_of(worlds: np.ndarray) -> np.ndarray:
    """Return what each tile shows.

    Args:
        worlds: [R] of WORLD.

    Returns:
        Numbers of KINDS, row before column.  [R, 9, 9] uint8
    """
    tiles = np.full((len(worlds), GRID, GRID), FIRST_AMOUNT, np.uint8)
    for row, world in enumerate(worlds):
        tiles[row, : VIEW[1]] = _map_tiles(world).T
        tiles[row, VIEW[1] :].reshape(-1)[: len(ITEMS)] += world["inventory"].astype(np.uint8)
    return tiles


def _map_tiles(world: World) -> np.ndarray:
    """Return what the cells in view show.  [9, 7]"""
    x, y = int(world["x"][0]), int(world["y"][0])
    across, down = (np.arange(n) - n // 2 for n in VIEW)
    columns, rows = x + across[:, None], y + down
    is_inside = (columns >= 0) & (columns < SIDE) & (rows >= 0) & (rows < SIDE)
    places = np.clip(columns, 0, SIDE - 1), np.clip(rows, 0, SIDE - 1)
    things = world["standing"][places]
    seen = np.where(things > 0, world["kind"][things - 1], world["materials"][places])
    seen = np.where(is_inside, seen, OUTSIDE)
    facing = [int(world["facing_x"][0]), int(world["facing_y"][0])]
    look = SLEEPER if world["sleeping"] else DIRECTIONS.tolist().index(facing)
    seen[CENTRE] = FIRST_LOOK + look
    return seen


def facts_of(probabilities: np.ndarray) -> Facts:
    """Return what follows from how likely each tile shows what.

    Something is in view if the probability that any cell shows it is at least a half, cells being
    taken as independent. A sleeper is drawn alike whichever way it faces, so that what it faces
    is what stands around it most.

    Args:
        probabilities: Of each of KINDS at each tile, row before column.  [R, K, 9, 9]
    """
    cells = probabilities[:, :FIRST_LOOK, : VIEW[1]]
    counters = probabilities[:, FIRST_AMOUNT:, VIEW[1] :].reshape(len(cells), MOST + 1, -1)
    items = counters.argmax(1)[:, : len(ITEMS)]
    sight = np.zeros((len(cells), 5), np.int64)
    sight[:, 0] = _names_in_view(cells) @ (1 << np.arange(FIRST_LOOK))
    faced = _faced(probabilities)
    sight[:, 1] = np.where(faced < N_MATERIALS, faced, OUTSIDE)
    sight[:, 2] = np.where(faced < N_MATERIALS, 0, faced)
    sight[:, 0] |= 1 << faced
    sight[:, 3] = (items[:, N_VITALS:] > 0) @ (1 << np.arange(len(ITEMS) - N_VITALS))
    sight[:, 4] = (items[:, :N_VITALS] < MOST) @ (1 << np.arange(N_VITALS))
    return Facts(sight, items)


def _names_in_view(cells: np.ndarray) -> np.ndarray:
    """Return which of NAMES are in view, given probabilities [R, 19, 7, 9].  [R, 19] bool"""
    others = 1 - cells.clip(0, 1)
    others[:, :, CENTRE[1], CENTRE[0]] = 1
    return 1 - others.prod((2, 3)) >= LEAST


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
