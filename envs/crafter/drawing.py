"""What a player sees, drawn from a table of tiles: the pixels of Crafter 1.8.3, faster.

A cell's pixels depend on what it is, on what stands there and on how light it is. So every pair of
ground and thing is drawn once by the package, and once as it looks without colour; a frame mixes
the two. In the dark there is noise over it, from generators of its own.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance

from envs.crafter import package
from envs.crafter.compiled import compiled
from envs.crafter.creatures import RIPE
from envs.crafter.world import (
    ARROW,
    COW,
    ITEMS,
    N_MATERIALS,
    NAMES,
    OUTSIDE,
    PLANT,
    PLAYER,
    VIEW,
    World,
    material_at,
    thing_at,
)

GRID = 9  # cells of the picture: seven rows of the map, two of items
DARK = 0.5  # daylight below which there is noise
NOISE = (32, 127)
COLOUR_AT_NIGHT = 0.4
NIGHT_TINT, SLEEP_TINT = (0, 16, 64), (0, 0, 16)
BEYOND = 127  # grey off the map

# What can stand on a cell, as it looks: the player and arrows in four directions.
LOOKS = (
    *("player-left", "player-right", "player-up", "player-down", "player-sleep"),
    *("arrow-left", "arrow-right", "arrow-up", "arrow-down"),
    *("cow", "zombie", "skeleton", "plant", "plant-ripe"),
)
SLEEPER, FIRST_ARROW, FIRST_CREATURE, YOUNG, OLD = 4, 5, 9, 12, 13


class Tiles(NamedTuple):
    """Everything a picture is made of, channel first.

    Attributes:
        bright: Cells by their ground and 1 + what stands there.  [13, 15, 3, U, U] uint8
        pale: The same with little colour.  [13, 15, 3, U, U] uint8
        items: Cells by item and number.  [16, 10, 3, U, U] uint8
        vignette: How much noise there is at night, [x, y].  [9U, 7U] float64
        blends: A colour value of a pixel of some greyness, with little colour.  [256, 256] uint8
    """

    bright: np.ndarray
    pale: np.ndarray
    items: np.ndarray
    vignette: np.ndarray
    blends: np.ndarray


@functools.cache
def tiles(side: int) -> Tiles:
    """Return the tiles of pictures with sides of so many pixels."""
    unit = side // GRID
    drawn = package.textures()
    bright = np.empty((N_MATERIALS, 1 + len(LOOKS), unit, unit, 3), np.uint8)
    for ground, look in np.ndindex(bright.shape[:2]):
        cell = bright[ground, look]
        cell[:] = BEYOND
        if ground != OUTSIDE:
            package.draw(cell, drawn.get(NAMES[ground], (unit, unit)))
        if look:
            package.draw_over(cell, drawn.get(LOOKS[look - 1], (unit, unit)))
    vignette = package.vignette((VIEW[0] * unit, VIEW[1] * unit))
    pale = _pale(bright.reshape(-1, unit, 3)).reshape(bright.shape)
    items = package.item_tiles(unit)
    return Tiles(_upright(bright), _upright(pale), _upright(items), vignette, _blends())


def _upright(cells: np.ndarray) -> np.ndarray:
    """Return cells [..., x, y, 3] as pictures [..., 3, y, x]."""
    return np.ascontiguousarray(np.moveaxis(cells, -1, -3).swapaxes(-1, -2))


def _pale(image: np.ndarray) -> np.ndarray:
    """Return an image [H, W, 3] uint8 with little colour, as Crafter makes it at night."""
    return np.array(ImageEnhance.Color(Image.fromarray(image)).enhance(COLOUR_AT_NIGHT))


def _blends() -> np.ndarray:
    """Return what becomes of each value of a pixel, by the pixel's greyness.  [256, 256] uint8"""
    values = np.arange(256, dtype=np.uint8)
    grey, colour = (Image.fromarray(each) for each in np.meshgrid(values, values, indexing="ij"))
    return np.array(Image.blend(grey, colour, COLOUR_AT_NIGHT))


def draw(
    worlds: np.ndarray,
    rows: np.ndarray,
    side: int,
    generators: Sequence[np.random.Generator] | None = None,
) -> np.ndarray:
    """Draw what players see.

    Args:
        worlds: [N] of WORLD.
        rows: Which of them to draw.  [R]
        side: Pixels of a picture's sides.
        generators: Of each world's noise in the dark, N of them; None to leave it away.

    Returns:
        Pictures, channel first.  [R, 3, side, side] uint8
    """
    table = tiles(side)
    frames = np.zeros((len(rows), 3, side, side), np.uint8)
    noises = np.empty((len(rows), *table.vignette.shape))
    for place, row in enumerate(rows.tolist()):
        if generators is not None and worlds["daylight"][row] < DARK:
            noises[place] = generators[row].uniform(*NOISE, noises[place].shape)
    _draw_all(worlds, rows, table, noises, generators is not None, frames)
    return frames


@compiled
def _draw_all(
    worlds: np.ndarray,
    rows: np.ndarray,
    table: Tiles,
    noises: np.ndarray,
    has_noise: bool,
    frames: np.ndarray,
) -> None:
    """Draw worlds [N], those of the given rows [R], onto black frames [R, 3, S, S]."""
    for place in range(len(rows)):
        world, frame = worlds[rows[place]], frames[place]
        for i in range(VIEW[0]):
            for j in range(VIEW[1]):
                if has_noise and world.daylight < DARK:
                    _draw_in_the_dark(world, i, j, table, noises[place], frame)
                else:
                    _draw_cell(world, i, j, table, frame)
        if world.sleeping:
            _close_eyes(table, frame)
        for item in range(len(ITEMS)):
            _draw_item(world, item, table, frame)


@compiled
def _cell(world: World, i: int, j: int) -> tuple[int, int]:
    """Return the ground of cell (i, j) of the view, and 1 + how what stands there looks, or 0."""
    x, y = world.x[0] - VIEW[0] // 2 + i, world.y[0] - VIEW[1] // 2 + j
    thing = thing_at(world, x, y)
    return material_at(world, x, y), 1 + _look(world, thing) if thing >= 0 else 0


@compiled
def _look(world: World, thing: int) -> int:
    """Return the number of how something looks."""
    kind, dx, dy = world.kind[thing], world.facing_x[thing], world.facing_y[thing]
    direction = (dx + 1) // 2 if dx else 2 + (dy + 1) // 2
    if kind == PLAYER:
        return SLEEPER if world.sleeping else direction
    if kind == ARROW:
        return FIRST_ARROW + direction
    if kind == PLANT:
        return OLD if world.timer[thing] > RIPE else YOUNG
    return FIRST_CREATURE + kind - COW


@compiled
def _draw_cell(world: World, i: int, j: int, table: Tiles, frame: np.ndarray) -> None:
    """Mix a cell as it looks by day and by night."""
    ground, look = _cell(world, i, j)
    bright, pale = table.bright[ground, look], table.pale[ground, look]
    unit, light = bright.shape[-1], world.daylight
    for channel in range(3):
        tint = 0.5 * NIGHT_TINT[channel]
        for y in range(unit):
            for x in range(unit):
                night = 0.5 * pale[channel, y, x] + tint
                mixed = light * bright[channel, y, x] + (1 - light) * night
                frame[channel, j * unit + y, i * unit + x] = np.uint8(mixed)


@compiled
def _draw_in_the_dark(
    world: World, i: int, j: int, table: Tiles, noise: np.ndarray, frame: np.ndarray
) -> None:
    """Draw a cell with noise over what it looks like by night."""
    ground, look = _cell(world, i, j)
    bright, light = table.bright[ground, look], world.daylight
    unit = bright.shape[-1]
    noisy = np.empty(3, np.uint8)
    for y in range(unit):
        for x in range(unit):
            right, down = i * unit + x, j * unit + y
            share = 2 * (DARK - light) * table.vignette[right, down]
            for channel in range(3):
                seen = (1 - share) * bright[channel, y, x] + share * noise[right, down]
                noisy[channel] = np.uint8(seen)
            grey = _greyness(noisy[0], noisy[1], noisy[2])
            for channel in range(3):
                night = 0.5 * table.blends[grey, noisy[channel]] + 0.5 * NIGHT_TINT[channel]
                mixed = light * bright[channel, y, x] + (1 - light) * night
                frame[channel, down, right] = np.uint8(mixed)


@compiled
def _greyness(red: int, green: int, blue: int) -> int:
    """Return how bright a pixel is, as Pillow rounds it (ITU-R 601-2)."""
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


@compiled
def _close_eyes(table: Tiles, frame: np.ndarray) -> None:
    """Take the colour from the map and darken it."""
    unit = table.bright.shape[-1]
    for y in range(VIEW[1] * unit):
        for x in range(VIEW[0] * unit):
            grey = _greyness(frame[0, y, x], frame[1, y, x], frame[2, y, x])
            for channel in range(3):
                frame[channel, y, x] = np.uint8(0.5 * grey + 0.5 * SLEEP_TINT[channel])


@compiled
def _draw_item(world: World, item: int, table: Tiles, frame: np.ndarray) -> None:
    """Draw how many of an item are held, below the map."""
    amount, unit = world.inventory[item], table.items.shape[-1]
    if amount < 1:
        return
    x, y = item % GRID * unit, (VIEW[1] + item // GRID) * unit
    tile = table.items[item, amount]
    for channel in range(3):
        for down in range(unit):
            for right in range(unit):
                frame[channel, y + down, x + right] = tile[channel, down, right]
