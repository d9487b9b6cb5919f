import numpy as np
import pytest

from rewards import RewardScaling, build_scaling
from tests.agents import small_config
from utils.running_statistics import RunningMeanVariance


def play(scaling, rewards, ended=None):
    """Return every step's rewards, scaled; rewards and ended are [T, N]."""
    scaling.begin()
    ended = np.zeros(np.shape(rewards), bool) if ended is None else np.array(ended, bool)
    return [scaling(np.array(row), ends) for row, ends in zip(rewards, ended, strict=True)]


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
    zeros = np.zeros((50, 2))
    np.testing.assert_array_equal(play(scaling, [*zeros, [100, -100]])[-1], [1, -1])


@pytest.mark.parametrize(
    ("choice", "by_default", "scaled"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_the_settings_come_before_the_suite(choice, by_default, scaled):
    config = small_config(normalize_reward=choice)
    assert (build_scaling(config, 3, by_default) is not None) == scaled


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
