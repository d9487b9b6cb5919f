from pathlib import Path

import numpy as np
import pytest
import torch

from main import build_run
from models.observations import RunningMeanVariance
from tests.agents import small_config
from trainers.build import build_scaling
from trainers.learner import RewardScaling
from trainers.ranks import Ranks
from trainers.settings import RunSettings
from utils.errors import UserError
from utils.given_settings import load_config
from utils.user_modules import GIVEN


def play(scaling, rewards, ended=None):
    """Return every step's rewards, scaled; rewards and ended are [T, N]."""
    scaling.begin()
    ended = np.zeros(np.shape(rewards), bool) if ended is None else np.array(ended, bool)
    scaled = []
    for row, ends in zip(rewards, ended, strict=True):
        scaling.update(np.array(row), ends)
        scaled.append(scaling.scaled(torch.tensor(row)).numpy())
    return scaled


def test_the_returns_of_four_steps_by_hand():
    scaling = RewardScaling(2, gamma=0.5)
    first, second = play(scaling, [[1, -1], [0.5, 0]], ended=[[0, 1], [0, 0]])
    # Discounted returns 1, -1: mean 0, variance 1.
    np.testing.assert_allclose(first, [1, -1], atol=1e-6)
    # Then 0.5 * 1 + 0.5 and, the episode being over, 0; 1, -1, 1, 0 have variance 0.6875.
    assert scaling.statistics.variance == pytest.approx(0.6875, abs=1e-4)
    np.testing.assert_allclose(second, [0.5 / np.sqrt(0.6875), 0], atol=1e-4)


def test_an_ended_episode_leaves_no_return_behind():
    rewards = [[1, 2], [3, 4]]
    ended = play(RewardScaling(2, 0.9), rewards, ended=[[1, 1], [0, 0]])
    np.testing.assert_array_equal(ended, play(RewardScaling(2, 0.0), rewards))


def test_new_episodes_begin_new_returns_but_keep_the_statistics_and_rewards_are_clipped():
    scaling = RewardScaling(2, gamma=0.9)
    for _ in range(2):
        play(scaling, [[1.0, 2.0]])
    assert scaling.statistics.mean == pytest.approx(1.5, abs=1e-3)
    assert scaling.statistics.count == pytest.approx(4.0001)
    steps = [*[[0.0, 0.0]] * 50, [100.0, -100.0]]
    np.testing.assert_array_equal(play(scaling, steps)[-1], [1, -1])
    for clip in (3.0, None):
        largest = play(RewardScaling(2, 0.9, clip), steps)[-1]
        assert largest.tolist() == pytest.approx([clip or 7.1, -(clip or 7.1)], abs=0.1)


SCALED_AND_CLIPPED = (
    *("MiniGrid-MemoryS11-v0", "BabyAI-GoToObjS4-v0", "MiniWorld-TMaze-v0", "maze"),
    *("psychlab_continuous_recognition", "ContinuousRecognition-v0"),
)
OWN = (
    "Avalon-eat-v0",
    "TMazeActive-v0",
    "VisualMatch-v0",
    "Crafter-v1",
    "HopperP-v0",
    "RandomMaze-v0",
)


@pytest.mark.parametrize("choice", [None, True, False])
@pytest.mark.parametrize(
    ("env", "by_default"),
    {
        **dict.fromkeys(SCALED_AND_CLIPPED, 2.0),
        **dict.fromkeys((*OWN, "popgym-RepeatFirstEasy-v0"), False),
        **dict.fromkeys(("CartPole-v1", "examples.bandit:Bandit-v0", f"{GIVEN}MyEnv"), None),
    }.items(),
)
def test_the_settings_come_before_the_suite(env, by_default, choice):
    scaling = build_scaling(small_config(env=env, normalize_reward=choice, reward_clip=2.0), 3)
    expected = {None: by_default, True: 2.0, False: False}[choice]
    assert (False if scaling is None else scaling.clip) == expected


def test_the_first_update_by_hand():
    statistics = RunningMeanVariance()
    statistics.update([1.0, 3.0])
    # Mean 2, variance 1; the initial weight 1e-4 lies at 0.
    assert statistics.count == pytest.approx(2.0001, rel=1e-12)
    assert statistics.mean == pytest.approx(4 / 2.0001, rel=1e-12)
    squares = 1e-4 * 1 + 2 * 1 + 4 * 1e-4 * 2 / 2.0001
    assert statistics.variance == pytest.approx(squares / 2.0001, rel=1e-12)


def test_batches_of_any_size_give_the_same_result():
    values = np.random.default_rng(1).normal(size=60)
    whole, parts = RunningMeanVariance(), RunningMeanVariance()
    whole.update(values.reshape(3, 20))
    for part in np.split(values, [1, 7, 7, 31]):
        parts.update(part)
    assert parts.state_dict() == pytest.approx(whole.state_dict(), rel=1e-12)


def test_a_wish_without_effect_is_told():
    for words in (["env=CartPole-v1"], ["normalize_reward=false"], ["env=TMazeActive-v0"]):
        with pytest.raises(UserError, match=r"reward_clip: 3.*normalize_reward=true"):
            load_config(None, [*words, "reward_clip=3"])
    assert load_config(None, ["reward_clip=null"]).reward_clip is None  # of MiniGrid's


def collecting(algorithm, model, **changes):
    """Return the collector of a run in CartPole, whose steps pay 1 each, with scaled rewards."""
    settings = {"algorithm": algorithm, "model": model, "env": "CartPole-v1", "n_envs": 2}
    settings |= {"device": "cpu", "normalize_reward": True, "batch_size": 64} | changes
    return build_run(load_config(values=settings).part(RunSettings), Ranks())


@pytest.mark.slow
@pytest.mark.parametrize("clip", [1.0, 0.01])
@pytest.mark.parametrize(("algorithm", "model"), [("DQN", "CNN"), ("EllmDQN", "ELLM")])
def test_equal_rewards_are_learned_from_as_equal_whenever_they_were_paid(
    algorithm, model, clip, in_empty_folder
):
    with collecting(algorithm, model, reward_clip=clip) as run:
        learner, collector = run.learner, run.collector
        learner.folder = Path()
        collector.begin(0)
        while collector.n_episodes < 8:
            collector.step()
        own = learner.replay.sample(64)
        rewards = own.rewards[own.mask > 0] if algorithm == "DQN" else own.rewards
        assert set(rewards.flatten().tolist()) == {1.0}
        deviation = learner.scaling.statistics.variance**0.5
        expected = min(1 / deviation, clip)
        assert expected < 0.5
        if algorithm == "DQN":
            learned, _ = learner._rewarded(own)
            (scaled,) = set(learned.rewards[own.mask > 0].tolist())
            assert scaled == pytest.approx(expected)
            return
        assert learner.paid == 2 * collector.env_steps / collector.n_envs
        learner.config = learner.config.replace(gamma=0.0)
        assert learner.learn(own)["train/n_step_return_mean"] == pytest.approx(expected, rel=1e-3)
