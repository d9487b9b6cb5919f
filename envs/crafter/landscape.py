"""New worlds: landscape, ores, caves and the first creatures, those of Crafter 1.8.3 for a seed."""

import math

import numpy as np
from opensimplex import internals

from envs.crafter.compiled import compiled
from envs.crafter.creatures import add_creature
from envs.crafter.world import (
    COAL,
    COW,
    DIAMOND,
    GRASS,
    IRON,
    LAVA,
    PATH,
    SAND,
    SIDE,
    SKELETON,
    STONE,
    TREE,
    WATER,
    ZOMBIE,
    World,
    begin_world,
    is_walkable,
    uniform,
)

Tables = tuple[np.ndarray, np.ndarray]  # of opensimplex, for one seed
noise3 = internals._noise3


def new_world(worlds: np.ndarray, row: int, seed: int) -> None:
    """Make world `row` of worlds [N] of WORLD the one of a seed."""
    tables = internals._init(begin_world(worlds, row, seed))
    _fill(worlds[row], tables)


@compiled
def _fill(world: World, tables: Tables) -> None:
    """Lay out the map, then put creatures on it."""
    tunnels = np.zeros((SIDE, SIDE), np.bool_)
    for x in range(SIDE):
        for y in range(SIDE):
            world.materials[x, y] = _material(world, x, y, tunnels, tables)
    for x in range(SIDE):
        for y in range(SIDE):
            _inhabit(world, x, y, tunnels)


@compiled
def _noise(tables: Tables, x: float, y: float, z: float, size: float) -> float:
    """Return the noise of one size at a cell, in layer z.

    All are written as floats: numba would compile it anew for every other whole number.
    """
    return noise3(x / size, y / size, z, tables[0], tables[1])


@compiled
def _material(world: World, x: int, y: int, tunnels: np.ndarray, tables: Tables) -> int:
    """Return what a cell is."""
    away = math.sqrt((x - world.x[0]) ** 2 + (y - world.y[0]) ** 2)
    start = 4 - away + 2 * _noise(tables, x, y, 8.0, 3.0)
    start = 1 / (1 + math.exp(-start))
    water = (
        _noise(tables, x, y, 3.0, 15.0) + 0.15 * _noise(tables, x, y, 3.0, 5.0) + 0.1 - 2 * start
    )
    mountain = (_noise(tables, x, y, 0.0, 15.0) + 0.3 * _noise(tables, x, y, 0.0, 5.0)) / 1.3
    mountain -= 4 * start + 0.3 * water
    if start > 0.5:
        return GRASS
    if mountain > 0.15:
        return _rock(world, x, y, mountain, tunnels, tables)
    if 0.25 < water <= 0.35 and _noise(tables, x, y, 4.0, 9.0) > -0.2:
        return SAND
    if water > 0.3:
        return WATER
    if _noise(tables, x, y, 5.0, 7.0) > 0 and uniform(world) > 0.8:
        return TREE
    return GRASS


@compiled
def _rock(
    world: World, x: int, y: int, mountain: float, tunnels: np.ndarray, tables: Tables
) -> int:
    """Return what a cell in the mountains is: a cave, a tunnel, an ore, lava or stone."""
    if _noise(tables, x, y, 6.0, 7.0) > 0.15 and mountain > 0.3:
        return PATH
    is_level = _noise(tables, 2.0 * x, y / 5, 7.0, 3.0) > 0.4
    if is_level or _noise(tables, x / 5, 2.0 * y, 7.0, 3.0) > 0.4:
        tunnels[x, y] = True
        return PATH
    if _noise(tables, x, y, 1.0, 8.0) > 0 and uniform(world) > 0.85:
        return COAL
    if _noise(tables, x, y, 2.0, 6.0) > 0.4 and uniform(world) > 0.75:
        return IRON
    if mountain > 0.18 and uniform(world) > 0.994:
        return DIAMOND
    if mountain > 0.3 and _noise(tables, x, y, 6.0, 5.0) > 0.35:
        return LAVA
    return STONE


@compiled
def _inhabit(world: World, x: int, y: int, tunnels: np.ndarray) -> None:
    """Put a creature on a cell, or none."""
    material = world.materials[x, y]
    if not is_walkable(material):
        return
    away = math.sqrt((x - world.x[0]) ** 2 + (y - world.y[0]) ** 2)
    if away > 3 and material == GRASS and uniform(world) > 0.985:
        add_creature(world, COW, x, y)
    elif away > 10 and uniform(world) > 0.993:
        add_creature(world, ZOMBIE, x, y)
    elif material == PATH and tunnels[x, y] and uniform(world) > 0.95:
        add_creature(world, SKELETON, x, y)
