import pytest

from trainers.schedules import Schedule


def values(schedule, *progress):
    return [pytest.approx(schedule.value(point), abs=1e-12) for point in progress]


def test_none_stays_where_it_starts():
    assert values(Schedule("none", 0.3, 0.0), 0, 0.5, 1) == [0.3, 0.3, 0.3]


def test_linear_reaches_its_end_at_the_end_fraction_and_stays():
    schedule = Schedule("linear", 1.0, 0.2, end_fraction=0.5)
    assert values(schedule, 0, 0.25, 0.5, 1) == [1.0, 0.6, 0.2, 0.2]


def test_linear_that_ends_at_once_is_its_end():
    assert Schedule("linear", 1.0, 0.2, end_fraction=0.0).value(0.0) == pytest.approx(0.2)


def test_linear_burn_in_waits_then_falls_then_stays():
    schedule = Schedule("linear_burn_in", 1.0, 0.0, start_fraction=0.25, end_fraction=0.75)
    assert values(schedule, 0, 0.25, 0.5, 0.75, 1) == [1.0, 1.0, 0.5, 0.0, 0.0]


def test_exp_begins_with_the_factor_one_and_multiplies_at_every_update():
    schedule = Schedule("exp", 0.8, factor=0.5, n_updates=4)
    assert values(schedule, 0.25, 0.5, 0.75, 1) == [0.8, 0.4, 0.2, 0.1]


def test_exp_counts_the_updates_before_its_start_too():
    schedule = Schedule("exp", 0.8, start_fraction=0.75, factor=0.5, n_updates=4)
    assert values(schedule, 0.25, 0.5, 0.75, 1) == [0.8, 0.8, 0.2, 0.1]


def test_schedules_go_on_where_the_last_rollout_is_longer_than_the_run():
    progress = [1 / 2.5, 2 / 2.5, 3 / 2.5]
    assert values(Schedule("exp", 0.8, factor=0.5, n_updates=2.5), *progress) == [0.8, 0.4, 0.2]
    assert Schedule("linear", 0.8, 0.2).value(progress[-1]) == pytest.approx(0.2)
    burn_in = Schedule("linear_burn_in", 0.8, 0.2, start_fraction=0.5)
    assert burn_in.value(progress[-1]) == pytest.approx(0.2)
