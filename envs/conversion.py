"""Spaces of any Gymnasium environment, and the ones that agents see and act in.

Agents see one image at most (uint8, channel first), vectors, numbers of a few, text, and
dictionaries of those; they choose among discrete actions. What other spaces hold is the same in
another form or cannot be used.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from settings.values import shortened
from utils.errors import UserError

LEAST_SIDE = 5  # pixels of an image
MOST_NUMBERS = 16_384  # of an observation; every value of a discrete number counts
MOST_ACTIONS = 4_096
ALLOWED = (
    "Agents see images (uint8, from 5x5 up), boxes of numbers, discrete numbers, text, and "
    "dictionaries and tuples of those"
)


class Conversion(NamedTuple):
    """A space in the form that agents know, and what leads there.

    Attributes:
        space: What agents see or act in.
        convert: An observation of the environment to one of this space, or an action of this
            space to one of the environment; None where nothing is to be done.
    """

    space: spaces.Space
    convert: Callable[[Any], Any] | None = None


def seen(space: spaces.Space) -> Conversion:
    """Return how agents see what an environment shows.

    A Box of uint8 with three dimensions is an image. Its channels are the smaller one of its first
    and its last dimension, the first if they are equal. One with two dimensions from 5x5 up is a
    grey image. Every other Box becomes a vector, a tuple a dictionary with the keys "0", "1", ...

    Raises:
        UserError: a part of the space cannot be seen; it is named.
    """
    conversion = _seen(space, ())
    leaves = list(_leaves(conversion.space))
    n_images = sum(map(is_image, leaves))
    n_numbers = sum(map(_size, leaves))
    if n_images > 1:
        raise UserError(f"observations: {shown(space)} has {n_images} images, one can be seen")
    if n_numbers > MOST_NUMBERS:
        raise UserError(
            f"observations: {shown(space)} makes a vector of {n_numbers:,} numbers, discrete ones "
            f"one-hot; up to {MOST_NUMBERS:,} are read. Pictures are images if they are uint8"
        )
    if not n_images and not n_numbers and not any(map(is_text, leaves)):
        raise UserError(f"observations: {shown(space)} has nothing to see. {ALLOWED}")
    return conversion


def acted(space: spaces.Space) -> Conversion:
    """Return how agents act: one Discrete action for each action of an environment.

    Raises:
        UserError: the actions are none of a few.
    """
    allowed = f"Agents choose among Discrete or MultiDiscrete actions, {MOST_ACTIONS:,} at most"
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        raise UserError(f"actions: {shown(space)} cannot be used. {allowed}")
    sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.array(space.n)
    n_actions = math.prod(sizes.ravel().tolist())
    if n_actions > MOST_ACTIONS:
        raise UserError(f"actions: {shown(space)} has {n_actions:,} actions. {allowed}")
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Conversion(space)
    if isinstance(space, spaces.Discrete):
        return Conversion(spaces.Discrete(n_actions), lambda action: action + space.start)
    return Conversion(spaces.Discrete(n_actions), joint_action(space))


def joint_action(space: spaces.MultiDiscrete) -> Callable[[int], np.ndarray]:
    """Return what turns the number of a joint action into its numbers; the last one runs fastest.

    Of MultiDiscrete([2, 3]) action 4 is [1, 1].
    """
    sizes = tuple(int(size) for size in space.nvec.ravel())

    def numbers(action: int) -> np.ndarray:
        single = np.unravel_index(int(action), sizes)
        return np.array(single, space.dtype).reshape(space.shape) + space.start

    return numbers


def is_image(space: spaces.Space) -> bool:
    """Return whether a part of a converted space is an image."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3


def is_text(space: spaces.Space) -> bool:
    """Return whether a space is of sentences: Gymnasium's Text, or one of the same kind."""
    return space.dtype is not None and space.dtype.kind == "U"


def has_text(space: spaces.Space) -> bool:
    """Return whether an observation has a part that is text."""
    return any(map(is_text, _leaves(space)))


def shown(space: Any) -> str:
    """Return a space in one line, cut where it is long."""
    return shortened(" ".join(str(space).split()))


def _seen(space: spaces.Space, path: tuple[str, ...]) -> Conversion:
    """Return how a part of an observation is seen, given the keys that lead to it."""
    if isinstance(space, spaces.Dict):
        return _dictionary({key: (key, part) for key, part in space.items()}, path)
    if isinstance(space, spaces.Tuple):
        return _dictionary({str(number): (number, part) for number, part in enumerate(space)}, path)
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) > 1:
        flat = spaces.MultiDiscrete(space.nvec.ravel(), start=space.start.ravel())
        return Conversion(flat, np.ravel)
    if isinstance(space, spaces.Box):
        return _box(space, path)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return Conversion(space)
    if is_text(space):
        return Conversion(space)
    raise UserError(f"observations: {_name(path)} is {shown(space)}. {ALLOWED}")


def _dictionary(parts: dict[Any, tuple[Any, spaces.Space]], path: tuple[str, ...]) -> Conversion:
    """Return how parts are seen, given each one's key there and here."""
    made = {key: (_seen(part, (*path, str(key))), old) for key, (old, part) in parts.items()}
    space = spaces.Dict({str(key): conversion.space for key, (conversion, _) in made.items()})
    if all(key is old and conversion.convert is None for key, (conversion, old) in made.items()):
        return Conversion(space)

    def convert(observation: Any) -> dict[str, Any]:
        return {
            str(key): observation[old] if step.convert is None else step.convert(observation[old])
            for key, (step, old) in made.items()
        }

    return Conversion(space, convert)


def _box(space: spaces.Box, path: tuple[str, ...]) -> Conversion:
    """Return how a box is seen: as an image or as a vector."""
    shape, is_bytes = space.shape, space.dtype == np.uint8
    if is_bytes and len(shape) == 2 and min(shape) >= LEAST_SIDE:
        return Conversion(_images(1, *shape), lambda image: image[None])
    if is_bytes and len(shape) == 3:
        is_last = shape[2] < shape[0]
        sides = shape[:2] if is_last else shape[1:]
        if min(sides) < LEAST_SIDE:
            raise UserError(f"observations: {_name(path)} is {shown(space)}, an image below 5x5")
        if is_last:
            return Conversion(_images(shape[2], *sides), _channels_first)
        return Conversion(space)
    if len(shape) > 2 and (is_bytes or _is_picture_of_floats(space)):
        raise UserError(
            f"observations: {_name(path)} is {shown(space)}. An image has three dimensions, "
            "height, width and channels, and is uint8 from 0 to 255"
        )
    if len(shape) <= 1:
        return Conversion(space)
    vector = spaces.Box(-np.inf, np.inf, (math.prod(shape),), np.float32)
    return Conversion(vector, lambda values: np.asarray(values, np.float32).ravel())


def _images(channels: int, height: int, width: int) -> spaces.Box:
    return spaces.Box(0, 255, (channels, height, width), np.uint8)


def _channels_first(image: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(image.transpose(2, 0, 1))


def _is_picture_of_floats(space: spaces.Box) -> bool:
    """Return whether a box of fractions from 0 to 1 is as large as images are."""
    is_unit = space.dtype.kind == "f" and space.low.min() >= 0 and space.high.max() <= 1
    return is_unit and sorted(space.shape)[-2] >= LEAST_SIDE


def _leaves(space: spaces.Space) -> Iterator[spaces.Space]:
    if isinstance(space, spaces.Dict):
        for part in space.values():
            yield from _leaves(part)
    else:
        yield space


def _size(space: spaces.Space) -> int:
    """Return how many numbers a part adds to the vector."""
    if is_text(space) or is_image(space):
        return 0
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return math.prod(space.shape or ())


def _name(path: tuple[str, ...]) -> str:
    """Return what a part is called: its keys, or the whole."""
    return ".".join(path) or "the observation"
