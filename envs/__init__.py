"""Environments: a name leads to its suite, the suite to a vector environment.

A name that no suite has is one of Gymnasium's, or `package.module:MyEnv-v0` (`any_gymnasium.py`).
A suite derives from `Suite` and makes `Environments` (utils/environments.py).

Observations are vectors, uint8 images, channel first, or dictionaries of those and texts; actions
are discrete, or boxes of numbers from -1 to 1; an ended episode restarts within its last step
(Gymnasium's SAME_STEP autoreset). Where `has_success` is true, info has "success" [N] when an
episode ended. With `render_mode` "rgb_array", `render` returns a picture [H, W, 3] of each. A run
resumes to the bit where its episodes can be played again (envs/episodes.py); elsewhere it begins
new ones.
"""

import functools
import logging
import pkgutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import SyncVectorEnv, VectorEnv

from envs import any_gymnasium
from envs.episodes import MAKE_ANEW
from envs.facts import facts_of
from envs.settings import FULL, OWN_GRIDS, READS, TITLE, ResetSettings
from envs.spaces import brief
from envs.vector import EpisodeStatistics
from utils.environments import Suite
from utils.errors import ENDINGS, UserError, did_you_mean, error_text, shortened
from utils.packages import missing
from utils.settings import Config, Part, Registry
from utils.user_modules import GIVEN

# A vector environment, or a function that makes one, or a single environment.
EnvLike = VectorEnv | Callable[[], gymnasium.Env | VectorEnv]


# "module:Class" by name, or by its beginning, which ends in "-", "_" or ":".
SUITES = {
    "MiniGrid-": "envs.minigrid:MiniGrid",
    "BabyAI-": "envs.minigrid:MiniGrid",
    "MiniWorld-": "envs.miniworld:MiniWorld",
    "RandomMaze-v0": "envs.random_maze:RandomMaze",
    "TMazePassive-v0": "envs.t_maze:TMaze",
    "TMazeActive-v0": "envs.t_maze:TMaze",
    "VisualMatch-v0": "envs.three_phases:VisualMatch",
    "KeyToDoor-v0": "envs.three_phases:KeyToDoor",
    "Housekeep-v0": "envs.household.simulator:Housekeep",
    "HousekeepText-v0": "envs.household.text_world:HousekeepText",
    "ContinuousRecognition-v0": "envs.continuous_recognition:ContinuousRecognition",
    "Crafter-v1": "envs.crafter:Crafter",
    "CrafterText-v0": "envs.crafter:CrafterText",
    "popgym-": "envs.popgym:Popgym",
    "psychlab_": "envs.psychlab:Psychlab",
    "Avalon-": "envs.avalon:Avalon",
    GIVEN: "envs:Given",
}
GAMES = ("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner")
SUITES |= dict.fromkeys(GAMES, "envs.envpool_vector:Procgen")
BULLET = ("AntBullet", "HalfCheetahBullet", "HopperBullet", "Walker2DBullet")
for robot in ("Pendulum", "Ant", "HalfCheetah", "Hopper", "Walker2d", *BULLET):
    for kind in "PV":
        SUITES[f"{robot}{kind}-v0"] = "envs.partial_control:PartialControl"
# Names of these are in Gymnasium's registry, or lead there.
REGISTERED = {TITLE: "envs.any_gymnasium:AnyGymnasium", OWN_GRIDS: "envs.minigrid:OwnMiniGrid"}
_given: dict[str, EnvLike] = {}  # by their names in settings
_made_before: list[weakref.ref[gymnasium.Env | VectorEnv]] = []  # by given functions
_facts: dict[str, dict[str, object]] = {}  # of the given ones that have been made
log = logging.getLogger(__name__)


def make_vector_env(config: Config, seed: int, drawn: bool = False) -> EpisodeStatistics:
    """Return the environments of the settings with episode statistics.

    With `drawn`, environments that can be drawn whole are preferred to faster ones.

    Raises:
        UserError: No suite knows the name, the suite's package is not installed, or agents cannot
            be trained in the environment.
    """
    check_env_name(config.env)
    suite = _find_suite(config.env)
    make = suite.make_drawn if drawn else suite.make
    try:
        return EpisodeStatistics(make(config, seed), config.env, suite)
    except ModuleNotFoundError as error:
        raise missing(str(error.name), f"env: '{config.env}'") from error
    except DependencyNotInstalled as error:
        raise UserError(f"env: '{config.env}': {error}") from error


def scales_rewards(name: str) -> bool:
    return _find_suite(name).scale_rewards


def clips_rewards(name: str) -> bool:
    suite = _find_suite(name)
    return suite.scale_rewards and suite.clip_rewards


def check_env_name(name: str) -> None:
    """Raise UserError unless a suite offers an environment of this name, or it is the given one."""
    if name in _given:
        return
    if _given:
        raise UserError(
            f"env: the run was trained on {name}, and {', '.join(_given)} is given. Give the "
            "run's own"
        )
    if name.startswith(GIVEN):
        raise UserError(
            "env: this environment is an object of a Python program, and has no name. Give it "
            "again: helm.train(settings, env=...), helm.load(run, env=...) or "
            "helm.resume(run, env=...)"
        )
    suite, key = _find_suite(name), ENVIRONMENTS.known_as(name) or ""
    try:
        if key in REGISTERED:
            any_gymnasium.find(name)
            return
        names = suite.names()
    except ModuleNotFoundError as error:
        raise missing(str(error.name), f"env: '{name}'") from error
    if names is None:
        names = [each for each, place in SUITES.items() if place == SUITES[key]]
    if name not in names:  # one suite may have names of two beginnings
        near = [each for each in names if each.startswith(key)] if key[-1:] in "-_" else names
        hint = did_you_mean(name, near) or f" Allowed: {', '.join(near)}"
        raise UserError(f"env: unknown environment '{shortened(name)}'.{hint}")


class Suites(Registry):
    def known_as(self, name: str) -> str | None:
        """Return the key of the suite that has an environment; None if there is none.

        The key is all of the name or its beginning. A name of no suite is one of Gymnasium's, or a
        misspelt one of the suite with that beginning, in any case.
        """
        if _find_key(name) is None and any_gymnasium.knows(name):
            is_grid = name.rpartition(":")[2].startswith(("MiniGrid-", "BabyAI-"))
            return OWN_GRIDS if is_grid else TITLE
        plain = name.casefold()
        beginnings = (key for key in SUITES if plain.startswith(key.rstrip("-_").casefold()))
        return _find_key(name) or max(beginnings, key=len, default=None)

    def settings(self) -> dict[str, tuple[type[Part], ...]]:
        return {key: READS.get(key, ()) for key in (*SUITES, *REGISTERED)}


ENVIRONMENTS = Suites("env", {}, "environment", READS)


def _find_key(name: str) -> str | None:
    """Return the longest key of the suites that a name is or, where it is open, begins with."""
    keys = (key for key in SUITES if name == key or (key[-1] in "-_:" and name.startswith(key)))
    return max(keys, key=len, default=None)


def _find_suite(name: str) -> Suite:
    key = ENVIRONMENTS.known_as(name)
    if key is None:
        beginnings = [key + "*" * key.endswith(("-", "_")) for key in SUITES if key != GIVEN]
        hint = did_you_mean(name, beginnings) or did_you_mean(name, any_gymnasium.names())
        hint += f" One that a package registers is package:{name}" * bool(hint)
        allowed = f" Allowed: {', '.join(beginnings)}, ids of Gymnasium, package:{name}"
        raise UserError(f"env: unknown environment '{shortened(name)}'.{hint or allowed}")
    try:
        return pkgutil.resolve_name((SUITES | REGISTERED)[key])()
    except ModuleNotFoundError as error:
        raise missing(str(error.name), f"env: '{name}'") from error


@contextmanager
def given(env: EnvLike | None) -> Iterator[str | None]:
    """Let the settings' `env` name an object of a Python program meanwhile; yield that name.

    The object is a vector environment with seeds of its own, which stays open, or a function that
    makes one, or a single environment. Without an object nothing is named.

    Raises:
        UserError: it is neither.
    """
    if env is None:
        yield None
        return
    name = _name_of(env)
    _given[name] = env
    try:
        yield name
    finally:
        del _given[name]
        _made_before.clear()
        _facts.pop(name, None)


def given_facts(name: str) -> dict[str, object]:
    """Return the facts of a given environment, by name; of a named one none."""
    return _facts.get(name, {})


def is_given_vector(name: str) -> bool:
    """Return whether a name stands for a vector environment: it exists once, and stays open."""
    return isinstance(_given.get(name), VectorEnv)


class Given(Suite):
    scale_rewards, clip_rewards = True, False

    def make(self, config: ResetSettings, seed: int) -> VectorEnv:
        given_env = _given[config.env]
        with any_gymnasium.tried(config.env):
            made = _made(given_env)
        try:
            _facts[config.env] = facts_of(given_env, made)
        except Exception as error:  # whatever its author did
            log.warning(
                f"env: what tells {config.env} from others of its name: {error_text(error)}"
            )
        if not isinstance(made, VectorEnv):
            with any_gymnasium.tried(config.env):
                made.close()
            make_one = any_gymnasium.as_asked(functools.partial(_made, given_env), config)
            tells = any_gymnasium.check_first_steps(make_one, config.env)
            return any_gymnasium.vector_of(make_one, config.n_envs, seed, False, *tells)
        if config.observability == FULL:
            raise UserError(
                "observability: a given vector environment has no twin. Give a function "
                "that makes one environment, or leave observability at partial"
            )
        if made.num_envs != config.n_envs:
            raise UserError(
                f"env: the vector environment has {made.num_envs} environments, and "
                f"{config.n_envs} are needed. Give one of that many, or a function that makes "
                "one environment"
            )
        return any_gymnasium.checked_vector(made, config.env, config.reset_options)


def _name_of(env: EnvLike) -> str:
    if isinstance(env, type):
        return f"{GIVEN}{env.__name__}"
    with any_gymnasium.tried(type(env).__name__):
        made = _made(env)
        inner = made.unwrapped
        if isinstance(inner, SyncVectorEnv):
            inner = inner.envs[0]
        if made is not env:
            made.close()
    return f"{GIVEN}{type(inner.unwrapped).__name__}"


def _made(env: EnvLike) -> Any:
    try:
        made = env() if callable(env) and not isinstance(env, VectorEnv) else env
    except ENDINGS:
        raise
    except BaseException as error:  # whatever its author did
        raise UserError(
            f"env: making it raised {error_text(error)}. Give a function without arguments, "
            "such as lambda: MyEnv(size=8)"
        ) from error
    if made is not env and isinstance(made, VectorEnv | gymnasium.Env):
        inner = made.unwrapped
        if any(each() is inner for each in _made_before):
            raise UserError(
                f"env: the function returns one {type(inner).__name__} again and again{MAKE_ANEW}"
            )
        _made_before.append(weakref.ref(inner))
        return made
    if isinstance(made, VectorEnv):
        return made
    given = "the function returns" if made is not env else "given is"
    names = [each.__module__ for each in type(made).__mro__]
    names += [made.__name__] if isinstance(made, ModuleType) else []
    packages = {name.partition(".")[0] for name in names}
    hint = f". One of old gym is bridged by {any_gymnasium.OLD_GYM}" * ("gym" in packages)
    if any_gymnasium.PETTING_ZOO in packages:
        hint = any_gymnasium.SEVERAL_AGENTS
    raise UserError(
        f"env: {given} {brief(type(made).__name__)}, neither a vector environment nor a function "
        f"that makes one environment of Gymnasium, such as lambda: MyEnv(){hint}"
    )
