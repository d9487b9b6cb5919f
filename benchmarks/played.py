"""KeyCorridor, played at random: the images agents really see, as often as they see them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from envs import make_vector_env
from settings import Config, load_config

TASK = "MiniGrid-KeyCorridorS3R1-v0"
N_ENVS = 16


def settings(task: str = TASK, n_envs: int = N_ENVS) -> Config:
    """Return the default settings with these environments."""
    return replace(load_config(), env=task, n_envs=n_envs)


def images(n_envs: int = N_ENVS) -> Iterator[Tensor]:
    """Yield the images [N, 3, 56, 56] uint8 of one step after the other, always the same."""
    env = make_vector_env(settings(n_envs=n_envs), seed=0)
    n_actions = int(cast(Discrete, env.single_action_space).n)
    generator = np.random.default_rng(0)
    observations, _ = env.reset(seed=0)
    while True:
        yield torch.from_numpy(observations)
        actions = generator.integers(0, n_actions, n_envs)
        observations = env.step(actions)[0]
