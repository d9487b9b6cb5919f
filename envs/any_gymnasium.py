"""Every environment registered with Gymnasium, and the user's own.

`CartPole-v1` is an id; `package.module:MyEnv-v0` is one that is registered when the module is
imported, from the current folder or where Python looks, as in `gymnasium.make`. Its observations
and actions are converted where they enter (`envs/spaces.py`).

Its `metadata` may hold "action_names" and "number_names". A method `cue()` tells analyses the thing
shown now that is to be remembered, a number from 0 on, or None. A run resumes to the bit where
`reset(seed=...)` and the actions decide all that happens in an episode.
"""

import functools
import logging
import re
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import VectorEnv

from envs.episodes import MakeOne, SingleEnvs
from envs.spaces import Converted, has_text, is_text, shown
from utils.errors import UserError, did_you_mean, told
from utils.seeding import random_state, set_random_state
from utils.settings import Config, setting
from utils.user_modules import advice, import_module, search

TITLE = "any other environment of Gymnasium"
CHOSEN_HERE = {"id", "render_mode", "disable_env_checker"}  # of gymnasium.make
DRAWN = {"render_mode": "rgb_array"}
MOST_NAMED = 5
SECONDS = 0.1  # of checking first steps
MOST_STEPS = 1_000
ROOT = Path(__file__).resolve().parent.parent

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GymnasiumSettings(Config):
    title = TITLE

    env_args: dict[str, Any] = setting(  # noqa: RUF009  nobody changes it
        "arguments for the environment's constructor", default={}, safe=()
    )
    env_processes: bool = setting(
        "a process for each environment: pays where steps are slow; the numbers stay the same",
        has_effect=False,
        default=False,
    )


READS = (GymnasiumSettings,)


def names() -> list[str]:
    """Return the ids registered with Gymnasium so far, the newest version of each first."""
    return sorted(gymnasium.registry, reverse=True)


def knows(name: str) -> bool:
    """Return whether a name is a registered id, or names a module that may register it."""
    return ":" in name or name in gymnasium.registry


def find(name: str) -> EnvSpec:
    """Return the registered environment of a name, importing the module that it names.

    Raises:
        UserError: there is no such module, importing it fails, or it does not register the id.
    """
    module_name, colon, env_id = name.rpartition(":")
    if colon:
        _import(module_name, name)
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    hint = _hint(module_name, env_id) if colon else did_you_mean(env_id, names())
    raise UserError(f"env: '{name}': no '{env_id}' is registered with Gymnasium.{hint}")


def make(config: GymnasiumSettings, seed: int, **drawn: str) -> VectorEnv:
    """Return `config.n_envs` environments.

    Raises:
        UserError: the environment cannot be made, fails in its first steps, or has spaces that
            agents do not know.
    """
    make_one = _maker(config, **drawn)
    check_first_steps(make_one, config.env)
    return vector_of(make_one, config.n_envs, seed, config.env_processes)


def make_drawn(config: GymnasiumSettings, seed: int) -> VectorEnv:
    """Return environments that are drawn, where they can be."""
    why_not = why_not_drawn(_maker(config), _maker(config, **DRAWN))
    if why_not is None:
        return make(config, seed, **DRAWN)
    log.info("%s is not drawn: %s", config.env, why_not)
    return make(config, seed)


def vector_of(make_one: MakeOne, n_envs: int, seed: int, in_processes: bool = False) -> SingleEnvs:
    """Return a vector environment of single ones, converted to the spaces of agents.

    Each may have a process of its own; the numbers are the same.

    Raises:
        UserError: agents do not know the spaces.
    """

    def converted() -> Converted:
        return Converted(make_one())

    shared_memory = True
    if in_processes:
        with closing(converted()) as one:
            # Gymnasium's shared memory has no room for sentences.
            shared_memory = not has_text(one.observation_space)
    return SingleEnvs(converted, n_envs, seed, in_processes, shared_memory)


def _maker(config: GymnasiumSettings, **drawn: str) -> MakeOne:
    """Return a function that makes one environment, here or in another process."""
    for name in CHOSEN_HERE.intersection(config.env_args):
        raise UserError(f"env_args: {name} is chosen by the program. Leave it out")
    arguments = config.env_args | drawn
    return functools.partial(
        gymnasium.make, find(config.env), disable_env_checker=True, **arguments
    )


def _hint(module_name: str, env_id: str) -> str:
    """Return a hint for a module that was imported and does not register an id."""
    top = module_name.partition(".")[0]
    places = ((spec.id, spec.entry_point) for spec in gymnasium.registry.values())
    own = [known for known, place in places if _package_of(place) == top]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    if own:
        return did_you_mean(env_id, own) or f" {top} registers {', '.join(own[:MOST_NAMED])}"
    if ROOT in Path(file).parents[:2] and Path.cwd() != ROOT:
        return f" {top} is a part of this program: give your module another name"
    return f" In {module_name}: gymnasium.register(id='{env_id or 'MyEnv-v0'}', entry_point=MyEnv)"


def _package_of(entry_point: Any) -> str:
    """Return the package of an environment's class, or of its name as a text."""
    module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return re.split("[.:]", module)[0]


def _import(module_name: str, name: str) -> None:
    """Import the module that registers an environment, from the current folder, too."""
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise UserError(
            f"env: '{name}': '{module_name}' is no name of a module. Write "
            "package.module:MyEnv-v0, the module as after 'import'"
        )
    here = Path.cwd()
    search(here)
    try:
        import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"env: '{name}': there is no module {module_name} in {here} or where Python looks "
            "(PYTHONPATH)"
        ) from error
    except (Exception, SystemExit) as error:  # whatever its author did
        raise failure(name, error) from error


def check_first_steps(make_one: MakeOne, name: str) -> None:
    """Play an environment at random for a moment and check its observations and rewards.

    No random stream of this process moves.

    Raises:
        UserError: it cannot be made, raises an error, or breaks the promises of its spaces.
    """
    quiet = warnings.catch_warnings(action="ignore")
    try:
        with quiet, _random_streams_kept(), closing(make_one()) as env:
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
    except (UserError, DependencyNotInstalled, ModuleNotFoundError):
        raise
    except (Exception, SystemExit) as error:
        raise failure(name, error) from error


def why_not_drawn(make_one: MakeOne, make_drawn: MakeOne) -> str | None:
    """Return why an environment cannot be drawn, None if it can.

    `make_one` makes it as it is trained in, `make_drawn` with the render mode rgb_array.
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
    return UserError(f"env: '{name}' raised {told(error)}{advice(error)}")


@contextmanager
def _random_streams_kept() -> Iterator[None]:
    """Restore the random streams that an environment may share with the run."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


def _begin(env: gymnasium.Env, seed: int | None = None) -> None:
    found = env.reset(seed=seed)
    if not isinstance(found, tuple) or len(found) != 2:
        raise UserError("env: reset() is to return two values: observation, info")
    _check_part(found[0], env.observation_space, "reset()")


def _check_step(env: gymnasium.Env) -> None:
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
            raise UserError(
                f"env: step() returns {shown(ends)} for terminated or truncated. Return a bool"
            )
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
    if is_text(space):
        return isinstance(value, str)
    if isinstance(space, spaces.Box):
        array = np.asarray(value)
        return array.shape == space.shape and np.can_cast(array.dtype, space.dtype, "same_kind")
    return space.contains(value)
