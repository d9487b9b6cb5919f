"""MiniGrid by EnvPool, drawn from a table of tiles, beside MiniGrid itself."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import VectorEnv
from torch import Tensor

from benchmarks import plain_minigrid, played
from benchmarks.comparing import Pair, Work
from envs import minigrid
from envs.minigrid_views import played_views

STEPS = 16  # a single one is over too soon to be timed


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare drawing, pixel by pixel, and stepping; layouts come from other random numbers."""
    n_envs, note = (2, "") if quick else (played.N_ENVS, f"{played.N_ENVS} environments")
    yield Pair(
        f"MiniGrid drawing, {n_envs} views",
        partial(_drawings, plain_minigrid.draw, n_envs),
        partial(_drawings, minigrid.draw, n_envs),
        rounds=10,
        note="views of KeyCorridor",
    )
    yield Pair(
        "MiniGrid step",
        partial(_plain_steps, n_envs),
        partial(_our_steps, n_envs),
        rounds=2 if quick else 20,
        steps=STEPS,
        note=note,
    )


def _drawings(draw: Callable[[np.ndarray], np.ndarray], n_views: int) -> Iterator[Work]:
    views = played_views([played.TASK], seed=0)
    while True:
        symbols = np.stack(list(islice(views, n_views)))
        yield partial(_drawn, draw, symbols)


def _drawn(draw: Callable[[np.ndarray], np.ndarray], symbols: np.ndarray) -> Tensor:
    return torch.from_numpy(draw(symbols))


def _our_steps(n_envs: int) -> Iterator[Work]:
    return _steps(minigrid.make_by_envpool(played.TASK, n_envs, seed=0))


def _plain_steps(n_envs: int) -> Iterator[Work]:
    return _steps(plain_minigrid.vector_env(played.TASK, n_envs))


def _steps(env: VectorEnv) -> Iterator[Work]:
    env.reset(seed=0)
    generator = np.random.default_rng(0)
    n_actions = int(cast(Discrete, env.single_action_space).n)
    while True:
        actions = generator.integers(0, n_actions, (STEPS, env.num_envs))
        yield partial(_play, env, actions)


def _play(env: VectorEnv, actions: np.ndarray) -> None:
    for row in actions:
        env.step(row)
