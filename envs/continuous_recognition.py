"""ContinuousRecognition-v0: a stream of pictures; is this one new or was it shown before?

Our own light version of Psychlab's continuous recognition task (Leibo et al. 2018,
arXiv:1801.08116), for machines without DeepMind Lab: one step is one of 50 pictures, and the action
is the answer itself, worth 1 or 0. The first picture is new, every other with probability one half,
else drawn uniformly from all that the episode has shown. Scores of the two are not comparable.
"""

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np

from envs.settings import RecognitionSettings
from envs.vector import NumpyVectorEnv
from utils.environments import Suite
from utils.errors import UserError

NAME = "ContinuousRecognition-v0"
SIDE = 80
EPISODE_PICTURES = 50
NEW, OLD = 0, 1
ACTION_NAMES = ("new", "old")
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
BLANK = 255
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


class ContinuousRecognitionVectorEnv(NumpyVectorEnv):
    """Answer 0 for a new picture, 1 for one shown before in this episode; +1 where right.

    The episode terminates with the answer to its last picture; after it there is a blank one.
    `pictures` are [P, 3, H, W] uint8, at least as many as an episode has.
    """

    def __init__(self, n_envs: int, seed: int, pictures: np.ndarray) -> None:
        channels, height, width = pictures.shape[1:]
        super().__init__(n_envs, seed, image_shape=(channels, height, width), n_actions=2)
        self._n_pictures = len(pictures)
        blank = np.full_like(pictures[:1], BLANK)
        self._images = np.concatenate([pictures, blank])  # [P + 1, 3, H, W]
        # One more entry than pictures: the blank one after the last answer.
        self._stream = np.full((n_envs, EPISODE_PICTURES + 1), self._n_pictures)
        self._answers = np.zeros((n_envs, EPISODE_PICTURES), dtype=np.int64)
        self._position = np.zeros(n_envs, dtype=np.int64)

    def begin(self, row: int, generator: np.random.Generator) -> None:
        shown, answers = draw_stream(self._n_pictures, generator)
        self._stream[row, :-1] = shown
        self._answers[row] = answers
        self._position[row] = 0

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        right = actions == self._answers[self._rows, self._position]
        self._position += 1
        terminated = self._position == EPISODE_PICTURES
        return right.astype(np.float32), terminated, np.zeros_like(terminated)

    def observe(self, rows: np.ndarray) -> np.ndarray:
        return self._images[self._stream[rows, self._position[rows]]]


class ContinuousRecognition(Suite):
    scale_rewards, action_names = True, ACTION_NAMES

    def make(self, config: RecognitionSettings, seed: int) -> ContinuousRecognitionVectorEnv:
        folder = config.recognition_stimuli
        pictures = drawn_objects(SIDE)[1] if folder is None else read_pictures(Path(folder))
        return ContinuousRecognitionVectorEnv(config.n_envs, seed, pictures)


def draw_stream(n_pictures: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return an episode's picture numbers and right answers, NEW or OLD.  [EPISODE_PICTURES]"""
    novel = generator.permutation(n_pictures)[:EPISODE_PICTURES]
    is_new = generator.random(EPISODE_PICTURES) < 0.5
    is_new[0] = True
    # Including the present picture, if that is new.
    n_shown = np.cumsum(is_new)
    # Uniform among those shown so far, whose number grows along the episode.
    again = (generator.random(EPISODE_PICTURES) * n_shown).astype(np.int64)
    return novel[np.where(is_new, n_shown - 1, again)], np.where(is_new, NEW, OLD)


def read_pictures(folder: Path) -> np.ndarray:
    """Return a folder's images, by name, fitted onto white squares.  [P, 3, SIDE, SIDE] uint8

    Raises:
        UserError: There is no such folder, it has too few images, or one cannot be read.
    """
    if not os.path.isdir(folder):
        raise UserError(
            f"recognition_stimuli: {folder} is not a folder. Give a folder of images, or null"
        )
    images = (file for file in folder.iterdir() if file.suffix.lower() in IMAGE_ENDINGS)
    files = sorted(file for file in images if file.is_file())
    if len(files) < EPISODE_PICTURES:
        raise UserError(
            f"recognition_stimuli: {folder} has {len(files)} images ({', '.join(IMAGE_ENDINGS)}), "
            f"an episode needs {EPISODE_PICTURES}. Add more, or give null for drawn pictures"
        )
    return np.stack([_read_picture(file) for file in files])


def _read_picture(file: Path) -> np.ndarray:
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as image:
            square = ImageOps.pad(image.convert("RGB"), (SIDE, SIDE), color="white")
    except Exception as error:  # a broken picture raises about ten kinds of errors
        raise UserError(
            f"recognition_stimuli: {file} cannot be read ({error}). Repair or remove it"
        ) from error
    return np.asarray(square).transpose(2, 0, 1)


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    radius, angle = np.hypot(x, y), np.arctan2(x, -y)
    # 1 at each of the five tips, 0 half-way between them.
    tip = np.abs((angle * 5 / (2 * np.pi)) % 1 - 0.5) * 2
    return radius < 0.38 + 0.55 * tip**1.6


def _hexagon(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x), np.abs(x) / 2 + np.abs(y) * np.sqrt(3) / 2) < 0.75


def _heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    u, v = 1.35 * x, 0.15 - 1.35 * y
    return (u**2 + v**2 - 1) ** 3 < u**2 * v**3


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
    "crescent": lambda x, y: (np.hypot(x, y) < 0.85) & (np.hypot(x - 0.4, y) > 0.65),
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
