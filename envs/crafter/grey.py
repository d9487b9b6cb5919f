"""Grey pictures of 84 x 84 as ELLM's agents see them, OpenCV's rounding included.

OpenCV resizes uint8 bilinearly in whole numbers, with weights that are multiples of 1/2048.
"""

import functools
from typing import NamedTuple

import numpy as np

from envs.crafter.compiled import compiled

GREY_SIDE = 84
WEIGHT_BITS = 11


class Resizing(NamedTuple):
    """How OpenCV makes T pixels of S, bilinearly.

    Attributes:
        pixels: The two that each becomes a mixture of.  [T, 2] int32
        weights: Of those two, out of 2048.  [T, 2] int32
    """

    pixels: np.ndarray
    weights: np.ndarray


@functools.cache
def resizing(source: int, target: int) -> tuple[Resizing, Resizing]:
    """Return how OpenCV resizes lines of uint8 pixels, then columns.

    Both do the same to pixels at the edges, but for the rounding: a line takes one with all the
    weight, a column mixes it with itself.
    """
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
    """Return pictures [R, 3, S, S] uint8 in 84 x 84 and grey, the mean of red, green and blue.

    Returns:
        [R, 1, 84, 84] uint8
    """
    grey = np.empty((len(frames), 1, GREY_SIDE, GREY_SIDE), np.uint8)
    lines = np.empty((frames.shape[-1], GREY_SIDE), np.int32)
    _shrink(frames, *resizing(frames.shape[-1], GREY_SIDE), lines, grey)
    return grey


@compiled
def _shrink(
    frames: np.ndarray, across: Resizing, down: Resizing, lines: np.ndarray, grey: np.ndarray
) -> None:
    """Resize every channel, first along its lines, then down its columns, and take the mean."""
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
