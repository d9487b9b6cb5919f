"""Playing whole episodes without learning."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from models.agent import Agent


class Episode(NamedTuple):
    """One finished episode: its raw return and its length in environment steps."""

    episode_return: float
    length: int


def evaluate(
    agent: Agent,
    env: VectorEnv,
    n_episodes: int,
    deterministic: bool = False,
    seed: int | None = None,
) -> Iterator[Episode]:
    """Yield n_episodes episodes, the first ones of each environment in equal shares.

    Counting shares instead of taking whichever episodes end first keeps short episodes from being
    over-represented.
    """
    observations, _ = env.reset(seed=seed)
    memory = agent.initial_memory(env.num_envs)
    starts = np.ones(env.num_envs, dtype=bool)
    missing = np.full(env.num_envs, n_episodes // env.num_envs)
    missing[: n_episodes % env.num_envs] += 1
    while missing.any():
        step = agent.act(
            torch.as_tensor(observations, device=agent.device),
            memory,
            torch.as_tensor(starts, device=agent.device),
            deterministic,
        )
        observations, _, terminated, truncated, info = env.step(step.actions.cpu().numpy())
        starts = terminated | truncated
        for n in np.flatnonzero(starts & (missing > 0)):
            yield Episode(float(info["episode"]["r"][n]), int(info["episode"]["l"][n]))
        missing -= starts & (missing > 0)
