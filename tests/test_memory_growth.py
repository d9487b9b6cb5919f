"""Nothing is left behind by an update: no tensors, and fewer Python objects than steps."""

import gc
import sys
from itertools import pairwise
from statistics import median

import pytest
import torch

from envs import make_vector_env
from models import build_agent
from tests.agents import small_config
from tests.tiny_clip import tiny_settings
from trainers.collector import Collector
from trainers.ppo import PPO
from trainers.train import Run

pytestmark = pytest.mark.slow

TINY = {"env": "RandomMaze-v0", "mem_len": 8, "memory_width": 16, "observation_cache_mb": 0}
TINY |= {"n_envs": 4, "n_rollout_steps": 16, "n_epochs": 1, "n_batches": 2}
N_STEPS, WARM_UP = 2048, 1024
WINDOW = 256  # steps, episodes' ends among them
LEFT_BEHIND = WINDOW  # blocks a window: less than one a step, the last episodes among them


class Watched(PPO):
    """Counts tensors and the blocks of Python's allocator after every window."""

    def __init__(self, *given):
        super().__init__(*given)
        self.env_steps, self.counts = 0, []

    def update(self, progress, permutations=None):
        self.env_steps += self.config.n_envs * self.config.n_rollout_steps
        metrics = super().update(progress, permutations)
        if self.env_steps >= WARM_UP and self.env_steps % WINDOW == 0:
            gc.collect()
            n_tensors = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
            self.counts.append((n_tensors, sys.getallocatedblocks()))
        return metrics


@pytest.fixture
def earlier_tests_frozen():
    """Leave the objects of earlier tests out of the collections, which would be slow otherwise."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", ["GPT", "HELM", "SHELM"])
def test_nothing_piles_up_while_an_agent_is_trained(name, earlier_tests_frozen, tmp_path):
    config = small_config(model=name, n_steps=N_STEPS, **TINY | tiny_settings(name))
    env = make_vector_env(config, config.seed)
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    learner = Watched(config, agent)
    Run(config, learner, Collector(env, learner)).train(tmp_path)
    assert learner.env_steps == N_STEPS
    tensors, blocks = zip(*learner.counts, strict=True)
    assert tensors[-1] <= tensors[0]
    # The median of the windows, so that no cache counts which fills once.
    assert median(after - before for before, after in pairwise(blocks)) < LEFT_BEHIND
