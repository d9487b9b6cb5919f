import gc
import sys
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import pytest
import torch

from tests.robustness.memory_growth import Sample, Watched, growth, line, watch

pytestmark = pytest.mark.slow

SHORT = {"n_envs": 4, "n_rollout_steps": 16, "observation_cache_mb": 0}
N_STEPS, WARM_UP = 2048, 1024
WINDOW = 256  # steps, episodes' ends among them
LEFT_BEHIND = WINDOW  # blocks a window: less than one a step, the last episodes among them


class Held(NamedTuple):
    """Objects of the process after an update."""

    env_steps: int
    n_tensors: int
    n_blocks: int  # of Python's allocator


class Counting(Watched):
    def look(self):
        if self.env_steps < WARM_UP or self.env_steps % WINDOW:
            return None
        gc.collect()
        n_tensors = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
        return Held(self.env_steps, n_tensors, sys.getallocatedblocks())


@pytest.fixture
def earlier_tests_frozen():
    """Leave the objects of earlier tests out of the collections, which would be slow otherwise."""
    gc.freeze()
    yield
    gc.unfreeze()


def held(name):
    """Return the counts after every window since the warm-up."""
    return [each for each in watch(name, N_STEPS, Counting, **SHORT) if each]


def rise(looks):
    """Return how many blocks a window leaves behind: the median, so no cache that fills once."""
    return median(after.n_blocks - before.n_blocks for before, after in pairwise(looks))


@pytest.mark.parametrize("name", ["GPT", "HELM", "SHELM"])
def test_nothing_piles_up_while_an_agent_is_trained(name, earlier_tests_frozen):
    looks = held(name)
    assert looks[-1].env_steps == N_STEPS
    assert looks[-1].n_tensors <= looks[0].n_tensors
    assert rise(looks) < LEFT_BEHIND


def test_the_largest_rise_after_the_warm_up_counts():
    samples = [Sample(10_000, 50), Sample(20_000, 100), Sample(30_000, 107), Sample(40_000, 101)]
    assert growth(samples) == pytest.approx(0.07)
    assert line("HELM", samples).endswith("7.00 %  GROWS")
    assert line("HELM", samples[1:2]).endswith("0.00 %  flat")
