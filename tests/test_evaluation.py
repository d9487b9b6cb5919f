import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.agent import Step, TensorMemory
from models.observations import ObservationPreprocessor
from tests.agents import spaces
from tests.counting import CountingEnv
from trainers import evaluation
from trainers.evaluation import GreedyEvaluation, evaluate
from utils.errors import EnvFault


class Silent:
    """Acts without looking."""

    read = staticmethod(ObservationPreprocessor(spaces()[0]))

    def initial_memory(self, n_envs):
        return TensorMemory(torch.zeros(n_envs, 0))

    def act(self, percept, memory, deterministic=False):
        zeros = torch.zeros(percept.n_envs)
        return Step(zeros.long(), zeros[:, None], zeros, shown(percept).float())

    def explain(self, step):
        return {"words": np.array([[str(int(n))] for n in step.values.tolist()])}


class Telling(Silent):
    """Counts the steps of every episode in its memory and tells the count before each."""

    def initial_memory(self, n_envs):
        return TensorMemory(torch.zeros(n_envs, 1))

    def act(self, percept, memory, deterministic=False):
        memory.state.masked_fill_(percept.is_first[:, None], 0)
        memory.state += 1
        step = super().act(percept, memory, deterministic)
        return step._replace(all_log_probs=torch.full((percept.n_envs, 4), 0.25).log())

    def inspect(self, percept, memory, step):
        return {"held": memory.state.masked_fill(percept.is_first[:, None], 0).numpy().copy()}


def shown(percept):
    """Return the step count that each image shows.  [N]"""
    return percept.observations.images[:, 0, 0, 0]


class Asked(Silent, torch.nn.Module):
    """Notes how it is asked to act."""

    def __init__(self):
        super().__init__()
        self.asked = set()

    def act(self, percept, memory, deterministic=False):
        self.asked.add((deterministic, self.training))
        return super().act(percept, memory)


def test_an_evaluation_while_training_is_greedy_and_leaves_the_agent_in_training():
    config = SimpleNamespace(eval_steps=10, eval_episodes=4)
    evaluated, agent = GreedyEvaluation(config, CountingEnv([3, 2])), Asked()
    assert math.isnan(evaluated(agent, 9)["eval/return_mean"])
    assert not agent.asked
    # Two episodes of 3 steps pay 1 + 2 + 3 each, and two of 2 steps pay 3.
    told = evaluated(agent, 11)
    assert (told["eval/return_mean"], told["eval/length_mean"]) == (4.5, 2.5)
    assert agent.asked == {(True, False)}
    assert agent.training
    assert math.isnan(evaluated(agent, 19)["eval/return_mean"])
    assert evaluated.latest == 4.5


def test_an_episode_that_does_not_end_is_a_fault(monkeypatch):
    monkeypatch.setattr(evaluation, "LONGEST_PLAYED", 5)
    assert len([*evaluate(Silent(), CountingEnv([5, 3]), 4)]) == 4
    with pytest.raises(EnvFault, match=r"not ended after 5 steps\. .*TimeLimit"):
        list(evaluate(Silent(), CountingEnv([6, 3]), 4))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 9))
def test_every_environment_plays_its_share_however_long_its_episodes_are(lengths, n_episodes):
    episodes = [each.episode for each in evaluate(Silent(), CountingEnv(lengths), n_episodes)]
    shares = [n_episodes // len(lengths)] * len(lengths)
    for n in range(n_episodes % len(lengths)):
        shares[n] += 1
    expected = [length for length, n in zip(lengths, shares, strict=True) for _ in range(n)]
    assert sorted(each.length for each in episodes) == sorted(expected)
    for each in episodes:  # the raw sums of rewards
        assert each.episode_return == sum(range(each.length + 1))


@pytest.mark.parametrize("in_detail", [False, True])
def test_details_are_what_the_agent_held_before_it_acted_and_are_not_written(in_detail, tmp_path):
    env = CountingEnv(lengths=[2, 3])
    for recording in evaluate(Telling(), env, n_episodes=4, in_detail=in_detail):
        length = recording.episode.length
        recording.save(tmp_path / "episode.npz")
        with np.load(tmp_path / "episode.npz") as arrays:
            assert set(arrays) == {"observations", "actions", "values", "words", "rewards"}
        if in_detail:
            assert recording.details["held"][:, 0].tolist() == list(range(length))
            assert recording.details["probabilities"].shape == (length, 4)
            assert recording.details["probabilities"] == pytest.approx(0.25)
