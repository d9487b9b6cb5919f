"""Small settings, spaces and rollouts for tests of agents and the trainer."""

import dataclasses

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from trainers.rollout import Rollout
from utils.config import load_config

SMALL = {"n_envs": 3, "n_rollout_steps": 10, "n_epochs": 2, "n_batches": 3, "n_steps": 60}


def small_config(**changes):
    """Return the default settings with small numbers and the changes asked for."""
    return dataclasses.replace(load_config(), device="cpu", **(SMALL | changes))


def spaces(image_shape=(3, 9, 9), n_actions=4):
    """Return observation and action space of one environment."""
    return Box(0, 255, image_shape, np.uint8), Discrete(n_actions)


def random_images(*shape):
    """Return uint8 images [*shape, 3, 9, 9]."""
    return torch.randint(0, 256, (*shape, 3, 9, 9), dtype=torch.uint8)


def golden_rollout(arrays, context):
    """Return the rollout of a golden update, its advantages estimated."""
    n_steps = len(arrays["actions"])
    rollout = Rollout(n_steps, arrays["observations"][0], context[0])
    for name in ("observations", "actions", "values", "log_probs", "rewards"):
        getattr(rollout, name).copy_(arrays[name])
    rollout.context.copy_(context)
    rollout.starts.copy_(arrays["episode_starts"])
    ends = torch.cat((arrays["episode_starts"][1:], arrays["last_dones"][None]))
    rollout.continues.copy_(~ends)
    rollout.estimate(
        arrays["last_values"], float(arrays["config.gamma"]), float(arrays["config.gae_lambda"])
    )
    return rollout
