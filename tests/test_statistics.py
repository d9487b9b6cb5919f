import numpy as np
import pytest

from analysis import statistics
from utils.errors import UserError


def test_the_interquartile_mean_is_that_of_the_middle_half():
    values = np.array([100.0, 1, 2, 3, 4, -7, 5, 0])
    assert statistics.interquartile_mean(values) == (1 + 2 + 3 + 4) / 4
    assert statistics.interquartile_mean(np.array([0.0, 3, 9])) == 4


def test_an_interval_holds_the_value_and_narrows_with_more_runs():
    rng = np.random.default_rng(0)
    few, many = (statistics.estimate(rng.normal(size=(n, 3)), "iqm") for n in (5, 80))
    for value, low, high in (few, many):
        assert value.shape == (3,)
        assert ((low < value) & (value < high)).all()
    assert (many.high - many.low < few.high - few.low).all()
    assert statistics.estimate(np.ones((1, 4)), "mean")[1:] == (None, None)


def test_a_bootstrap_interval_is_that_of_the_normal_distribution_for_many_runs():
    runs = np.random.default_rng(1).normal(size=400)
    value, low, high = statistics.estimate(runs, "mean")
    error = 1.96 * runs.std() / 20
    assert (low, high) == pytest.approx((value - error, value + error), abs=0.02)


def test_the_probability_of_improvement_counts_pairs_and_half_of_ties():
    ours = [np.array([1.0, 2.0]), np.array([5.0, 5.0])]
    theirs = [np.array([1.0, 0.0, 3.0]), np.array([4.0, 4.0])]
    value, low, high = statistics.probability_of_improvement(ours, theirs)
    assert value == pytest.approx(((0.5 + 1 + 0 + 1 + 1 + 0) / 6 + 1) / 2)
    assert 0.5 <= low < value < high <= 1
    always = [np.array([5.0, 6.0])], [np.array([1.0, 2.0, 3.0])]
    assert statistics.probability_of_improvement(*always) == (1, 1, 1)


def test_curves_are_interpolated_where_all_of_them_are_unless_they_share_their_axis():
    xs = [np.array([0.0, 10, 20]), np.array([5.0, 15, 25, 35])]
    ys = [np.array([0.0, 10, 20]), np.array([1.0, 3, 5, 7])]
    curves = statistics.on_common_axis(xs, ys)
    assert curves.x.tolist() == [5, 12.5, 20]
    assert curves.y.tolist() == [[5, 12.5, 20], [1, 2.5, 4]]
    x, y = np.array([1.0, 2, 4]), np.array([1.0, 5, 2])
    with pytest.raises(UserError, match="one ends at 20, another begins at 21"):
        statistics.on_common_axis([xs[0], xs[0] + 21], ys[:1] * 2)
    shared = statistics.on_common_axis([x, x.copy()], [y, y])
    assert (shared.x.tolist(), shared.y.tolist()) == (x.tolist(), [y.tolist()] * 2)


def test_a_threshold_is_reached_once_or_never():
    x, y = np.array([10.0, 20, 30, 40]), np.array([0.1, 0.8, 0.2, 0.9])
    assert statistics.first_reaching(x, y, 0.8) == 20
    assert statistics.first_reaching(x, y, 0.95) is None


def test_the_joint_bootstrap_draws_tasks_and_runs():
    """With equal runs only tasks vary, so that the mean of T gaps has the spread of T draws."""
    gaps = np.array([0.0, 0.0, 0.0, 1.0])
    ours, theirs = [np.full(3, gap) for gap in gaps], [np.zeros(5)] * 4
    value, low, high = statistics.difference_over_tasks(ours, theirs)
    assert (value, low, high) == (0.25, 0.0, 0.75)  # binomial of 4 draws, p = 1/4
    one = statistics.difference_over_tasks([np.array([0.0, 1.0])], [np.zeros(2)])
    assert one == (0.5, 0.0, 1.0), "the runs of one task are drawn, too"


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (0.06, 0.3, "ahead"),
        (0.04, 0.3, "inconclusive"),
        (-0.05, 0.05, "comparable"),
        (-0.3, -0.06, "behind"),
        (None, None, "inconclusive"),
    ],
)
def test_a_verdict_needs_the_whole_interval(low, high, told):
    assert statistics.verdict(statistics.Estimate(np.array(0.0), low, high), 0.05) == told
