"""Environments that a Python program gives as objects, not by name.

Settings name such an environment `object:MyEnv`, after its class. Nothing can be made from that
name: whoever finds it in a run needs the object.
"""

import functools
from collections.abc import Callable
from typing import NoReturn

import gymnasium
from gymnasium.vector import VectorEnv

from envs.any_gymnasium import vector_of
from envs.spaces import checked_vector_env
from envs.wrappers import EpisodeStatistics
from settings import Config
from utils.errors import UserError
from utils.user_modules import GIVEN

# A vector environment, or what makes one environment each time it is called.
GivenEnv = VectorEnv | Callable[[], gymnasium.Env]


def given_vector_env(env: GivenEnv, n_envs: int, seed: int) -> EpisodeStatistics:
    """Return a given environment as those of a suite are: with episode statistics.

    Args:
        env: A vector environment of n_envs environments, or what makes one of them, which is then
            converted to what agents know.
        n_envs: How many are needed.
        seed: Of the run, for environments made here; a given vector environment has its own way.

    Raises:
        UserError: it is neither, of another number, or not as `checked_vector_env` wants it.
    """
    if not isinstance(env, VectorEnv):
        env = vector_of(functools.partial(_one, env), n_envs, seed)
    elif env.num_envs != n_envs:
        raise UserError(
            f"env: a vector environment of {env.num_envs} where {n_envs} are needed. Give one of "
            "that many, or a function that makes one environment"
        )
    return EpisodeStatistics(checked_vector_env(env), given_name(env))


def given_name(env: GivenEnv) -> str:
    """Return what settings call a given environment."""
    if isinstance(env, VectorEnv):
        inner = getattr(env.unwrapped, "envs", [env])[0]
        return f"{GIVEN}{type(inner.unwrapped).__name__}"
    if isinstance(env, type):
        return f"{GIVEN}{env.__name__}"
    made = _one(env)
    made.close()
    return f"{GIVEN}{type(made.unwrapped).__name__}"


def names() -> NoReturn:
    """Raise UserError: only a Python program can name these."""
    raise UserError(
        "env: this environment is an object of a Python program, and has no name. Give it again: "
        "helm.train(settings, env=...), helm.load(run, env=...) or helm.resume(run, env=...)"
    )


def make(config: Config, seed: int) -> NoReturn:
    """Raise UserError, as `names`."""
    names()


def _one(env: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    """Make one environment."""
    if not callable(env):
        raise UserError(
            f"env: {type(env).__name__} is neither a vector environment nor a function that makes "
            "one environment, such as lambda: MyEnv()"
        )
    made = env()
    if not isinstance(made, gymnasium.Env):
        raise UserError(
            f"env: the function returns {type(made).__name__}, not an environment of Gymnasium"
        )
    return made
