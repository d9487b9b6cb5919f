"""Crafter in compiled loops, drawn from a table of tiles, beside the package itself."""

from collections.abc import Iterator
from functools import partial
from typing import cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv
from torch import Tensor

from benchmarks import plain_crafter, played
from benchmarks.comparing import Pair, Work
from envs import make_vector_env

TASK = "Crafter-v1"
STEPS = 32
BALANCED = 10  # steps after which the package's order of creatures is that of addresses


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare first steps in new worlds, pixel by pixel, and long play with all its resets."""
    n_envs = 2 if quick else played.N_ENVS
    note = f"{n_envs} environments"
    yield Pair(
        "Crafter, new worlds and 9 steps",
        partial(_beginnings, "plain", n_envs),
        partial(_beginnings, "ours", n_envs),
        rounds=1 if quick else 4,
        repeats=1,
        note=note,
    )
    yield Pair(
        "Crafter step",
        partial(_plays, "plain", n_envs),
        partial(_plays, "ours", n_envs),
        rounds=1 if quick else 20,
        steps=STEPS,
        note=f"{note}, resets included",
    )


def _env(version: str, n_envs: int) -> VectorEnv:
    if version == "plain":
        return plain_crafter.vector_env(n_envs, seed=0)
    return make_vector_env(played.settings(TASK, n_envs), seed=0)


def _actions(env: VectorEnv, n_steps: int, generator: np.random.Generator) -> np.ndarray:
    n_actions = int(cast(Discrete, env.single_action_space).n)
    return generator.integers(0, n_actions, (n_steps, env.num_envs))


def _beginnings(version: str, n_envs: int) -> Iterator[Work]:
    env, generator = _env(version, n_envs), np.random.default_rng(0)
    while True:
        yield partial(_begin, env, _actions(env, BALANCED - 1, generator))


def _begin(env: VectorEnv, actions: np.ndarray) -> Tensor:
    shown = [env.reset()[0], *(env.step(row)[0] for row in actions)]
    return torch.from_numpy(np.stack(shown))


def _plays(version: str, n_envs: int) -> Iterator[Work]:
    env, generator = _env(version, n_envs), np.random.default_rng(0)
    env.reset()
    while True:
        yield partial(_play, env, _actions(env, STEPS, generator))


def _play(env: VectorEnv, actions: np.ndarray) -> None:
    for row in actions:
        env.step(row)
