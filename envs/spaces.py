"""Spaces of any Gymnasium environment, and the ones that agents see and act in.

Agents see one image at most (uint8, channel first), vectors, numbers of a few, text, and
dictionaries of those; they choose among discrete actions. Other spaces that hold the same in
another form are converted; the rest cannot be used.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from envs.episodes import Options, ResetResult
from utils.errors import UserError, shortened

LEAST_SIDE = 5  # pixels of an image
LONGEST_SIDE = 200  # of a picture in pixels; an episode of evaluation keeps hundreds
MOST_NUMBERS = 16_384  # of an observation; every value of a discrete number counts
MOST_ACTIONS = 4_096
ACTION_NAMES, NUMBER_NAMES = "action_names", "number_names"  # in the metadata
ALLOWED = (
    "Agents see images (uint8, from 5x5 up), boxes of numbers, discrete numbers, text, and "
    "dictionaries and tuples of those"
)


def _same(value: Any) -> Any:
    return value


class Conversion(NamedTuple):
    """A space in the form that agents know, and the conversion to it.

    `convert` turns an observation of the environment into one of this space, or an action of this
    space into one of the environment.
    """

    space: spaces.Space
    convert: Callable[[Any], Any] = _same


class Converted(gymnasium.Wrapper):
    """An environment in the agents' observations and actions; its `info` stays behind."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space, self._observed = adapt_observation_space(env.observation_space)
        self.action_space, self._action = adapt_action_space(env.action_space)
        actions = env.action_space
        if isinstance(actions, spaces.MultiDiscrete):
            numbers = (self._action(action).ravel() for action in range(int(actions.nvec.prod())))
            names = [", ".join(map(str, each)) for each in numbers]
            self.metadata = {**env.metadata, ACTION_NAMES: names}

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        observation, _ = self.env.reset(seed=seed, options=options)
        return self._observed(observation), {}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = self.env.step(self._action(action))
        return self._observed(observation), reward, terminated, truncated, {}

    def render(self) -> np.ndarray:
        """Return a picture of the whole environment, made smaller where it is large.  [H, W, 3]"""
        picture = np.asarray(self.env.render())
        every = -(-max(picture.shape[:2]) // LONGEST_SIDE)
        return picture[::every, ::every]


def checked_vector_env(env: Any) -> VectorEnv:
    """Return a vector environment as it is, if agents can be trained in it.

    It restarts an ended episode within the step that ends it (SAME_STEP), has observations
    in the form in which agents see them, and takes one Discrete action from 0 on.

    Raises:
        UserError: it is none, or does something else; the line names the remedy.
    """
    if not isinstance(env, VectorEnv):
        raise UserError(
            f"env: a {type(env).__name__} is given, not a gymnasium.vector.VectorEnv. Write: "
            "gymnasium.vector.SyncVectorEnv([make_one] * 16, "
            "autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)"
        )
    mode = env.metadata.get("autoreset_mode")
    if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP.value):
        given = "none" if mode is None else getattr(mode, "name", str(mode))
        raise UserError(
            f"env: {type(env.unwrapped).__name__} has autoreset mode {given}, and with another "
            "than SAME_STEP an agent would learn from steps between episodes. Write: "
            'gymnasium.make_vec(..., vectorization_mode="sync", '
            'vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})'
        )
    observations, actions = env.single_observation_space, env.single_action_space
    wanted = adapt_observation_space(observations).space
    if observations != wanted:
        raise UserError(
            f"observations: {shown(observations)} is to be {shown(wanted)}: images are "
            "channel first, boxes of more dimensions flat, tuples dictionaries. Wrap each "
            "environment in gymnasium.wrappers.TransformObservation"
        )
    wanted = adapt_action_space(actions).space
    if actions != wanted:
        raise UserError(
            f"actions: {shown(actions)} is to be {wanted}. Wrap each environment in "
            "gymnasium.wrappers.TransformAction"
        )
    return env


def adapt_observation_space(space: spaces.Space) -> Conversion:
    """Return how agents see the observations of an environment.

    A Box of uint8 with three dimensions is an image. Its channels are the smaller one of its first
    and its last dimension, the first if they are equal. One with two dimensions from 5x5 up is a
    grey image. Every other Box becomes a vector, a tuple a dictionary with the keys "0", "1", ...

    Raises:
        UserError: a part of the space cannot be seen; it is named.
    """
    conversion = _seen(space, ())
    leaves = list(_leaves(conversion.space))
    texts, images = (list(filter(kind, leaves)) for kind in (is_text, is_image))
    n_numbers = sum(
        int(spaces.flatdim(leaf)) for leaf in leaves if not (is_text(leaf) or is_image(leaf))
    )
    if len(images) > 1:
        raise UserError(f"observations: {shown(space)} has {len(images)} images, one can be seen")
    if n_numbers > MOST_NUMBERS:
        raise UserError(
            f"observations: {shown(space)} makes a vector of {n_numbers:,} numbers, discrete "
            f"ones one-hot; up to {MOST_NUMBERS:,} are read. Pictures are images if they are uint8"
        )
    if not (images or texts or n_numbers):
        raise UserError(f"observations: {shown(space)} has nothing to see. {ALLOWED}")
    return conversion


def adapt_action_space(space: spaces.Space) -> Conversion:
    """Return how agents act: one Discrete action for each action of an environment.

    Of joint actions the last number runs fastest: of MultiDiscrete([2, 3]) action 4 is [1, 1].

    Raises:
        UserError: the space is not discrete, or has too many actions.
    """
    allowed = f"Agents choose among Discrete or MultiDiscrete actions, {MOST_ACTIONS:,} at most"
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        raise UserError(f"actions: {shown(space)} cannot be used. {allowed}")
    sizes = (int(space.n),) if isinstance(space, spaces.Discrete) else space.nvec.ravel().tolist()
    n_actions = math.prod(sizes)
    if n_actions > MOST_ACTIONS:
        raise UserError(f"actions: {shown(space)} has {n_actions:,} actions. {allowed}")
    discrete = spaces.Discrete(n_actions)
    if isinstance(space, spaces.Discrete):
        is_same = space.start == 0
        return Conversion(space) if is_same else Conversion(discrete, lambda n: n + space.start)

    def numbers(action: int) -> np.ndarray:
        single = np.unravel_index(int(action), sizes)
        return np.array(single, space.dtype).reshape(space.shape) + space.start

    return Conversion(discrete, numbers)


def is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3


def is_text(space: spaces.Space) -> bool:
    """Return whether a space is of sentences: Gymnasium's Text, or one of the same kind."""
    return space.dtype is not None and space.dtype.kind == "U"


def has_text(space: spaces.Space) -> bool:
    return any(map(is_text, _leaves(space)))


def shown(space: Any) -> str:
    return shortened(" ".join(str(space).split()))


def _leaves(space: spaces.Space) -> Iterator[spaces.Space]:
    if isinstance(space, spaces.Dict):
        for part in space.values():
            yield from _leaves(part)
    else:
        yield space


def _seen(space: spaces.Space, path: tuple[str, ...]) -> Conversion:
    """Return how a part of an observation is seen, given the keys that lead to it."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _dictionary(space, path)
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) > 1:
        flat = spaces.MultiDiscrete(space.nvec.ravel(), start=space.start.ravel())
        return Conversion(flat, np.ravel)
    if isinstance(space, spaces.Box):
        return _box(space, path)
    numbers = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    if isinstance(space, numbers) or is_text(space):
        return Conversion(space)
    raise _unseen(space, path, f". {ALLOWED}")


def _dictionary(space: spaces.Dict | spaces.Tuple, path: tuple[str, ...]) -> Conversion:
    """Return how parts are seen: under their keys, or their numbers, as texts."""
    parts = list(space.items()) if isinstance(space, spaces.Dict) else list(enumerate(space))
    made = [(key, str(key), _seen(part, (*path, str(key)))) for key, part in parts]
    converted = spaces.Dict({name: part.space for _, name, part in made})
    if all(key is name and part.convert is _same for key, name, part in made):
        return Conversion(converted)

    def convert(observation: Any) -> dict[str, Any]:
        return {name: part.convert(observation[key]) for key, name, part in made}

    return Conversion(converted, convert)


def _box(space: spaces.Box, path: tuple[str, ...]) -> Conversion:
    shape, is_bytes = space.shape, space.dtype == np.uint8
    if is_bytes and len(shape) == 2 and min(shape) >= LEAST_SIDE:
        return Conversion(spaces.Box(0, 255, (1, *shape), np.uint8), lambda image: image[None])
    if is_bytes and len(shape) == 3:
        is_last = shape[2] < shape[0]
        if min(shape[:2] if is_last else shape[1:]) < LEAST_SIDE:
            raise _unseen(space, path, ", an image below 5x5")
        if not is_last:
            return Conversion(space)
        channel_first = spaces.Box(0, 255, (shape[2], *shape[:2]), np.uint8)
        return Conversion(
            channel_first, lambda image: np.ascontiguousarray(image.transpose(2, 0, 1))
        )
    if len(shape) <= 1:
        return Conversion(space)
    is_unit = space.dtype.kind == "f" and space.low.min() >= 0 and space.high.max() <= 1
    if len(shape) > 2 and (is_bytes or (is_unit and sorted(shape)[-2] >= LEAST_SIDE)):
        why = ". An image has three dimensions, height, width and channels, and is uint8 from 0 "
        raise _unseen(space, path, f"{why}to 255")
    vector = spaces.Box(-np.inf, np.inf, (math.prod(shape),), np.float32)
    return Conversion(vector, lambda values: np.asarray(values, np.float32).ravel())


def _unseen(space: spaces.Space, path: tuple[str, ...], why: str) -> UserError:
    name = ".".join(path) or "the observation"
    return UserError(f"observations: {name} is {shown(space)}{why}")
