"""Intrinsic rewards in PPO, DQN and SAC: transitions, statistics, resumption."""

from unittest.mock import MagicMock, Mock

import pytest
import torch

from models import build_agent
from models.agent import SequenceBatch, Transitions
from models.observations import ObservationBatch, Observations
from rewards import CURIOSITIES
from tests import runs
from tests.agents import collect_rollout, random_images, small_config
from tests.counting import CountingEnv
from tests.tiny_clip import tiny_settings
from trainers import ppo
from trainers.collector import Collector
from trainers.dqn import DQN

NARROW = {"LSTM": {"memory_width": 8}, "GPT": {"memory_width": 8, "memory_heads": 2}}


class CountingReward:
    """Pays ten times the task's reward and half the difference of the counts that are shown."""

    metrics, reads_stored_state = (), False

    def __call__(self, steps):
        before, after = steps.observations.images[:, 0, 0, 0].float().chunk(2)
        return 10 * steps.rewards + 0.5 * (after - before), {}


@pytest.mark.parametrize("model", ["CNN", "GPT"])
def test_ppo_shows_what_was_seen_after_each_step_the_last_of_an_episode_included(model):
    changes = {"mem_len": 4, "memory_width": 8} if model == "GPT" else {}
    config = small_config(model=model, n_envs=3, n_rollout_steps=10, n_batches=2, **changes)
    env = CountingEnv([3, 4, 20])
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    collector = Collector(env, ppo.PPO(config, agent, None, CountingReward()))
    collector.begin(0)
    for _ in range(2):  # of the GPT's second rollout the steps before are kept as well
        rollout = collect_rollout(collector)
        paid = rollout.rewards.clone()
        collector.learner.update(0.0)
        # Each step leads from one count to the next, wherever episodes and rollouts end.
        torch.testing.assert_close(rollout.rewards, 10 * paid + 0.5)
    assert set(paid.flatten().tolist()) <= set(map(float, range(1, 21)))


def curious_agent(model="CNN", algorithm="PPO", **changes):
    """Return settings, an agent and its intrinsic reward."""
    settings = tiny_settings(model) | NARROW.get(model, {}) | runs.CURIOUS | changes
    config = small_config(model=model, algorithm=algorithm, curiosity="APT", curiosity_icm="paper")
    config = config.replace(**settings)
    env = CountingEnv([3, 4, 20])
    torch.manual_seed(0)
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    return config, agent, CURIOSITIES.find(config.curiosity).configured(config, agent, 4)


def shown(images):
    return ObservationBatch(Observations(images))


def steps_of(images):
    """Return the steps that lead from the first half of the images to the second."""
    n = len(images) // 2
    observed, is_first = (shown(images), torch.zeros(2 * n, 0)), torch.zeros(n, 1).bool()
    return Transitions(*observed, torch.arange(n) % 4, torch.zeros(n), is_first)


@pytest.mark.parametrize("features", ["agent", "observation"])
@pytest.mark.parametrize("curiosity", ["RND", "NovelD", "APT", "E3B"])
def test_the_agent_learns_nothing_from_the_intrinsic_networks(curiosity, features):
    _, agent, reward = curious_agent(curiosity=curiosity, curiosity_features=features)
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    rewards, logged = reward(steps_of(random_images(12)))
    assert rewards.shape == (6,)
    assert set(reward.metrics) == set(logged)
    assert runs.same(before, dict(agent.state_dict()))
    assert all(p.grad is None for p in agent.parameters())


def test_steps_behind_an_episodes_end_earn_nothing_and_change_nothing():
    config, agent, reward = curious_agent("CNN", "DQN", batch_size=2)
    learner = DQN(config, agent, None, reward)
    images = random_images(4 * 2)
    mask = torch.tensor([[1.0, 1], [1, 1], [1, 0]])  # [T, B]
    is_first = torch.zeros(4, 2, dtype=torch.bool)
    zeros = torch.zeros(3, 2)
    outcomes = []
    for last in (0, 255):
        images[7] = last  # in the ring behind the second sequence's end
        _, _, learner.reward = curious_agent("CNN", "DQN", batch_size=2)
        learner.reward.features_of = reward.features_of
        stored_state, actions = torch.zeros(4, 2, 0), zeros.long()
        told = shown(images), is_first, is_first.long(), stored_state, actions, zeros, zeros, mask
        learner.replay, learner.n_owed = MagicMock(), 1
        learner.replay.sample.return_value = SequenceBatch(*told)
        logged = dict.fromkeys([f"train/{name}" for name in DQN.logged], torch.zeros(()))
        learner.learn = Mock(return_value=logged)
        learner.update(0.0)
        (changed,) = learner.learn.call_args.args
        outcomes.append((changed.rewards, learner.reward.state_dict()))
    assert runs.same(*outcomes)
    rewards = outcomes[0][0]
    assert rewards[2, 1] == 0
    assert (rewards[mask.bool()] > 0).all()


@pytest.mark.slow
def test_the_statistics_of_episodes_are_of_the_environments_own_rewards(in_empty_folder):
    for name, weight in (("alone", 0), ("beside", 1)):
        changes = {"task_reward_weight": weight, "curiosity_weight": 1e-9, "learning_rate": 0}
        runs.train("CNN", name, curiosity="RND", **(runs.CURIOUS | changes))
    alone, beside = (runs.outcome(runs.folder_of(name))["metrics"] for name in ("alone", "beside"))
    for one, other in zip(alone, beside, strict=True):
        assert one["rollout/return_mean"] == other["rollout/return_mean"]
