"""The PPO update of HELM, beside the straightforward one: 2,048 samples, 3 epochs of 8 minibatches.

The agent is as wide as with Transformer-XL; the language model has a single layer, since the
update never runs it. The difference is that of the parameters after an update.
"""

import copy
import dataclasses
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from benchmarks import played
from benchmarks.comparing import Pair, Work
from benchmarks.plain_update import PlainNetworks, Samples, plain_update
from benchmarks.random_models import TINY, Size, write_transformer_xl
from envs import make_vector_env
from models import build_agent
from models.agent import ActorCriticAgent
from settings import load_config
from trainers.collector import Collector
from trainers.ppo import PPO, PpoSettings
from trainers.rollout import Rollout
from utils.seeding import seed_everything

WIDE = Size(n_layer=1)
ROLLOUTS_BEFORE = 2  # so that episodes no longer begin together


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare on the images of KeyCorridor, and where no two images are the same."""
    size, n_steps = (TINY, 8) if quick else (WIDE, 128)
    for name, all_differ in (("KeyCorridor", False), ("all images differ", True)):
        yield Pair(
            f"HELM update, {name}",
            partial(plain, size, n_steps, all_differ),
            partial(ours, size, n_steps, all_differ),
            rounds=1 if quick else 3,
            repeats=1 if quick else 2,
            note=f"{n_steps * played.N_ENVS:,} samples, D={size.width}",
        )


class Prepared(NamedTuple):
    """An agent with a rollout to learn from, and the orders to do it in."""

    config: PpoSettings
    agent: ActorCriticAgent
    rollout: Rollout
    permutations: Tensor  # [n_epochs, T*N]


class RandomImages:
    """Environments whose images never repeat; episodes do not end.

    Args:
        n_envs: N.
    """

    def __init__(self, n_envs: int) -> None:
        self.num_envs = n_envs
        self.single_observation_space = Box(0, 255, (3, 56, 56), np.uint8)
        self.single_action_space = Discrete(7)
        self._generator = np.random.default_rng(0)

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Open the episodes."""
        return self._images(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Return new images and random rewards."""
        nothing = np.zeros(self.num_envs, bool)
        rewards = self._generator.normal(size=self.num_envs)
        return self._images(), rewards, nothing, nothing.copy(), {}

    def state_dict(self) -> dict[str, Any]:
        """Return that nothing can be saved."""
        return {"resumable": False}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Return that new episodes must be begun."""
        return False

    def _images(self) -> np.ndarray:
        shape = (self.num_envs, *self.single_observation_space.shape)
        return self._generator.integers(0, 256, shape, np.uint8)


def prepare(size: Size, n_steps: int, all_differ: bool) -> Prepared:
    """Play and return the last rollout, always the same."""
    seed_everything(0)
    settings = [f"n_rollout_steps={n_steps}", f"n_envs={played.N_ENVS}", "mem_len=16"]
    with tempfile.TemporaryDirectory() as folder:
        settings += write_transformer_xl(Path(folder), size)
        config = dataclasses.replace(load_config(None, settings), device="cpu").part(PpoSettings)
        env = RandomImages(config.n_envs) if all_differ else make_vector_env(config, seed=0)
        agent = build_agent(config, env.single_observation_space, env.single_action_space)
    learner = PPO(config, agent)
    collector = Collector(env, learner)
    collector.begin(config.seed)
    for _ in range(1 if all_differ else ROLLOUTS_BEFORE + 1):
        learner.rollout = None
        while not learner.update_due:
            collector.step()
    rollout = learner.rollout
    assert rollout is not None, "it is full"
    rollout.estimate(config.gamma, config.gae_lambda)
    orders = [torch.randperm(rollout.n_samples) for _ in range(config.n_epochs)]
    return Prepared(config, agent, rollout, torch.stack(orders))


def ours(size: Size, n_steps: int, all_differ: bool) -> Iterator[Work]:
    """Update by the learner, each time the same agent from the same rollout."""
    config, agent, rollout, permutations = prepare(size, n_steps, all_differ)
    before = copy.deepcopy(agent.state_dict())

    def update(learner: PPO) -> Tensor:
        learner.update(progress=0.0, permutations=permutations)
        return _flat(agent)

    while True:
        agent.load_state_dict(before)
        learner = PPO(config, agent)
        # What a rollout works out when asked, the copy has to work out again.
        learner.rollout = copy.copy(rollout)
        yield partial(update, learner)


def plain(size: Size, n_steps: int, all_differ: bool) -> Iterator[Work]:
    """Update the plain networks, each time the same ones from the same rollout."""
    config, agent, rollout, permutations = prepare(size, n_steps, all_differ)
    samples = Samples.of(rollout)

    def update(networks: PlainNetworks) -> Tensor:
        plain_update(networks, samples, permutations, config)
        return _flat(networks)

    while True:
        yield partial(update, PlainNetworks(agent))


def _flat(module: nn.Module) -> Tensor:
    """Return all trained parameters one after the other."""
    return torch.cat([p.detach().reshape(-1) for _, p in sorted(module.named_parameters())])
