import numpy as np
import pytest

from utils.running_statistics import RunningMeanVariance


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
