"""Pictures of a player's view, drawn from a table of tiles: Crafter 1.8.3's pixels, faster.

A cell's pixels depend on its ground, on the thing that stands there and on the light. So every pair
of ground and thing is drawn once by the package, and once with little colour; a frame mixes the
two. In the dark there is noise over it, from generators of its own.

Grey pictures of 84 x 84 are those that ELLM's agents see, OpenCV's rounding included. OpenCV
resizes uint8 bilinearly in whole numbers, with weights that are multiples of 1/2048.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance

from envs.crafter.rules import RIPE
from envs.crafter.world import (
    ARROW,
    COW,
    ITEMS,
    MOST,
    N_MATERIALS,
    NAMES,
    OUTSIDE,
    PLANT,
    PLAYER,
    VIEW,
    World,
    compiled,
    constants,
    engine,
    material_at,
    thing_at,
)

GRID = 9  # cells of the picture: seven rows of the map, two of items
DARK = 0.5  # daylight below which there is noise
NOISE = (32, 127)
COLOUR_AT_NIGHT = 0.4
NIGHT_TINT, SLEEP_TINT = (0, 16, 64), (0, 0, 16)
BEYOND = 127  # grey off the map
VIGNETTE_WIDTH = 0.5
GREY_SIDE = 84  # pixels
WEIGHT_BITS = 11

# The looks of things on a cell: the player and arrows in four directions.
PLAYERS = ("player-left", "player-right", "player-up", "player-down", "player-sleep")
ARROWS = ("arrow-left", "arrow-right", "arrow-up", "arrow-down")
LOOKS = (*PLAYERS, *ARROWS, "cow", "zombie", "skeleton", "plant", "plant-ripe")
SLEEPER, FIRST_ARROW, FIRST_CREATURE, YOUNG, OLD = 4, 5, 9, 12, 13


class Tiles(NamedTuple):
    """All parts of a picture, channel first.

    Attributes:
        bright: Cells by their ground and 1 + the look of the thing on it.  [13, 15, 3, U, U] uint8
        pale: The same with little colour.  [13, 15, 3, U, U] uint8
        items: Cells by item and number.  [16, 10, 3, U, U] uint8
        vignette: Strength of the noise at night, [x, y].  [9U, 7U] float64
        blends: A colour value of a pixel of some greyness, with little colour.  [256, 256] uint8
    """

    bright: np.ndarray
    pale: np.ndarray
    items: np.ndarray
    vignette: np.ndarray
    blends: np.ndarray


@functools.cache
def tiles(side: int) -> Tiles:
    unit = side // GRID
    size, drawn = (unit, unit), engine.Textures(constants.root / "assets")
    bright = np.empty((N_MATERIALS, 1 + len(LOOKS), unit, unit, 3), np.uint8)
    for ground, look in np.ndindex(bright.shape[:2]):
        cell = bright[ground, look]
        cell[:] = BEYOND
        if ground != OUTSIDE:
            engine._draw(cell, (0, 0), drawn.get(NAMES[ground], size))
        if look:
            engine._draw_alpha(cell, (0, 0), drawn.get(LOOKS[look - 1], size))
    colours = ImageEnhance.Color(Image.fromarray(bright.reshape(-1, unit, 3)))
    pale = np.array(colours.enhance(COLOUR_AT_NIGHT)).reshape(bright.shape)
    show = engine.ItemView(drawn, (1, 1))
    items = np.stack([[show({item: n}, size) for n in range(MOST + 1)] for item in ITEMS])
    view = engine.LocalView.__new__(engine.LocalView)  # its vignette needs nothing that it holds
    vignette = view._vignette((VIEW[0] * unit, VIEW[1] * unit), VIGNETTE_WIDTH)
    values = np.arange(256, dtype=np.uint8)
    grey, colour = (Image.fromarray(each) for each in np.meshgrid(values, values, indexing="ij"))
    blends = np.array(Image.blend(grey, colour, COLOUR_AT_NIGHT))
    return Tiles(_upright(bright), _upright(pale), _upright(items), vignette, blends)


def _upright(cells: np.ndarray) -> np.ndarray:
    """Return cells [..., x, y, 3] as pictures [..., 3, y, x]."""
    return np.ascontiguousarray(np.moveaxis(cells, -1, -3).swapaxes(-1, -2))


def draw(
    worlds: np.ndarray,
    rows: np.ndarray,
    side: int,
    generators: Sequence[np.random.Generator] | None = None,
) -> np.ndarray:
    """Draw the views of the given rows [R] of worlds [N].  [R, 3, side, side] uint8

    `generators` are N, of each world's noise in the dark; without them there is none.
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
    """Return the ground of cell (i, j) of the view, and 1 + the look of the thing there, or 0."""
    x, y = world.x[0] - VIEW[0] // 2 + i, world.y[0] - VIEW[1] // 2 + j
    thing = thing_at(world, x, y)
    return material_at(world, x, y), 1 + look_of(world, thing) if thing >= 0 else 0


@compiled
def look_of(world: World, thing: int) -> int:
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
    # as Pillow rounds it (ITU-R 601-2)
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


@compiled
def _close_eyes(table: Tiles, frame: np.ndarray) -> None:
    unit = table.bright.shape[-1]
    for y in range(VIEW[1] * unit):
        for x in range(VIEW[0] * unit):
            grey = _greyness(frame[0, y, x], frame[1, y, x], frame[2, y, x])
            for channel in range(3):
                frame[channel, y, x] = np.uint8(0.5 * grey + 0.5 * SLEEP_TINT[channel])


@compiled
def _draw_item(world: World, item: int, table: Tiles, frame: np.ndarray) -> None:
    amount, unit = world.inventory[item], table.items.shape[-1]
    if amount < 1:
        return
    x, y = item % GRID * unit, (VIEW[1] + item // GRID) * unit
    tile = table.items[item, amount]
    for channel in range(3):
        for down in range(unit):
            for right in range(unit):
                frame[channel, y + down, x + right] = tile[channel, down, right]


class Resizing(NamedTuple):
    """How OpenCV makes T pixels of S, bilinearly.

    Each is a mixture of two `pixels` [T, 2] int32, with `weights` out of 2048 [T, 2] int32.
    """

    pixels: np.ndarray
    weights: np.ndarray


@functools.cache
def resizing(source: int, target: int) -> tuple[Resizing, Resizing]:
    """Return how OpenCV resizes lines of uint8 pixels, then columns."""
    # Both do the same to pixels at the edges, but for the rounding: a line takes one with all the
    # weight, a column mixes it with itself.
    places = ((np.arange(target) + 0.5) * (source / target) - 0.5).astype(np.float32)
    firsts = np.floor(places)
    shares = places - firsts
    pixels = np.stack([firsts, firsts + 1], 1).clip(0, source - 1).astype(np.int32)
    columns = Resizing(pixels, _weights(shares))
    shares[pixels[:, 0] == pixels[:, 1]] = 0
    return Resizing(pixels, _weights(shares)), columns


def _weights(shares: np.ndarray) -> np.ndarray:
    """Return the weights of first and second pixels, given those of the second.  [T, 2] int32"""
    both = np.stack([1 - shares, shares], 1) * np.float32(1 << WEIGHT_BITS)
    return np.rint(both).astype(np.int32)


def greyed(frames: np.ndarray) -> np.ndarray:
    """Return pictures [R, 3, S, S] uint8 in 84 x 84, the mean of their colours.  [R, 1, 84, 84]"""
    grey = np.empty((len(frames), 1, GREY_SIDE, GREY_SIDE), np.uint8)
    lines = np.empty((frames.shape[-1], GREY_SIDE), np.int32)
    _shrink(frames, *resizing(frames.shape[-1], GREY_SIDE), lines, grey)
    return grey


@compiled
def _shrink(
    frames: np.ndarray, across: Resizing, down: Resizing, lines: np.ndarray, grey: np.ndarray
) -> None:
    side = grey.shape[-1]
    sums = np.empty((side, side), np.int32)
    for row in range(len(frames)):
        for channel in range(3):
            _shrink_lines(frames[row, channel], across, lines)
            _shrink_columns(lines, down, sums, channel == 0)
        for y in range(side):
            for x in range(side):
                grey[row, 0, y, x] = sums[y, x] // 3


@compiled
def _shrink_lines(image: np.ndarray, across: Resizing, lines: np.ndarray) -> None:
    """Resize the lines of one channel [S, S] to [S, T], out of 2048 still."""
    for y in range(lines.shape[0]):
        for x in range(lines.shape[1]):
            near, far = image[y, across.pixels[x, 0]], image[y, across.pixels[x, 1]]
            lines[y, x] = near * across.weights[x, 0] + far * across.weights[x, 1]


@compiled
def _shrink_columns(lines: np.ndarray, down: Resizing, sums: np.ndarray, is_first: bool) -> None:
    """Resize the columns [S, T] to [T, T], rounded as OpenCV does; add them to other channels'."""
    for y in range(sums.shape[0]):
        upper, lower = lines[down.pixels[y, 0]], lines[down.pixels[y, 1]]
        first, second = down.weights[y, 0], down.weights[y, 1]
        for x in range(sums.shape[1]):
            mixed = ((first * (upper[x] >> 4)) >> 16) + ((second * (lower[x] >> 4)) >> 16)
            before = 0 if is_first else sums[y, x]
            sums[y, x] = before + ((mixed + 2) >> 2)
