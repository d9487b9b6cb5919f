"""Small settings, spaces, percepts and rollouts for tests of agents and learners."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from models import AGENTS, agent_class
from models.observations import AgentInput, Observations
from tests import runs
from trainers.collector import Collector
from trainers.ppo import PPO
from trainers.rollout import Rollout
from utils.given_settings import load_config

BY_PPO = [name for name in AGENTS.places if not agent_class(name).algorithms]  # DQN and SAC, too
SMALL = {"n_envs": 3, "n_rollout_steps": 10, "n_epochs": 2, "n_batches": 3, "n_steps": 60}


def small_config(**changes):
    """Return the default settings with small numbers and the changes asked for."""
    return load_config().replace(device="cpu", **(SMALL | changes))


def spaces(image_shape=(3, 9, 9), n_actions=4, n_numbers=0):
    """Return observation and action space of one environment; its actions may be numbers."""
    actions = Box(-1, 1, (n_numbers,)) if n_numbers else Discrete(n_actions)
    return Box(0, 255, image_shape, np.uint8), actions


def random_images(*shape):
    """Return uint8 images [*shape, 3, 9, 9]."""
    return torch.randint(0, 256, (*shape, 3, 9, 9), dtype=torch.uint8)


def percept(images, is_first, actions=None, rewards=None):
    """Return the input of an agent that sees images [N, C, H, W]."""
    n_envs = len(images)
    actions = torch.zeros(n_envs, dtype=torch.int64) if actions is None else actions
    rewards = torch.zeros(n_envs) if rewards is None else rewards
    return AgentInput(Observations(images), is_first, actions, rewards)


def collecting(config, agent, env, ranks=None):
    """Return a collector with a PPO learner, its episodes begun."""
    collector = Collector(env, PPO(config, agent, ranks), ranks=ranks)
    collector.begin(0)
    return collector


def collect_rollout(collector):
    """Step until the learner's rollout is full and return it, left to the learner."""
    while not collector.learner.update_due:
        collector.step()
    return collector.learner.rollout


def assert_learned_as_acted(agent, rollout):
    """Assert that learning finds what acting found; return a batch and its result."""
    rollout.estimate(gamma=0.9, gae_lambda=0.9)
    n = len(rollout.sequences.firsts) if agent.sequential else rollout.n_samples
    for chosen in (torch.randperm(n)[:3], torch.arange(n)):
        batch = (rollout.sequence_batch if agent.sequential else rollout.batch)(chosen)
        result = agent.evaluate(batch)
        torch.testing.assert_close(result.log_probs, batch.log_probs, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(result.values, batch.values, atol=2e-5, rtol=1e-5)
    return batch, result


def golden_rollout(arrays, stored_state):
    """Return the rollout of a golden update."""
    n_steps = len(arrays["actions"])
    rollout = Rollout(n_steps, Observations(arrays["observations"][0]), stored_state[0])
    rollout.observations.images.copy_(arrays["observations"])
    for name in ("actions", "values", "log_probs", "rewards"):
        getattr(rollout, name).copy_(arrays[name])
    rollout.stored_state.copy_(stored_state)
    rollout.is_first.copy_(arrays["episode_starts"])
    ends = torch.cat((arrays["episode_starts"][1:], arrays["last_dones"][None]))
    rollout.continues.copy_(~ends)
    rollout.bootstrap, rollout.n_stored = arrays["last_values"], n_steps
    return rollout


def assert_precisions(built, module, monkeypatch):
    """Assert that bfloat16 updates train, and that float32's are those of a plain learner.

    `built` returns a learner with the given settings, and a batch; `module` is the learner's.
    """

    def trained(**changes):
        learner, batch = built(**changes)
        losses = [learner.learn(batch)["train/critic_loss"].item() for _ in range(12)]
        return losses, dict(learner.agent.state_dict())

    plain = losses, _ = trained()
    coarse, parameters = trained(update_dtype="bfloat16")
    assert coarse[-1] < 0.8 * coarse[0]
    assert coarse[0] == pytest.approx(losses[0], rel=0.05)
    assert coarse != losses
    assert {each.dtype for each in parameters.values()} == {torch.float32}
    monkeypatch.setattr(module, "reduced_precision", lambda *_: nullcontext())
    assert runs.same(trained(), plain)
