"""Environments: a name leads to its suite, the suite to a vector environment of images.

Every suite is a module of this package with two functions:

    names() -> list[str]               all environments it offers
    make(config, seed) -> VectorEnv    config.n_envs times config.env, number i seeded with seed + i

It may have two more things: `ACTION_NAMES`, the names of its actions, and `make_drawn(config,
seed)`, for environments that can be drawn whole where those of `make` cannot. A vector environment
that can be drawn has Gymnasium's `render_mode` "rgb_array", and `render` returns a picture
[H, W, 3] of each.

Its environments show uint8 images, channel first, take discrete actions and restart an ended
episode within the step that ends it (Gymnasium's SAME_STEP autoreset). An environment that can
say where it stands has `state_dict()`, or None if just now it cannot, and `load_state_dict(state)`:
a run in it resumes to the bit. Where one has not, a resumed run begins new episodes.
"""

import importlib
from types import ModuleType
from typing import NamedTuple, Protocol

from gymnasium.error import DependencyNotInstalled

from envs.wrappers import EpisodeStatistics, RewardNormalization
from utils.errors import UserError, suggestion


class Suite(NamedTuple):
    """The module of a suite, and whether its rewards are normalised unless the settings say."""

    module: str
    normalize_reward: bool = True


SUITES = {
    "MiniGrid-": Suite("envs.minigrid"),
    "MiniWorld-": Suite("envs.miniworld"),
    "RandomMaze-v0": Suite("envs.random_maze", normalize_reward=False),
    "ContinuousRecognition-v0": Suite("envs.continuous_recognition"),
    "psychlab_": Suite("envs.psychlab"),
    "caveflyer": Suite("envs.procgen"),
    "dodgeball": Suite("envs.procgen"),
    "heist": Suite("envs.procgen"),
    "jumper": Suite("envs.procgen"),
    "maze": Suite("envs.procgen"),
    "miner": Suite("envs.procgen"),
}


class EnvironmentSettings(Protocol):
    """The settings read here; a suite may read more."""

    @property
    def env(self) -> str:
        """Full name of the environment."""

    @property
    def n_envs(self) -> int:
        """Number of parallel environments."""

    @property
    def gamma(self) -> float:
        """Discount per step."""

    @property
    def normalize_reward(self) -> bool | None:
        """Whether rewards are normalised; None leaves it to the suite."""


def make_vector_env(
    config: EnvironmentSettings, seed: int, drawn: bool = False
) -> EpisodeStatistics | RewardNormalization:
    """Return the environments of the settings with episode statistics and normalised rewards.

    Args:
        config: The settings.
        seed: Environment i is seeded with seed + i.
        drawn: Prefer environments that can be drawn whole to faster ones.

    Raises:
        UserError: No suite knows the name, or the suite's package is not installed.
    """
    check_env_name(config.env)
    suite = _find_suite(config.env)
    try:
        module = _load(suite)
        make = getattr(module, "make_drawn", module.make) if drawn else module.make
        env = EpisodeStatistics(make(config, seed))
    except ModuleNotFoundError as error:
        raise _missing_package(config.env, error) from error
    except DependencyNotInstalled as error:
        raise UserError(f"env: '{config.env}': {error}") from error
    normalize = config.normalize_reward
    if normalize is None:
        normalize = suite.normalize_reward
    return RewardNormalization(env, config.gamma) if normalize else env


def check_env_name(name: str) -> None:
    """Raise UserError unless a suite offers an environment of this name."""
    suite = _find_suite(name)
    try:
        names = _load(suite).names()
    except ModuleNotFoundError as error:
        raise _missing_package(name, error) from error
    if name not in names:
        raise _unknown(name, names)


def action_names(name: str, n_actions: int) -> list[str]:
    """Return what the actions of an environment are called; numbers where nothing is known."""
    known = getattr(_load(_find_suite(name)), "ACTION_NAMES", ())
    return [*known[:n_actions], *(str(number) for number in range(len(known), n_actions))]


def _find_suite(name: str) -> Suite:
    """Return the suite registered under the longest beginning of the name, whatever its case."""
    beginnings = [key for key in SUITES if name.casefold().startswith(key.rstrip("-_").casefold())]
    if not beginnings:
        raise _unknown(name, [key + "*" * key.endswith(("-", "_")) for key in SUITES])
    return SUITES[max(beginnings, key=len)]


def _load(suite: Suite) -> ModuleType:
    """Import the suite's module."""
    return importlib.import_module(suite.module)


def _unknown(name: str, allowed: list[str]) -> UserError:
    """Return the error for a name that is not among the allowed ones."""
    hint = suggestion(name, allowed) or f" Allowed: {', '.join(allowed)}"
    return UserError(f"env: unknown environment '{name}'.{hint}")


def _missing_package(name: str, error: ModuleNotFoundError) -> UserError:
    """Return the error for a suite whose simulator is not installed."""
    return UserError(
        f"env: '{name}' needs the package '{error.name}', which is not installed. "
        f"Run: pip install {error.name}"
    )
