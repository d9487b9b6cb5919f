import numpy as np
import pytest
import torch

from utils.running_statistics import RunningMeanVariance


def test_the_variance_is_one_before_the_first_value():
    statistics = RunningMeanVariance()
    assert (statistics.mean, statistics.variance) == (0.0, 1.0)


def test_the_first_update_by_hand():
    statistics = RunningMeanVariance()
    statistics.update([1.0, 3.0])
    # Mean 2, variance 1; the initial weight 1e-4 lies at 0.
    assert statistics.count == pytest.approx(2.0001, rel=1e-12)
    assert statistics.mean == pytest.approx(4 / 2.0001, rel=1e-12)
    squares = 1e-4 * 1 + 2 * 1 + 4 * 1e-4 * 2 / 2.0001
    assert statistics.variance == pytest.approx(squares / 2.0001, rel=1e-12)


def test_many_values_leave_nothing_of_the_start():
    values = np.random.default_rng(0).normal(5.0, 3.0, (400, 50))
    statistics = RunningMeanVariance()
    for batch in values:
        statistics.update(batch)
    assert statistics.mean == pytest.approx(values.mean(), abs=1e-6)
    assert statistics.variance == pytest.approx(values.var(), abs=1e-6)


def test_batches_of_any_size_give_the_same_result():
    values = np.random.default_rng(1).normal(size=60)
    whole, parts = RunningMeanVariance(), RunningMeanVariance()
    whole.update(values.reshape(3, 20))
    for part in np.split(values, [1, 7, 7, 31]):
        parts.update(part)
    assert parts.state_dict() == pytest.approx(whole.state_dict(), rel=1e-12)


def test_tensors_and_arrays_count_alike():
    by_tensor, by_array = RunningMeanVariance(), RunningMeanVariance()
    by_tensor.update(torch.tensor([[0.5, 2.0], [1.0, -3.0]]))
    by_array.update(np.array([0.5, 2.0, 1.0, -3.0]))
    assert by_tensor.state_dict() == by_array.state_dict()


def test_a_saved_state_continues_exactly(tmp_path):
    statistics = RunningMeanVariance()
    statistics.update(np.array([1.0, 4.0, 9.0]))
    torch.save(statistics.state_dict(), tmp_path / "state.pt")
    continued = RunningMeanVariance()
    continued.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for each in (statistics, continued):
        each.update(np.array([2.0, 2.5]))
    assert continued.state_dict() == statistics.state_dict()
