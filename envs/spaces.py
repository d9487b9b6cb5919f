"""Spaces of any Gymnasium environment, and the ones that agents see and act in.

Agents see images of one size (uint8, channel first), vectors, numbers of a few, text, and
dictionaries of those; they choose among discrete actions, or give numbers from -1 to 1. Other
spaces that hold the same in another form are converted; the rest cannot be used. All that a foreign
environment returns is tested here, where it enters: observations against their space, all numbers
for finite ones. And it is copied here, once: an environment may return its own arrays, and change
them later.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorObservationWrapper,
    VectorWrapper,
)
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.utils import rescale_box
from numpy.typing import ArrayLike

from envs.episodes import (
    Options,
    ResetOptions,
    ResetResult,
    SingleStepResult,
    StepResult,
    WithOptions,
    check_are_several,
)
from envs.notices import name_of, say_once
from envs.numbers import EXACT, NUMBERS, READ, Narrowing, check_reward, narrowings
from utils.environments import Action, Info, Observation, Wrapped
from utils.errors import EnvFault, UserError, shortened

LEAST_SIDE = 5  # pixels of an image
USUAL_CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency
BOUNDED = "Bytes whose space has a bound below 255 are read as numbers"
LONGEST_SIDE = 200  # of a picture in pixels; an episode of evaluation keeps hundreds
MOST_NUMBERS = 16_384  # of an observation; every value of a discrete number counts
MOST_ACTIONS = 4_096
ACTION_NAMES, NUMBER_NAMES = "action_names", "number_names"  # in the metadata
# A key of an observation, or of info: 1 where an action is allowed now, 0 where it is not.
ACTION_MASK = "action_mask"
# Keys of info: whether the episode that has just ended has succeeded; the first one is read.
SUCCESS = ("success", "is_success")
HAS_SUCCESS = "has_success"  # in the metadata: whether it tells that
BOOLS = (bool, np.bool_)
RESET, STEP = ("observation", "info"), ("observation", "reward", "terminated", "truncated", "info")
ALLOWED = (
    "Agents see images (uint8, from 5x5 up), boxes of numbers, discrete numbers, text, and "
    "dictionaries and tuples of those"
)


def _same(value: Observation) -> Observation:
    return value


class Conversion(NamedTuple):
    """A space in the form that agents know, and the conversion to it.

    `convert` turns an observation of the environment into one of this space, or an action of this
    space into one of the environment. It takes a batch of them, too.
    """

    space: spaces.Space
    convert: Callable[[Any], Any] = _same


class Converted(gymnasium.Wrapper):
    """An environment in the agents' observations and actions; its `info` stays behind.

    But for the mask of actions in it, which `has_mask` puts into the observations, and for the
    success of an ended episode. Anything wrong that it returns is an EnvFault.

    Attributes:
        tells_mask: Whether the info of `reset` has a mask that the observations have not.
        info: That of the last step.
        has_success: Whether episodes tell success: by the metadata, or found in first steps.
        own_space: Of the observations, before they become the agents'.
    """

    tells_mask = False
    info: object = None

    def __init__(self, env: gymnasium.Env, has_mask: bool = False) -> None:
        super().__init__(env)
        metadata = checked_metadata(env)
        self.reads_success = metadata.get(HAS_SUCCESS, True)
        self.has_success = metadata.get(HAS_SUCCESS, False)
        self.action_space, self._action = adapt_action_space(env.action_space)
        # The mask becomes a part of the observation, where agents look for it.
        shown_space = env.observation_space
        if has_mask:
            mask = spaces.MultiBinary(spaces.flatdim(self.action_space))
            shown_space = spaces.Dict(_with_mask(shown_space, shown_space, mask))
        self._has_mask, self._name, self.own_space = has_mask, name_of(env), shown_space
        self._check = checker(shown_space, self._name)
        self.observation_space, self._observed = adapt_observation_space(shown_space)
        _check_mask_space(self.observation_space, self.action_space)
        actions = env.action_space
        if isinstance(actions, spaces.MultiDiscrete):
            numbers = (self._action(action).ravel() for action in range(int(actions.nvec.prod())))
            names = [", ".join(map(str, each)) for each in numbers]
            self.metadata = {**metadata, ACTION_NAMES: names}

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        found = self.env.reset(seed=seed, options=options)
        observation, info = _parts(found, "reset()", RESET)
        is_told = isinstance(info, dict) and ACTION_MASK in info
        self.tells_mask = is_told and ACTION_MASK not in _parts_of(self.observation_space)
        return self._converted(observation, info, "reset()"), {}

    def step(self, action: Action) -> SingleStepResult:
        found = self.env.step(self._action(action))
        observation, reward, terminated, truncated, info = _parts(found, "step()", STEP)
        # Two comparisons settle nearly every step; the rest is looked at in full.
        if not isinstance(reward, NUMBERS) or not -EXACT <= reward <= EXACT:
            if isinstance(reward, np.ndarray):
                reward = reward[()]  # an array without dimensions is its number
            check_reward(reward, self._name)
        if not (isinstance(terminated, BOOLS) and isinstance(truncated, BOOLS)):
            for end in (terminated, truncated):
                if _truth(end) is None:
                    raise EnvFault(
                        f"step() returns {end!r:.100} for terminated or truncated. Return a bool"
                    )
            terminated, truncated = bool(terminated), bool(truncated)
        is_over = bool(terminated or truncated)
        observation = self._converted(observation, info, "step()", is_over)
        self.info, told = info, {}
        if is_over and self.reads_success and (key := success_key(info)):
            told = {SUCCESS[0]: _succeeded(info[key], key)}
        return observation, reward, terminated, truncated, told

    def _converted(
        self, observation: object, info: object, where: str, is_over: bool = False
    ) -> Observation:
        if self._has_mask:
            mask = info.get(ACTION_MASK) if isinstance(info, dict) else None
            observation = _with_mask(self.env.observation_space, observation, mask)
        self._check(observation, where)
        return _some_allowed(self._observed(own(observation)), where, is_over)

    def render(self) -> np.ndarray:
        """Return a picture of the whole environment, made smaller where it is large.  [H, W, 3]"""
        picture = np.asarray(self.env.render())
        # Every k-th pixel: the smallest k that makes the picture fit.
        every = -(-max(picture.shape[:2]) // LONGEST_SIDE)
        return picture[::every, ::every]


class ConvertedVector(Wrapped):
    """A vector environment in the agents' observations and actions.

    It has to restart an ended episode within the step that ends it (SAME_STEP). Anything wrong that
    it returns is an EnvFault. Every `reset` is given the `options`. Where an ended episode tells
    success, info has "success" [N], valid where the mask "_success" is true.

    Attributes:
        info: That of the last step.
        has_success, own_space: As of `Converted`; its class may say success, too.

    Raises:
        UserError: it is no such environment, or agents do not know its spaces.
    """

    def __init__(self, env: object, options: Options = None) -> None:
        if not isinstance(env, VectorEnv):
            raise UserError(
                f"env: a {type(env).__name__} is given, not a gymnasium.vector.VectorEnv. Write: "
                "gymnasium.vector.SyncVectorEnv([make_one] * 16, "
                "autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)"
            )
        super().__init__(env)
        _let_reset_in_same_step(env)
        metadata = checked_metadata(env)
        self.metadata = {**metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.reads_success = metadata.get(HAS_SUCCESS, True)

        own_word = getattr(env.unwrapped, HAS_SUCCESS, False)  # of a NumpyVectorEnv
        self.has_success = bool(metadata.get(HAS_SUCCESS, own_word))
        _prepare(env.unwrapped, options)
        self.own_space = env.single_observation_space
        self.single_observation_space, self._observed = adapt_observation_space(self.own_space)
        self.single_action_space, self._action = adapt_action_space(env.single_action_space)
        _check_mask_space(self.single_observation_space, self.single_action_space)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.action_space = batch_space(self.single_action_space, env.num_envs)
        name = name_of(env)
        self._check = checker(env.observation_space, name)
        self._check_final = checker(env.single_observation_space, name)
        from envs.streams import Streams  # not above: it brings PyTorch

        self._paid, self._streams = Narrowing(READ, name, "pays"), Streams(name)
        self._shape, self._options = (env.num_envs,), options or {}

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        options = {**self._options, **(options or {})} or None
        with self._streams.anew(seed):
            found = self.env.reset(seed=seed, options=options)
        observations, info = _parts(found, "reset()", RESET)
        self._check(observations, "reset()")
        if not isinstance(info, dict):
            raise EnvFault(f"reset() returns {brief(info)} as info. Return a dictionary")
        if ACTION_MASK in info and ACTION_MASK not in _parts_of(self.single_observation_space):
            raise UserError(
                f"env: a vector environment's {ACTION_MASK} is read from its observations, not "
                "from info. Put it there, or give a function that makes one environment"
            )
        return _some_allowed(self._observed(own(observations)), "reset()"), info

    def step(self, actions: np.ndarray) -> StepResult:
        own_actions = np.array(self._action(actions))  # it may change them
        with self._streams:
            found = self.env.step(own_actions)
        observations, rewards, *ends, info = _parts(found, "step()", STEP)
        self._check(observations, "step()")
        # A copy: an environment may return one buffer again and again.
        rewards = np.array(rewards)
        terminated, truncated = (_truths(np.array(each)) for each in ends)
        for name, of, array, kinds in (
            ("rewards", "finite numbers", rewards, "fiub"),
            ("terminated", "bools", terminated, "b"),
            ("truncated", "bools", truncated, "b"),
        ):
            is_row = array.shape == self._shape and array.dtype.kind in kinds
            if not (is_row and _is_finite(array)):
                raise EnvFault(
                    f"step() returned {brief(array)} as {name}. Return {of} of shape "
                    f"{[*self._shape]}"
                )
        self._paid.check(rewards, "step()")
        if not isinstance(info, dict):
            raise EnvFault(f"step() returns {brief(info)} as info. Return a dictionary")
        self.info: object = info
        ended = terminated | truncated
        if ended.any():
            final = info.get("final_obs", ())
            if len(final) != self.num_envs or any(final[row] is None for row in ended.nonzero()[0]):
                raise EnvFault(
                    'step() gives no info["final_obs"] where an episode ended: an array of '
                    f"{self.num_envs} objects, the last observation of each ended episode"
                )
            converted = np.full(self.num_envs, None, dtype=object)
            for row in ended.nonzero()[0]:
                self._check_final(final[row], 'info["final_obs"]')
                last = self._observed(own(final[row]))
                converted[row] = _some_allowed(last, 'info["final_obs"]', is_over=True)
            told = self._success(info, ended) if self.reads_success else {}
            # Statistics of a wrapper of Gymnasium's would stand in the way of ours.
            others = {name: info[name] for name in info.keys() - {"episode", "_episode", *SUCCESS}}
            info = others | {"final_obs": converted} | told
        # Last: these belong to the next episodes where some have ended.
        observations = _some_allowed(self._observed(own(observations)), "step()")
        return observations, rewards, terminated, truncated, info

    def _success(self, info: Info, ended: np.ndarray) -> dict[str, np.ndarray]:
        """Return `success` and its mask, [N] each; nothing where it is not told."""
        # In SAME_STEP, `info` is already that of the next episodes where some have ended.
        final: Any = info.get("final_info")
        place: Info = info if success_key(final) is None else final
        key = success_key(place)
        if key is None:
            return {}
        if np.shape(place[key]) != self._shape:
            raise EnvFault(
                f'info["{key}"] is {brief(place[key])}. Give one entry for each of the '
                f"{self.num_envs} environments"
            )
        is_told = ended & place.get(f"_{key}", True)
        success = np.zeros(self.num_envs, bool)
        for row in is_told.nonzero()[0]:
            success[row] = _succeeded(place[key][row], key)
        return {SUCCESS[0]: success, f"_{SUCCESS[0]}": is_told}


class Inner(WithOptions):
    """One of a given SyncVectorEnv: its next `reset` does not change its last observation."""

    # Its numbers are checked before the arrays of the vector wrap them.

    def __init__(self, env: gymnasium.Env, options: ResetOptions) -> None:
        super().__init__(env, options)
        space = env.observation_space
        self._check = checker(space, name_of(env)) if may_wrap(space) else None

    def reset(self, *, seed: int | None = None, options: Options = None) -> ResetResult:
        observation, info = super().reset(seed=seed, options=options)
        return self._own(observation, "reset()"), info

    def step(self, action: Action) -> SingleStepResult:
        observation, *others = self.env.step(action)
        return self._own(observation, "step()"), *others

    def _own(self, observation: Observation, where: str) -> Observation:
        if self._check is not None:
            self._check(observation, where)
        return own(observation)


def _prepare(env: VectorEnv, options: Options) -> None:
    """Let the episodes that a vector environment itself begins have the options."""
    if isinstance(env, SyncVectorEnv):
        check_are_several(env.envs)
        inner = (each.env if isinstance(each, Inner) else each for each in env.envs)
        env.envs = [Inner(each, options or {}) for each in inner]
    elif options and isinstance(env, AsyncVectorEnv):
        raise UserError(
            "reset_options: an AsyncVectorEnv begins episodes without options. Give a function "
            "that makes one environment, or a SyncVectorEnv"
        )


def own(observation: Observation) -> Observation:
    """Return a copy of an observation, or of a batch, that is of its space."""
    if isinstance(observation, np.ndarray):
        return observation.copy()
    if isinstance(observation, dict):
        return {key: own(part) for key, part in observation.items()}
    if isinstance(observation, list | tuple):
        return tuple(map(own, observation))
    if isinstance(observation, str | int | float | np.generic):
        return observation
    return np.array(observation)  # a tensor


def success_key(info: object) -> str | None:
    return next((key for key in SUCCESS if key in info), None) if isinstance(info, dict) else None


def _succeeded(value: object, key: str) -> bool:
    """Return the success of an ended episode; EnvFault where it is neither a bool nor 0 or 1."""
    success = _truth(value)
    if success is None:
        raise EnvFault(
            f'info["{key}"] is {brief(value)} where an episode ended. Give a bool, or 0 or 1; or '
            f'write metadata = {{"{HAS_SUCCESS}": False}}, so that it is ignored'
        )
    return success


def _truths(array: np.ndarray) -> np.ndarray:
    """Return an array of zeros and ones as bools, any other one as it is."""
    if array.dtype.kind in "iu" and ((array == 0) | (array == 1)).all():
        return array.astype(bool)
    return array


def _truth(value: object) -> bool | None:
    """Return a bool, or 0 or 1, of any scalar type as a bool, and None for anything else."""
    array = np.asarray(value)
    is_truth = not array.shape and array.dtype.kind in "biuf" and array in (0, 1)
    return bool(array) if is_truth else None


def _let_reset_in_same_step(env: VectorEnv) -> None:
    """Set SAME_STEP autoreset where Gymnasium can; raise UserError with the remedy elsewhere."""
    name, mode = type(env.unwrapped).__name__, checked_metadata(env).get("autoreset_mode")
    if type(env) is SyncVectorEnv and mode is not AutoresetMode.DISABLED:
        env.autoreset_mode = AutoresetMode.SAME_STEP
        env.metadata = {**env.metadata, "autoreset_mode": env.autoreset_mode}
        return
    wrap = "Wrap the single environments: give a function that makes one wrapped environment"
    if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP.value):
        is_wrapped = isinstance(env, VectorWrapper)
        known_as = mode.name if isinstance(mode, AutoresetMode) else mode
        raise UserError(
            f"env: {name}{f' within {type(env).__name__}' * is_wrapped} has autoreset mode "
            f"{known_as}, and with another than SAME_STEP an agent would learn "
            f"from steps between episodes. {f'{wrap}. Or write' if is_wrapped else 'Write'}: "
            'gymnasium.make_vec(..., vectorization_mode="sync", '
            'vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}), or, if its class is yours '
            "and begins the next episode within the last one's step, "
            'metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}'
        )
    # Each wrapper between the agent and the environment may change what is brief.
    wrapper = env
    while isinstance(wrapper, VectorWrapper):
        if not _keeps_last_observations(wrapper):
            raise UserError(
                f"env: {type(wrapper).__name__} around {name} may show other observations than "
                f'info["final_obs"] holds. {wrap}; or, if its class is yours and changes '
                'info["final_obs"], too: metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}'
            )
        wrapper = wrapper.env


def _keeps_last_observations(wrapper: VectorWrapper) -> bool:
    """Return whether observations and `final_obs` agree behind a wrapper as before it."""
    # Gymnasium's wrappers do so, but for those of observations. Of others with a `step` of their
    # own nobody can tell: their class has to.
    if type(wrapper).metadata is not VectorWrapper.metadata:
        return True
    is_gymnasiums = type(wrapper).step.__module__.startswith("gymnasium.")
    return is_gymnasiums and not isinstance(wrapper, VectorObservationWrapper)


def _parts_of(space: spaces.Space) -> dict[str, spaces.Space]:
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {}


def _with_mask(space: spaces.Space, shown: Observation, mask: object) -> dict[str, Observation]:
    parts = shown if isinstance(space, spaces.Dict) else {"observation": shown}
    return {**parts, ACTION_MASK: mask}


def _check_mask_space(observations: spaces.Space, actions: spaces.Space) -> None:
    """Raise UserError where the mask of converted spaces has not an entry for each action."""
    mask, n_actions = _parts_of(observations).get(ACTION_MASK), spaces.flatdim(actions)
    if mask is not None and isinstance(actions, spaces.Box):
        raise UserError(
            f"observations: {ACTION_MASK} allows some of discrete actions, and here actions are "
            "numbers. Leave it out"
        )
    if mask is not None and (n_entries := spaces.flatdim(mask)) != n_actions:
        raise UserError(
            f"observations: {ACTION_MASK} has {n_entries} entries, and there are {n_actions} "
            "actions. Give one for each action"
        )


def _some_allowed(shown: Observation, where: str, is_over: bool = False) -> Observation:
    """Return an observation, or a batch; EnvFault where its mask allows no action."""
    # The last observation of an episode may do that: there, all are allowed.
    mask = shown.get(ACTION_MASK) if isinstance(shown, dict) else None
    if mask is None or mask.any(-1).all():
        return shown
    if is_over:
        return shown | {ACTION_MASK: np.ones_like(mask)}
    of = f" of environment {mask.any(-1).argmin()}" * (mask.ndim - 1)
    raise EnvFault(f"{ACTION_MASK} of {where}{of} allows no action, and the episode goes on")


def checked_metadata(env: gymnasium.Env | VectorEnv) -> dict[str, Any]:
    """Return an environment's metadata, or raise UserError where they cannot be read."""
    metadata = env.metadata
    if not isinstance(metadata, dict):
        raise UserError(f"env: metadata is {brief(metadata)}. Write a dictionary, such as {{}}")
    for key in (ACTION_NAMES, NUMBER_NAMES):
        names = metadata.get(key, [])
        if not (isinstance(names, list | tuple) and all(isinstance(n, str | int) for n in names)):
            raise UserError(f'env: metadata["{key}"] is {brief(names)}. Write a list of names')
    if not isinstance(metadata.get(HAS_SUCCESS, False), bool):
        raise UserError(
            f'env: metadata["{HAS_SUCCESS}"] is {brief(metadata[HAS_SUCCESS])}. Write True or False'
        )
    return metadata


def _parts(found: object, method: str, names: tuple[str, ...]) -> tuple[Any, ...]:
    if isinstance(found, tuple) and len(found) == len(names):
        return found
    n_given = len(found) if isinstance(found, tuple) else f"{type(found).__name__}, not a tuple"
    raise EnvFault(f"{method} must return {', '.join(names)}. It returned {n_given}")


def checker(space: spaces.Space, name: str) -> Callable[[Observation, str], None]:
    """Return a function that raises EnvFault unless an observation is of a space, bounds aside."""
    # So it does where a number cannot be kept. Attributes of spaces are slow: they are read here,
    # not in every step.
    inner: dict[object, Callable[[Observation, str], None]] = {}
    kept: list[Narrowing] = []
    if isinstance(space, spaces.Dict):
        inner = {key: checker(part, name) for key, part in space.items()}

        def is_of(part: Observation) -> bool:
            return isinstance(part, dict) and part.keys() == inner.keys()

    elif isinstance(space, spaces.Tuple):
        inner = {number: checker(part, name) for number, part in enumerate(space)}

        def is_of(part: Observation) -> bool:
            return isinstance(part, tuple | list | np.ndarray) and len(part) == len(inner)

    elif isinstance(space, spaces.Box):
        shape, dtype, kept = space.shape, space.dtype, narrowings(space.dtype, name)

        def is_of(part: Observation) -> bool:
            array = np.asarray(part)
            is_kind = array.dtype == dtype or np.can_cast(array.dtype, dtype, "same_kind")
            return array.shape == shape and is_kind and _is_finite(array)

    else:
        has_words = is_text(space)

        def is_of(part: Observation) -> bool:
            return isinstance(part, str) if has_words else space.contains(part)

    def check(part: Observation, where: str) -> None:
        if not is_of(part):
            is_array = isinstance(part, np.ndarray)
            kind = f"{part.dtype} {list(part.shape)}" if is_array else type(part).__name__
            if isinstance(part, dict) and isinstance(space, spaces.Dict):
                odd = sorted(map(repr, part.keys() ^ inner.keys()))
                kind += f", {', '.join(odd)} in one of them alone"
            remedy = ""
            if is_array and space.dtype not in (None, part.dtype) and part.shape == space.shape:
                remedy = f". Return {space.dtype}, or give the space the dtype {part.dtype}"
            raise EnvFault(
                f"{where} shows {brief(part)} ({kind}), which is not in its space {brief(space)}"
                f"{remedy}"
            )
        for each in kept:
            each.check(np.asarray(part), where)
        for key, check_part in inner.items():
            check_part(part[key], f"{key} of {where}")

    return check


def _is_finite(array: np.ndarray) -> bool:
    # The sum of squares is finite where all numbers are, mostly, and that is quicker.
    is_float = array.dtype.kind == "f"
    return not is_float or math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def adapt_observation_space(space: spaces.Space) -> Conversion:
    """Return how agents see the observations of an environment.

    A Box of uint8 up to 255 with three dimensions is an image, and so is one of fractions from 0 to
    1, which become bytes. Its channels are the first or the last dimension (`_channel_axis`). One
    of four dimensions is a stack of images, its channels those of all. A Box of uint8 with two
    dimensions from 5x5 up is a grey image. Every other Box becomes a vector, of uint8 as fractions
    of its bounds, a tuple a dictionary with keys "0", "1", ..., the part "action_mask" MultiBinary.

    Raises:
        UserError: a part of the space cannot be seen; it is named.
    """
    conversion = _seen(space, ())
    leaves = dict(_leaves(conversion.space))
    images = {name: leaf.shape or () for name, leaf in leaves.items() if is_image(leaf)}
    n_texts = sum(map(is_text, leaves.values()))
    n_numbers = sum(
        int(spaces.flatdim(leaf))
        for name, leaf in leaves.items()
        if not (is_text(leaf) or is_image(leaf) or name == ACTION_MASK)
    )
    if len({shape[1:] for shape in images.values()}) > 1:
        sizes = ", ".join(f"{name} {list(shape)}" for name, shape in images.items())
        raise UserError(
            f"observations: of several images all must be of one size, to be stacked. Here: {sizes}"
        )
    if n_numbers > MOST_NUMBERS:
        raise UserError(
            f"observations: {brief(space)} makes a vector of {n_numbers:,} numbers, discrete "
            f"ones one-hot; up to {MOST_NUMBERS:,} are read. Pictures are images if they are uint8 "
            "from 0 to 255"
        )
    if not (images or n_texts or n_numbers):
        raise UserError(f"observations: {brief(space)} has nothing to see. {ALLOWED}")
    return conversion


def adapt_action_space(space: spaces.Space) -> Conversion:
    """Return how agents act: one Discrete action for each action of an environment, or a Box.

    Of joint actions the last number runs fastest: of MultiDiscrete([2, 3]) action 4 is [1, 1]. The
    numbers of a Box are rescaled, so that agents give a vector of numbers from -1 to 1.

    Raises:
        UserError: the space is of another kind, has too many actions, or is a Box without bounds.
    """
    allowed = (
        f"Agents choose among Discrete or MultiDiscrete actions, {MOST_ACTIONS:,} at most, or give "
        "the numbers of one Box with finite bounds"
    )
    if isinstance(space, spaces.Box):
        return _rescaled(space, allowed)
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        raise UserError(f"actions: {brief(space)} cannot be used. {allowed}")
    # Joint actions are counted as digits of a number, each with its own base.
    sizes = (int(space.n),) if isinstance(space, spaces.Discrete) else space.nvec.ravel().tolist()
    n_actions = math.prod(sizes)
    if n_actions > MOST_ACTIONS:
        raise UserError(f"actions: {brief(space)} has {n_actions:,} actions. {allowed}")
    discrete = spaces.Discrete(n_actions)
    if isinstance(space, spaces.Discrete):
        is_same = space.start == 0
        return Conversion(space) if is_same else Conversion(discrete, lambda n: n + space.start)

    def numbers(action: Action) -> np.ndarray:
        single = np.array(np.unravel_index(action, sizes), space.dtype).T
        return single.reshape(*np.shape(action), *space.shape) + space.start

    return Conversion(discrete, numbers)


def _rescaled(space: spaces.Box, allowed: str) -> Conversion:
    given, n_numbers = f"actions: {brief(space)}", spaces.flatdim(space)
    if space.dtype.kind != "f":
        raise UserError(f"{given} holds whole numbers. Make it MultiDiscrete, or a Box of float32")
    if not (np.isfinite(space.low) & np.isfinite(space.high)).all():
        raise UserError(f"{given} has no bounds, so that nothing can be rescaled. {allowed}")
    if not (space.low < space.high).all() or not 0 < n_numbers <= MOST_ACTIONS:
        raise UserError(f"{given} has {n_numbers:,} numbers, or one that cannot vary. {allowed}")
    *_, to_bounds = rescale_box(space, np.float32(-1), np.float32(1))

    def numbers(action: Action) -> np.ndarray:
        action = np.asarray(action)
        own = to_bounds(action.reshape(*action.shape[:-1], *space.shape))
        return np.clip(own, space.low, space.high).astype(space.dtype)  # rounding may leave them

    return Conversion(spaces.Box(-1, 1, (n_numbers,), np.float32), numbers)


def is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3


def bytes_in(
    own: spaces.Space, shown: Observation, name: str = ""
) -> Iterator[tuple[tuple[str, bool], float]]:
    """Yield (name, is an image), largest byte, of parts seen as bytes or as fractions of 255."""
    if isinstance(own, spaces.Dict | spaces.Tuple):
        for key, part in own.items() if isinstance(own, spaces.Dict) else enumerate(own):
            yield from bytes_in(part, shown[str(key)], f"{name}.{key}" if name else str(key))
    elif isinstance(own, spaces.Box):
        if shown.dtype == np.uint8:  # all other bytes have become numbers
            yield (name, True), shown.max()
        elif _goes_up_to_255(own):
            yield (name, False), 255 * shown.max(initial=0)


def may_wrap(space: spaces.Space) -> bool:
    """Return whether whole numbers of a wider type could be cut off in an array of a space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return any(map(may_wrap, space.values() if isinstance(space, spaces.Dict) else space))
    return isinstance(space, spaces.Box) and space.dtype.kind in "iu" and space.dtype.itemsize < 8


def is_text(space: spaces.Space) -> bool:
    """Return whether a space is of sentences: Gymnasium's Text, or one of the same kind."""
    return space.dtype is not None and space.dtype.kind == "U"


def has_text(space: spaces.Space) -> bool:
    return any(is_text(leaf) for _, leaf in _leaves(space))


def brief(space: object) -> str:
    try:
        return shortened(" ".join(str(space).split()))
    except Exception:  # whatever its author did
        return f"a thing of {type(space).__name__}"


def _leaves(space: spaces.Space, name: str = "") -> Iterator[tuple[str, spaces.Space]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.items():
            yield from _leaves(part, f"{name}.{key}" if name else key)
    else:
        yield name, space


def _seen(space: spaces.Space, path: tuple[str, ...]) -> Conversion:
    if path == (ACTION_MASK,):
        if not isinstance(space, spaces.Box | spaces.MultiBinary) or len(space.shape) != 1:
            raise _unseen(space, path, ". Give a bool, or 0 or 1, for each action")
        return Conversion(spaces.MultiBinary(space.shape[0]), _mask)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _dictionary(space, path)
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) > 1:
        flat = spaces.MultiDiscrete(space.nvec.ravel(), start=space.start.ravel())
        return Conversion(flat, functools.partial(_flat, n_axes=len(space.shape)))
    if isinstance(space, spaces.Box):
        return _box(space, path)
    numbers = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    if isinstance(space, numbers) or is_text(space):
        return Conversion(space)
    raise _unseen(space, path, f". {ALLOWED}")


def _dictionary(space: spaces.Dict | spaces.Tuple, path: tuple[str, ...]) -> Conversion:
    parts = list(space.items()) if isinstance(space, spaces.Dict) else list(enumerate(space))
    made = [(key, str(key), _seen(part, (*path, str(key)))) for key, part in parts]
    converted = spaces.Dict({name: part.space for _, name, part in made})
    if len(converted) < len(made):
        raise UserError(f"observations: {brief(space)} has keys of one text, such as 1 and '1'")
    if all(key is name and part.convert is _same for key, name, part in made):
        return Conversion(converted)

    def convert(observation: Observation) -> dict[str, Observation]:
        return {name: part.convert(observation[key]) for key, name, part in made}

    return Conversion(converted, convert)


def _box(space: spaces.Box, path: tuple[str, ...]) -> Conversion:
    shape, is_bytes = space.shape, space.dtype == np.uint8
    # Codes, boards and one-hot planes have a lower bound. The bytes of a picture go up to 255.
    is_picture = _goes_up_to_255(space)
    if is_picture and len(shape) == 2 and min(shape) >= LEAST_SIDE:
        grey = spaces.Box(0, 255, (1, *shape), np.uint8)
        return Conversion(grey, lambda image: image[..., None, :, :])
    if len(shape) in (3, 4):
        is_unit = space.dtype.kind == "f" and (space.low >= 0).all() and (space.high <= 1).all()
        is_last, is_guess = _channel_axis(shape)
        sides = shape[-3:-1] if is_last else shape[-2:]
        if (is_picture or is_unit) and min(sides) >= LEAST_SIDE:
            if is_guess:
                n_channels, (height, width) = shape[-1 if is_last else -3], sides
                say_once(
                    f"observations: {_called(path)} {[*shape]}",
                    f" is read as {n_channels} channels of {height} x {width}; if that is wrong, "
                    "move its axes (np.moveaxis): channels first, or last, and fewer than rows",
                )
            return _image(space, sides, is_last)
        if is_picture:
            raise _unseen(space, path, f", an image below 5x5. {BOUNDED}")
    elif is_picture and len(shape) > 2:
        why = f". An image has three dimensions, a stack of images four. {BOUNDED}"
        raise _unseen(space, path, why)
    if is_bytes:
        return _fractions(space, path)
    if len(shape) <= 1:
        return Conversion(space)
    vector = spaces.Box(-np.inf, np.inf, (math.prod(shape),), np.float32)
    return Conversion(vector, lambda values: _flat(np.asarray(values, np.float32), len(shape)))


def _goes_up_to_255(space: spaces.Box) -> bool:
    return space.dtype == np.uint8 and space.high.max(initial=0) == np.iinfo(np.uint8).max


def _channel_axis(shape: tuple[int, ...]) -> tuple[bool, bool]:
    """Return whether an image's last axis holds its channels, and whether that is a guess."""
    first, middle, last = shape[-3:]
    if (first == middle) != (middle == last):  # equal neighbours are the sides
        return first == middle, False
    if (first in USUAL_CHANNELS) != (last in USUAL_CHANNELS):
        return last in USUAL_CHANNELS, False
    return last < first, True


def _fractions(space: spaces.Box, path: tuple[str, ...]) -> Conversion:
    """Return bytes that are no picture as numbers from 0 to 1 between their own bounds."""
    n_numbers, n_axes = math.prod(space.shape), len(space.shape)
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    width = np.maximum(high - low, 1)

    def convert(values: Observation) -> np.ndarray:
        # By the bounds of each number: 0 and 1 mean the same whatever the codes.
        fractions = (np.asarray(values, np.float32) - low) / width
        if not (fractions.min(initial=0) >= 0 and fractions.max(initial=1) <= 1):
            raise EnvFault(
                f"{_called(path)} shows numbers from {np.min(values)} to {np.max(values)}, beyond "
                f"the bounds of its space {brief(space)}. Widen the bounds"
            )
        return _flat(fractions, n_axes)

    say_once(
        f"observations: {_called(path)}, uint8 {[*space.shape]} from {low.min(initial=255):.0f} to "
        f"{high.max(initial=0):.0f},",
        f" is no picture, which is 0 to 255 of two or three dimensions; it is read as {n_numbers} "
        "numbers, its bounds as 0 and 1",
        logging.INFO,
    )
    return Conversion(spaces.Box(0, 1, (n_numbers,), np.float32), convert)


def _image(space: spaces.Box, sides: tuple[int, ...], is_last: bool) -> Conversion:
    n_axes, is_bytes = len(space.shape), space.dtype == np.uint8
    if is_bytes and n_axes == 3 and not is_last:
        return Conversion(space)
    shape = (math.prod(space.shape) // math.prod(sides), *sides)

    def convert(image: np.ndarray) -> np.ndarray:
        pixels = image if is_bytes else _bytes(image)
        if is_last:
            # [..., H, W, C] -> [..., C, H, W]
            pixels = pixels.swapaxes(-1, -2).swapaxes(-2, -3)
        return np.ascontiguousarray(pixels).reshape(*pixels.shape[: pixels.ndim - n_axes], *shape)

    return Conversion(spaces.Box(0, 255, shape, np.uint8), convert)


def _bytes(fractions: np.ndarray) -> np.ndarray:
    pixels = np.rint(np.asarray(fractions) * 255)
    if not (pixels.min() >= 0 and pixels.max() <= 255):
        raise EnvFault(
            "an image has values outside its space of fractions from 0 to 1. Return uint8"
        )
    return pixels.astype(np.uint8)


def _mask(values: Observation) -> np.ndarray:
    mask = np.asarray(values)
    if not np.isin(mask, (0, 1)).all():
        raise EnvFault(f"{ACTION_MASK} is {brief(values)}. Give a bool, or 0 or 1, for each action")
    return mask.astype(np.int8)


def _flat(values: ArrayLike, n_axes: int) -> np.ndarray:
    values = np.asarray(values)
    return values.reshape(*values.shape[: values.ndim - n_axes], -1)


def _unseen(space: spaces.Space, path: tuple[str, ...], why: str) -> UserError:
    return UserError(f"observations: {_called(path)} is {brief(space)}{why}")


def _called(path: tuple[str, ...]) -> str:
    return ".".join(path) or "the observation"
