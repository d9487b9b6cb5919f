import numpy as np
import torch

from models.agent import Step, TensorMemory
from tests.counting import CountingEnv
from trainers.evaluation import evaluate


class Silent:
    """Acts without looking."""

    device = torch.device("cpu")

    def initial_memory(self, n_envs):
        return TensorMemory(torch.zeros(n_envs, 0))

    def act(self, observations, memory, starts, deterministic=False):
        zeros = torch.zeros(len(observations))
        return Step(zeros.long(), zeros, zeros, zeros[:, None])


def test_every_environment_plays_its_share_however_long_its_episodes_are():
    env = CountingEnv(lengths=[2, 5, 3])
    episodes = list(evaluate(Silent(), env, n_episodes=7))
    assert len(episodes) == 7
    assert sorted(episode.length for episode in episodes) == [2, 2, 2, 3, 3, 5, 5]


def test_returns_are_raw_sums_of_rewards():
    env = CountingEnv(lengths=[4])
    (episode,) = evaluate(Silent(), env, n_episodes=1)
    assert episode.episode_return == np.sum([1, 2, 3, 4])
