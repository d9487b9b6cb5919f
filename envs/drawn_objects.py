"""Pictures drawn by formula: every combination of a pattern, a colour and a shape, by name."""

from collections.abc import Callable
from itertools import product

import numpy as np

COLOURS = {
    "red": (214, 39, 40),
    "orange": (255, 140, 0),
    "yellow": (235, 210, 20),
    "green": (40, 160, 60),
    "cyan": (30, 200, 210),
    "blue": (40, 70, 210),
    "purple": (130, 60, 180),
    "pink": (250, 120, 180),
    "brown": (130, 80, 40),
    "black": (25, 25, 25),
}


def _polar(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.hypot(x, y), np.arctan2(x, -y)


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    radius, angle = _polar(x, y)
    # 1 at each of the five tips, 0 half-way between them.
    tip = np.abs((angle * 5 / (2 * np.pi)) % 1 - 0.5) * 2
    return radius < 0.38 + 0.55 * tip**1.6


def _hexagon(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x), np.abs(x) / 2 + np.abs(y) * np.sqrt(3) / 2) < 0.75


def _heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    u, v = 1.35 * x, 0.15 - 1.35 * y
    return (u**2 + v**2 - 1) ** 3 < u**2 * v**3


def _crescent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (np.hypot(x, y) < 0.85) & (np.hypot(x - 0.4, y) > 0.65)


def _cross(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    far, near = np.maximum(np.abs(x), np.abs(y)), np.minimum(np.abs(x), np.abs(y))
    return (far < 0.85) & (near < 0.28)


# Membership of the points of [-1, 1] x [-1, 1], y downwards.
SHAPES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "circle": lambda x, y: np.hypot(x, y) < 0.8,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) < 0.7,
    "triangle": lambda x, y: (y < 0.7) & (np.abs(x) < (y + 0.85) / 1.8),
    "diamond": lambda x, y: np.abs(x) + np.abs(y) < 0.9,
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.62) < 0.22,
    "star": _star,
    "hexagon": _hexagon,
    "heart": _heart,
    "crescent": _crescent,
    "cross": _cross,
}

# Where the shape keeps its colour; elsewhere it is mixed with white.
PATTERNS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "": lambda x, y: np.ones_like(x, dtype=bool),
    "striped": lambda x, y: (x + y) * 3 % 1 < 0.5,
    "dotted": lambda x, y: np.hypot(x * 3 % 1 - 0.5, y * 3 % 1 - 0.5) > 0.28,
    "checkered": lambda x, y: (np.floor(x * 3) + np.floor(y * 3)) % 2 == 0,
}
PALENESS = 0.75


def drawn_objects(side: int) -> tuple[list[str], np.ndarray]:
    """Draw every combination on white.

    Args:
        side: Height and width of a picture in pixels.

    Returns:
        Names such as "red circle" and "striped blue star" [P], and pictures [P, 3, side, side].
    """
    points = (np.arange(side) + 0.5) / side * 2 - 1
    x, y = np.meshgrid(points, points)
    masks = {name: inside(x, y) for name, inside in SHAPES.items()}
    tones = {name: np.where(full(x, y), 0, PALENESS) for name, full in PATTERNS.items()}
    kinds = list(product(PATTERNS, COLOURS, SHAPES))
    pictures = [_draw(COLOURS[colour], masks[shape], tones[tone]) for tone, colour, shape in kinds]
    return [" ".join(kind).strip() for kind in kinds], np.stack(pictures)


def _draw(colour: tuple[int, int, int], mask: np.ndarray, tone: np.ndarray) -> np.ndarray:
    """Colour the mask, paler by the tone, on white: masks and tones [S, S] -> [3, S, S]."""
    whiteness = np.where(mask, tone, 1.0)
    solid = np.array(colour)[:, None, None]
    return np.round(solid + whiteness * (255 - solid)).astype(np.uint8)
