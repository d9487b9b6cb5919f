"""Environments: a name leads to its suite, the suite to a vector environment.

A name that no suite has is one of Gymnasium's, or `package.module:MyEnv-v0` (`any_gymnasium.py`).
A suite is a module of this package, or a class in one, with a function

    make(config, seed) -> VectorEnv    config.n_envs times config.env, in a run of that seed

and, where SUITES holds only the beginnings of its names, `names() -> list[str]`. Optional are
`ACTION_NAMES`; `NUMBER_NAMES`, of the numbers of a vector it shows; `PICTURE_LEGEND`, the meaning
of the colours in `render`; and `make_drawn(config, seed)`, for environments with a `render` where
those of `make` have none. Names that differ among its environments stand in `metadata`, as
"action_names" and "number_names". envs/settings.py has the settings that a suite reads.

Observations are vectors, uint8 images, channel first, or dictionaries of those and texts; actions
are discrete, or boxes of numbers from -1 to 1; an ended episode restarts within its last step
(Gymnasium's SAME_STEP autoreset). Where `has_success` is true, info has "success" [N] when an
episode ended. `cues()` (envs/vector.py) tells analyses the things to be remembered. With
`render_mode` "rgb_array", `render` returns a picture [H, W, 3] of each. A run resumes to the bit
where its episodes can be played again (envs/episodes.py); elsewhere it begins new ones.
"""

import functools
import logging
import pkgutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import gymnasium
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import VectorEnv

from envs import any_gymnasium
from envs.episodes import MAKE_ANEW
from envs.facts import facts_of
from envs.settings import FULL, READS, TITLE, ResetSettings
from envs.spaces import ACTION_NAMES, NUMBER_NAMES, shown
from envs.vector import EpisodeStatistics
from utils.errors import ENDINGS, UserError, did_you_mean, shortened, told
from utils.settings import Config, Part, Registry
from utils.user_modules import GIVEN

# A vector environment, or a function that makes one, or a single environment.
EnvLike = VectorEnv | Callable[[], gymnasium.Env | VectorEnv]


class Suite(NamedTuple):
    place: str  # a module, or a class in one: module:Class
    scale_rewards: bool = False
    clip_rewards: bool = True  # those that are scaled


SUITES = {
    "MiniGrid-": Suite("envs.minigrid", scale_rewards=True),
    "BabyAI-": Suite("envs.minigrid", scale_rewards=True),
    "MiniWorld-": Suite("envs.miniworld", scale_rewards=True),
    "RandomMaze-v0": Suite("envs.random_maze"),
    "TMazePassive-v0": Suite("envs.t_maze"),
    "TMazeActive-v0": Suite("envs.t_maze"),
    "VisualMatch-v0": Suite("envs.three_phases:VisualMatchVectorEnv"),
    "KeyToDoor-v0": Suite("envs.three_phases:KeyToDoorVectorEnv"),
    "Housekeep-v0": Suite("envs.household.simulator"),
    "HousekeepText-v0": Suite("envs.household.text_world"),
    "ContinuousRecognition-v0": Suite("envs.continuous_recognition", scale_rewards=True),
    "Crafter-v1": Suite("envs.crafter"),
    "CrafterText-v0": Suite("envs.crafter:CrafterText"),
    "popgym-": Suite("envs.popgym"),
    "psychlab_": Suite("envs.psychlab", scale_rewards=True),
    GIVEN: Suite(
        "envs", scale_rewards=True, clip_rewards=False
    ),  # an object of a Python program, see `given` and `make`
}
SUITES |= dict.fromkeys(
    ("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"),
    Suite("envs.envpool_vector", scale_rewards=True),
)
SUITES |= dict.fromkeys(
    (
        f"{task}{kind}-v0"
        for task in (
            *("Pendulum", "Ant", "HalfCheetah", "Hopper", "Walker2d"),
            *("AntBullet", "HalfCheetahBullet", "HopperBullet", "Walker2DBullet"),
        )
        for kind in "PV"
    ),
    Suite("envs.partial_control"),
)
ANY = TITLE
FALLBACK = Suite("envs.any_gymnasium", scale_rewards=True, clip_rewards=False)
_given: dict[str, EnvLike] = {}  # by their names in settings
_made_before: list[weakref.ref[Any]] = []  # by given functions
_facts: dict[str, dict[str, Any]] = {}  # of the given ones that have been made
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
    try:
        module = pkgutil.resolve_name(suite.place)
        make = getattr(module, "make_drawn", module.make) if drawn else module.make
        return EpisodeStatistics(make(config, seed), config.env)
    except ModuleNotFoundError as error:
        raise _missing_package(config.env, error) from error
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
        raise UserError(f"env: the run is on {name}, and given is {', '.join(_given)}")
    if name.startswith(GIVEN):
        raise UserError(
            "env: this environment is an object of a Python program, and has no name. Give it "
            "again: helm.train(settings, env=...), helm.load(run, env=...) or "
            "helm.resume(run, env=...)"
        )
    suite = _find_suite(name)
    try:
        if suite is FALLBACK:
            any_gymnasium.find(name)
            return
        module = pkgutil.resolve_name(suite.place)
        closed = [key for key, each in SUITES.items() if each == suite]
        names = module.names() if hasattr(module, "names") else closed
    except ModuleNotFoundError as error:
        raise _missing_package(name, error) from error
    if name not in names:
        key = ENVIRONMENTS.known_as(name) or ""  # one module may have the tasks of two suites
        near = [each for each in names if each.startswith(key)] if key[-1:] in "-_" else names
        hint = did_you_mean(name, near) or f" Allowed: {', '.join(near)}"
        raise UserError(f"env: unknown environment '{shortened(name)}'.{hint}")


def action_names(name: str, n_actions: int, metadata: Mapping[str, Any] | None = None) -> list[str]:
    """Return the names of an environment's actions, their numbers where it has none."""
    own = getattr(pkgutil.resolve_name(_find_suite(name).place), "ACTION_NAMES", ())
    known = [str(each) for each in (metadata or {}).get(ACTION_NAMES, own)]
    return [*known[:n_actions], *(str(number) for number in range(len(known), n_actions))]


def number_names(name: str, metadata: Mapping[str, Any] | None = None) -> list[str]:
    own = getattr(pkgutil.resolve_name(_find_suite(name).place), "NUMBER_NAMES", ())
    return [str(each) for each in (metadata or {}).get(NUMBER_NAMES, own)]


def picture_legend(name: str) -> str:
    return getattr(pkgutil.resolve_name(_find_suite(name).place), "PICTURE_LEGEND", "")


class Suites(Registry):
    def known_as(self, name: str) -> str | None:
        """Return the key of the suite that has an environment; None if there is none.

        The key is all of the name or its beginning. A name of no suite is one of Gymnasium's, or a
        misspelt one of the suite with that beginning, in any case.
        """
        if _find_key(name) is None and any_gymnasium.knows(name):
            return ANY
        plain = name.casefold()
        beginnings = (key for key in SUITES if plain.startswith(key.rstrip("-_").casefold()))
        return _find_key(name) or max(beginnings, key=len, default=None)

    def settings(self) -> dict[str, tuple[type[Part], ...]]:
        return {key: READS.get(key, ()) for key in (*SUITES, ANY)}


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
    return FALLBACK if key == ANY else SUITES[key]


def _missing_package(name: str, error: ModuleNotFoundError) -> UserError:
    return UserError(
        f"env: '{name}' needs the package '{error.name}', which is not installed. "
        f"Run: pip install {error.name}"
    )


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


def given_facts(name: str) -> dict[str, Any]:
    """Return what tells a given environment from others of its name; nothing of a named one."""
    return _facts.get(name, {})


def is_given_vector(name: str) -> bool:
    """Return whether a name stands for a vector environment: it exists once, and stays open."""
    return isinstance(_given.get(name), VectorEnv)


def make(config: ResetSettings, seed: int) -> VectorEnv:
    given_env = _given[config.env]
    with any_gymnasium.tried(config.env):
        made = _made(given_env)
    try:
        _facts[config.env] = facts_of(given_env, made)
    except Exception as error:  # whatever its author did
        log.warning(f"env: what tells {config.env} from others of its name: {told(error)}")
    if not isinstance(made, VectorEnv):
        with any_gymnasium.tried(config.env):
            made.close()
        make_one = any_gymnasium.as_asked(functools.partial(_made, given_env), config)
        tells = any_gymnasium.check_first_steps(make_one, config.env)
        return any_gymnasium.vector_of(make_one, config.n_envs, seed, False, *tells)
    if config.observability == FULL:
        raise UserError(
            "observability: a vector environment that is given has no twin. Give a function that "
            "makes one environment, or leave observability at partial"
        )
    if made.num_envs != config.n_envs:
        raise UserError(
            f"env: a vector environment of {made.num_envs} where {config.n_envs} are needed. Give "
            "one of that many, or a function that makes one environment"
        )
    return any_gymnasium.checked_vector(made, config.env, config.reset_options)


def _name_of(env: EnvLike) -> str:
    if isinstance(env, type):
        return f"{GIVEN}{env.__name__}"
    with any_gymnasium.tried(type(env).__name__):
        made = _made(env)
        inner = getattr(made.unwrapped, "envs", [made])[0]
        if made is not env:
            made.close()
    return f"{GIVEN}{type(inner.unwrapped).__name__}"


def _made(env: Any) -> Any:
    try:
        made = env() if callable(env) and not isinstance(env, VectorEnv) else env
    except ENDINGS:
        raise
    except BaseException as error:  # whatever its author did
        raise UserError(
            f"env: making it raised {told(error)}. Give a function without arguments, such as "
            "lambda: MyEnv(size=8)"
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
    names = (each.__module__ for each in type(made).__mro__)
    packages = {name.partition(".")[0] for name in (*names, getattr(made, "__name__", ""))}
    hint = f". One of old gym is bridged by {any_gymnasium.OLD_GYM}" * ("gym" in packages)
    if any_gymnasium.PETTING_ZOO in packages:
        hint = any_gymnasium.SEVERAL_AGENTS
    raise UserError(
        f"env: {given} {shown(type(made).__name__)}, neither a vector environment nor a function "
        f"that makes one environment of Gymnasium, such as lambda: MyEnv(){hint}"
    )
