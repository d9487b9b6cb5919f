"""The first steps of an environment, on an instance of its own that is thrown away.

They show whether it keeps what Gymnasium asks of it.
"""

import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled

from envs.episodes import MakeOne
from envs.spaces import Converted, is_text, shown
from utils.errors import UserError, told
from utils.seeding import random_state, set_random_state

SECONDS = 0.1  # of checking
MOST_STEPS = 1_000


def check_first_steps(make_one: MakeOne, name: str) -> None:
    """Play an environment at random for a moment and check what it shows and says.

    No random stream of this process moves.

    Args:
        make_one: Makes the environment.
        name: What the user calls it.

    Raises:
        UserError: it cannot be made, raises an error, or does not do what its spaces promise.
    """
    with _failures_told(name), _random_streams_kept(), closing(make_one()) as env:
        converted = Converted(env)
        for each in (env, converted):
            each.action_space.seed(0)
        _begin(env, seed=0)
        until = time.perf_counter() + SECONDS  # a slow one shows less of itself
        for _ in range(MOST_STEPS):
            _check_step(env)
            if time.perf_counter() > until:
                break
        converted.reset(seed=0)
        converted.step(converted.action_space.sample())


def why_not_drawn(make_one: MakeOne, make_drawn: MakeOne) -> str | None:
    """Return why an environment cannot be drawn, None if it can.

    Args:
        make_one: Makes it as it is trained in.
        make_drawn: Makes it with the render mode rgb_array.
    """
    try:
        with _random_streams_kept(), closing(make_one()) as env:
            if "rgb_array" not in (env.metadata.get("render_modes") or ()):
                return "it has no render mode rgb_array"
        with _random_streams_kept(), closing(make_drawn()) as env:
            env.reset(seed=0)
            picture = np.asarray(env.render())
    except Exception as error:  # whatever its author did
        return told(error)
    if picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3:
        return None
    return f"it draws {picture.dtype} {list(picture.shape)}, not uint8 [H, W, 3]"


def failure(name: str, error: BaseException) -> UserError:
    """Return what to say of an error that somebody's environment raised."""
    return UserError(f"env: '{name}' raised {told(error)}")


@contextmanager
def _failures_told(name: str) -> Iterator[None]:
    """Turn what an environment raises into a UserError of one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (UserError, DependencyNotInstalled, ModuleNotFoundError):
        raise
    except (Exception, SystemExit) as error:
        raise failure(name, error) from error


@contextmanager
def _random_streams_kept() -> Iterator[None]:
    """Put the random streams that an environment may share with the run back where they were."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


def _begin(env: gymnasium.Env, seed: int | None = None) -> None:
    """Begin an episode and check what it shows first."""
    found = env.reset(seed=seed)
    if not isinstance(found, tuple) or len(found) != 2:
        raise UserError("env: reset() is to return two values: observation, info")
    _check_part(found[0], env.observation_space, "reset()")


def _check_step(env: gymnasium.Env) -> None:
    """Take a random step, check what comes of it, and begin anew where it ends the episode."""
    found = env.step(env.action_space.sample())
    if not isinstance(found, tuple) or len(found) != 5:
        raise UserError(
            "env: step() is to return five values: observation, reward, terminated, truncated, info"
        )
    observation, reward, terminated, truncated, _ = found
    _check_part(observation, env.observation_space, "step()")
    if not isinstance(reward, int | float | np.number | np.bool_) or not np.isfinite(reward):
        raise UserError(f"env: step() pays {shown(reward)}, and a reward is one finite number")
    for ends in (terminated, truncated):
        if not isinstance(ends, bool | np.bool_):
            raise UserError(f"env: step() says {shown(ends)} where True or False says what ends")
    if terminated or truncated:
        _begin(env)


def _check_part(part: Any, space: spaces.Space, where: str) -> None:
    """Raise UserError unless a part of an observation is of its space, bounds of boxes aside."""
    if isinstance(space, spaces.Dict) and isinstance(part, dict) and part.keys() == space.keys():
        inner = [(part[key], space[key]) for key in space]
    elif (
        isinstance(space, spaces.Tuple)
        and isinstance(part, tuple | list)
        and len(part) == len(space)
    ):
        inner = list(zip(part, space, strict=True))
    elif not isinstance(space, spaces.Dict | spaces.Tuple) and _is_of(part, space):
        return
    else:
        is_array = isinstance(part, np.ndarray)
        kind = f"{part.dtype} {list(part.shape)}" if is_array else type(part).__name__
        raise UserError(
            f"env: {where} shows {shown(part)} ({kind}), which is not of its space {shown(space)}"
        )
    for each, of in inner:
        _check_part(each, of, where)


def _is_of(value: Any, space: spaces.Space) -> bool:
    """Return whether a value is of a space of numbers or text."""
    if is_text(space):
        return isinstance(value, str)
    if isinstance(space, spaces.Box):
        array = np.asarray(value)
        return array.shape == space.shape and np.can_cast(array.dtype, space.dtype, "same_kind")
    return space.contains(value)
