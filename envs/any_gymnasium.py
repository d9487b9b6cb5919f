"""Every environment registered with Gymnasium, and the user's own.

`CartPole-v1` is an id; `package.module:MyEnv-v0` is one that is registered when the module is
imported, from the current folder or where Python looks, as in `gymnasium.make`. Its observations
and actions are converted where they enter (`envs/spaces.py`).

Its `metadata` may hold "action_names" and "number_names". A method `cue()` tells analyses the thing
shown now that is to be remembered, a number from 0 on, or None; `show_cue(observation)` returns an
observation with it, which makes the twin. A run resumes to the bit where `reset(seed=...)` and the
actions decide all that happens in an episode.
"""

import functools
import importlib
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AsyncVectorEnv, VectorEnv
from gymnasium.wrappers import AtariPreprocessing

from envs.episodes import (
    MakeOne,
    Options,
    ResetOptions,
    ResetResult,
    SingleEnvs,
    SingleStepResult,
    WithOptions,
    as_fault,
    checksum,
    import_before_mesa,
)
from envs.notices import do_not_say, name_of, said_so_far, say_once
from envs.settings import GymnasiumSettings, ResetSettings
from envs.spaces import (
    ACTION_MASK,
    Converted,
    ConvertedVector,
    bytes_in,
    has_text,
    success_key,
)
from envs.vector import twin_if_asked
from utils.environments import Action, Observation, Suite
from utils.errors import ENDINGS, ROOT, EnvFault, UserError, did_you_mean, error_text
from utils.packages import missing
from utils.seeding import streams_kept
from utils.user_modules import advice, import_module, is_environment_package, search

CHOSEN_HERE = {"id", "render_mode", "disable_env_checker"}  # of gymnasium.make
DRAWN = {"render_mode": "rgb_array"}
MOST_NAMED = 5
PETTING_ZOO = "pettingzoo"
SEVERAL_AGENTS = (
    ". PettingZoo's have several agents: give a gymnasium.Env that plays for all but one, such as "
    "OneAgent of docs/reference/environments.md"
)
OLD_GYM = "shimmy.GymV26CompatibilityV0(env=...), or GymV21CompatibilityV0 before gym 0.26"
HINTS = {  # by words of a TypeError
    "__init__()": """. Its constructor's arguments are given by env_args='{"name": value}'""",
    "must inherit from the gymnasium.Env": f". One of old gym is bridged by {OLD_GYM}",
}
ATARI, ATARI_PACKAGE = "ALE/", "ale_py"
SECONDS = 0.1  # of checking first steps
MOST_STEPS, MOST_REPEATED = 1_000, 100
# An eighth of the largest byte: MiniGrid's codes end at 10, other boards' hardly above, and what is
# lit in a picture is brighter.
DARK = 31

log = logging.getLogger(__name__)


def names() -> list[str]:
    return sorted(gymnasium.registry, reverse=True)


def knows(name: str) -> bool:
    return ":" in name or name.startswith(ATARI) or name in gymnasium.registry


def find(name: str) -> EnvSpec:
    """Return the registered environment of a name, importing the module that it names.

    Raises:
        UserError: there is no such module, importing it fails, or it does not register the id.
    """
    if name.startswith(ATARI):
        if not is_environment_package(ATARI_PACKAGE):
            raise missing(ATARI_PACKAGE, f"env: '{name}'")
        name = f"{ATARI_PACKAGE}:{name}"
    module_name, colon, env_id = name.rpartition(":")
    if colon:
        _import(module_name, name)
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    hint = _hint(module_name, env_id) if colon else did_you_mean(env_id, names())
    raise UserError(f"env: '{name}': no '{env_id}' is registered with Gymnasium.{hint}")


class AnyGymnasium(Suite):
    scale_rewards, clip_rewards = True, False

    def make(self, config: GymnasiumSettings, seed: int, **drawn: str) -> VectorEnv:
        """Return `config.n_envs` environments.

        Raises:
            UserError: the environment cannot be made, fails in its first steps, or has spaces that
                agents do not know.
        """
        make_one = self.maker(config, **drawn)
        tells = check_first_steps(make_one, config.env)
        return vector_of(make_one, config.n_envs, seed, config.env_processes, *tells)

    def make_drawn(self, config: GymnasiumSettings, seed: int) -> VectorEnv:
        makers = (self.maker(config, **drawn) for drawn in ({}, DRAWN))
        return self.make(config, seed, **how_drawn(config.env, *makers))

    def maker(self, config: GymnasiumSettings, **drawn: str) -> MakeOne:
        """Return a function that makes one; `drawn` are the arguments that let it draw."""
        return as_asked(gymnasium_maker(config, **drawn), config)


class InfoContents(NamedTuple):
    """The contents of an environment's `info`, at every step.

    Attributes:
        has_mask: A mask of actions that its observations have not.
        has_success: Whether the episode has succeeded.
    """

    has_mask: bool
    has_success: bool


def as_asked(make_one: MakeOne, config: ResetSettings) -> MakeOne:
    """Return a maker of an environment with options of its resets, or of its twin if asked."""
    return twin_if_asked(with_options(make_one, config.reset_options), config)


def with_options(make_one: MakeOne, options: ResetOptions) -> MakeOne:
    return (lambda: WithOptions(make_one(), options)) if options else make_one


def vector_of(
    make_one: MakeOne,
    n_envs: int,
    seed: int,
    in_processes: bool = False,
    has_mask: bool = False,
    has_success: bool = False,
) -> SingleEnvs:
    """Return a vector environment of single ones, converted to the spaces of agents.

    Each may have a process of its own; the numbers are the same. `has_mask` and `has_success` are
    the contents of their `info`.

    Raises:
        UserError: agents do not know the spaces.
    """

    said = said_so_far()

    def converted() -> Converted:
        do_not_say(said)  # in processes, again
        return Converted(make_one(), has_mask)

    shared_memory = True
    if in_processes:
        with closing(converted()) as one:
            # Gymnasium's shared memory has no room for sentences.
            shared_memory = not has_text(one.observation_space)
    try:
        with streams_kept():
            return SingleEnvs(converted, n_envs, seed, in_processes, shared_memory, has_success)
    except (DependencyNotInstalled, ModuleNotFoundError):
        raise
    except ENDINGS:
        raise
    except BaseException as error:  # whatever its author did
        raise as_fault(error, "env: ", f", while {n_envs} of them were made") from error


def gymnasium_maker(config: GymnasiumSettings, **drawn: str) -> MakeOne:
    for name in CHOSEN_HERE.intersection(config.env_args):
        raise UserError(f"env_args: {name} is chosen by the program. Leave it out")
    arguments = config.env_args | drawn
    spec = find(config.env)
    if not config.atari_preprocessing:
        return functools.partial(gymnasium.make, spec, disable_env_checker=True, **arguments)
    if _package_of(spec.entry_point) != ATARI_PACKAGE:
        raise UserError(
            f"atari_preprocessing: '{config.env}' is no Atari game of ale_py. Leave it at false"
        )
    return functools.partial(_preprocessed, spec, **({"frameskip": 1} | arguments))


def _preprocessed(spec: EnvSpec, **arguments: Any) -> gymnasium.Env:
    return AtariPreprocessing(gymnasium.make(spec, disable_env_checker=True, **arguments))


def _hint(module_name: str, env_id: str) -> str:
    top = module_name.partition(".")[0]
    places = ((spec.id, spec.entry_point) for spec in gymnasium.registry.values())
    own = [known for known, place in places if _package_of(place) == top]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    if top == PETTING_ZOO:
        return SEVERAL_AGENTS[1:]
    if own:
        return did_you_mean(env_id, own) or f" {top} registers {', '.join(own[:MOST_NAMED])}"
    if ROOT in Path(file).parents[:2] and Path.cwd() != ROOT:
        return f" {top} is a part of this program: give your module another name"
    return f" In {module_name}: gymnasium.register(id='{env_id or 'MyEnv-v0'}', entry_point=MyEnv)"


def _package_of(entry_point: object) -> str:
    module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return re.split("[.:]", module)[0]


def _import(module_name: str, name: str) -> None:
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise UserError(
            f"env: '{name}': '{module_name}' is not the name of a module. Write "
            "package.module:MyEnv-v0, the module as after 'import'"
        )
    # A module beside the user's files is found, as python would find it there.
    here = Path.cwd()
    search(here)
    try:
        import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that it imports itself is missing: its own error says which.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"env: '{name}': there is no module {module_name} in {here} or where Python looks "
            "(PYTHONPATH)"
        ) from error
    except ENDINGS:
        raise
    except BaseException as error:  # whatever its author did
        raise failure(name, error) from error


def check_first_steps(make_one: MakeOne, name: str) -> InfoContents:
    """Play an environment at random for a moment; check its observations and rewards.

    Raises:
        UserError: it cannot be made, raises an error, or breaks the promises of its spaces.
    """

    from envs.streams import Streams  # not above: it brings PyTorch

    with tried(name), closing(make_one()) as env, Streams(name_of(env)).anew():
        converted = Converted(env)
        converted.reset(seed=0)
        # Known after a reset alone; then the space has to be made anew with it.
        has_mask = converted.tells_mask
        converted = Converted(env, has_mask) if has_mask else converted
        _play(converted, name)
    return InfoContents(has_mask, converted.has_success)


def checked_vector(env: VectorEnv, name: str, options: Options = None) -> ConvertedVector:
    """Return a given vector environment in the agents' spaces, after its first steps.

    Raises:
        UserError: as `ConvertedVector` and `check_first_steps`, or its later episodes cannot be
            given the options.
    """

    with tried(name):
        converted = ConvertedVector(env, options)
        from envs.streams import Streams

        with Streams(name_of(env)).anew():
            _play(converted, name)
            # Its own are in other processes: one more is made and watched here.
            if isinstance(env.unwrapped, AsyncVectorEnv):
                with closing(env.unwrapped.env_fns[0]()) as one:
                    _play(Converted(UnchangedCheck(one)), name)
    return converted


class UnchangedCheck(gymnasium.Wrapper):
    """A single environment; UserError where it changes an observation that it has returned."""

    # A process of Gymnasium's begins the next episode before it sends the last observation.

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._shown, self._checksum = None, checksum(None)

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        found = self.env.reset(seed=seed, options=options)
        self._check(found[0])
        return found

    def step(self, action: Action) -> SingleStepResult:
        found = self.env.step(action)
        self._check(found[0])
        return found

    def _check(self, shown: Observation) -> None:
        if checksum(self._shown) != self._checksum:
            raise UserError(
                f"env: {type(self.unwrapped).__name__} changes observations that it has returned, "
                "and in an AsyncVectorEnv the last one of an episode is lost. Let it return copies"
            )
        self._shown, self._checksum = shown, checksum(shown)


def _play(env: Converted | ConvertedVector, name: str) -> None:
    # At random for a moment, then the first steps again: seed and actions should decide all.
    env.action_space.seed(0)
    shown, _ = env.reset(seed=0)
    brightest: dict[tuple[str, bool], float] = {}  # by name, and whether it is an image
    actions: list[np.ndarray] = []
    sums, has_ended = [checksum(shown)], False
    until = time.perf_counter() + SECONDS  # a slow one shows less of itself
    for _ in range(MOST_STEPS):
        for named, largest in bytes_in(env.own_space, shown):
            brightest[named] = max(brightest.get(named, 0), largest)
        mask: Observation = shown.get(ACTION_MASK) if isinstance(shown, dict) else None
        # A vector's space samples by a tuple of masks, one for each environment.
        mask = tuple(mask) if np.ndim(mask) == 2 else mask
        action = env.action_space.sample(mask)
        shown, paid, terminated, truncated, _ = env.step(action)
        ends = bool(np.any(terminated | truncated))
        if not has_ended and len(actions) < MOST_REPEATED:
            actions.append(action)
            sums.append(_checksum(shown, paid, ends))
        if env.reads_success and not ends and success_key(env.info):
            env.has_success = True  # told at every step; not so at the end of an episode alone
        if ends:
            has_ended = True
            if isinstance(env, Converted):
                shown, _ = env.reset()
        if time.perf_counter() > until:
            break
    for (part, is_image), most in brightest.items():
        if most <= DARK:
            read = "a picture and is nearly black" if is_image else "fractions of 255 and is near 0"
            draw = "draw them (MiniGrid: RGBImgPartialObsWrapper) or " if is_image else ""
            say_once(
                f"env: '{name}': {part or 'the observation'}",
                f" is read as {read}: no value of its first steps exceeds {most:.0f} of 255. If "
                f"these are codes, {draw}give their space the highest of all codes as its bound",
            )
    _repeat(env, name, actions, sums)


def _repeat(
    env: Converted | ConvertedVector, name: str, actions: list[np.ndarray], sums: list[int]
) -> None:
    """Play actions of the first episode again: the checksums must be those of the first time."""
    until = time.perf_counter() + SECONDS
    found = checksum(env.reset(seed=0)[0])
    for n_steps, action in enumerate([*actions, None]):
        if found != sums[n_steps]:
            say_once(
                f"env: '{name}'",
                f" shows or pays something else {n_steps} steps after a second reset(seed=0), with "
                "the same actions. Either it remembers earlier episodes, as Gymnasium's "
                "NormalizeObservation does: evaluations then see other numbers than training, so "
                "leave that out and choose normalize_observations=true. Or it draws from elsewhere "
                "than self.np_random: a resumed run then begins new episodes",
            )
        if found != sums[n_steps] or action is None or time.perf_counter() > until:
            return
        shown, paid, terminated, truncated, _ = env.step(action)
        found = _checksum(shown, paid, bool(np.any(terminated | truncated)))


def _checksum(shown: Observation, paid: object, ends: bool) -> int:
    # A vector then shows the beginning of an episode that no seed was given.
    return checksum(paid if ends else (shown, paid))


@contextmanager
def tried(name: str) -> Iterator[None]:
    """Tell the errors of an environment in one line; no random stream of this process moves."""
    import torch

    from envs.streams import ProcessSettings

    ours = ProcessSettings.now()._replace(dtype=torch.float32, device=torch.device("cpu"))
    try:
        with _no_warnings(), streams_kept():
            yield
    except EnvFault as error:
        raise UserError(f"env: '{name}': {error}") from error
    except (UserError, DependencyNotInstalled, ModuleNotFoundError):
        raise
    except ENDINGS:
        raise
    except BaseException as error:  # whatever its author did
        raise failure(name, error) from error
    if changed := ours.put_back():  # where it was imported or made
        raise UserError(f"env: '{name}' {changed}")


def how_drawn(name: str, make_one: MakeOne, make_drawn: MakeOne) -> dict[str, str]:
    """Return the arguments of `gymnasium.make` that draw; none, and say why, where that fails."""
    why_not = why_not_drawn(make_one, make_drawn)
    if why_not is None:
        return DRAWN
    log.info("%s is not drawn: %s", name, why_not)
    return {}


def why_not_drawn(make_one: MakeOne, make_drawn: MakeOne) -> str | None:
    """Return why an environment cannot be drawn, None if it can.

    `make_one` makes it as it is trained in, `make_drawn` with the render mode rgb_array.
    """
    try:
        with streams_kept(), closing(make_one()) as env:
            if "rgb_array" not in (env.metadata.get("render_modes") or ()):
                return "it has no render mode rgb_array"
        _make_mujoco_drawable()
        with streams_kept(), _no_warnings(), closing(make_drawn()) as env:
            env.reset(seed=0)
            # Tried once: a driver that is missing shows only when something is drawn.
            picture = np.asarray(env.render())
    except Exception as error:  # whatever its author did
        return error_text(error)
    if picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3:
        return None
    return f"it draws {picture.dtype} {list(picture.shape)}, not uint8 [H, W, 3]"


def _make_mujoco_drawable() -> None:
    if "mujoco" not in sys.modules:
        return
    import_before_mesa()
    # Without a display Gymnasium would settle for GLFW, which then draws nothing. EGL is tried
    # first: with a MUJOCO_GL that does not work, mujoco cannot even be imported.
    is_chosen = sys.platform != "linux" or {"DISPLAY", "MUJOCO_GL"} & os.environ.keys()
    if not is_chosen:
        logging.getLogger("OpenGL").setLevel(logging.WARNING)
        with suppress(Exception):  # whatever its drivers do
            importlib.import_module("mujoco.egl").GLContext(1, 1).free()
            os.environ["MUJOCO_GL"] = "egl"


def failure(name: str, error: BaseException) -> UserError:
    line = error_text(error)
    hints = (
        hint for words, hint in HINTS.items() if isinstance(error, TypeError) and words in line
    )
    return UserError(f"env: '{name}' raised {line}{next(hints, advice(error))}")


_no_warnings = functools.partial(warnings.catch_warnings, action="ignore")
