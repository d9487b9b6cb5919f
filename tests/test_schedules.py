import pytest

from trainers.ppo import Schedule

BURN_IN = Schedule("linear_burn_in", 1.0, 0.0, start_fraction=0.25, end_fraction=0.75)
FALLING, AT_ONCE = (Schedule("linear", 1.0, 0.2, end_fraction=each) for each in (0.5, 0.0))
HALVED, LONGER = (Schedule("exp", 0.8, factor=0.5, n_updates=n) for n in (4, 2.5))
LATE = Schedule("exp", 0.8, start_fraction=0.75, factor=0.5, n_updates=4)
# Coefficients by progress; a last rollout longer than the run ends above 1.
EXPECTED = {
    "none": (Schedule("none", 0.3, 0.0), {0: 0.3, 0.5: 0.3, 1: 0.3}),
    "linear stays at its end": (FALLING, {0: 1.0, 0.25: 0.6, 0.5: 0.2, 1: 0.2, 1.2: 0.2}),
    "linear that ends at once": (AT_ONCE, {0: 0.2}),
    "burn-in": (BURN_IN, {0: 1.0, 0.25: 1.0, 0.5: 0.5, 0.75: 0.0, 1: 0.0, 1.2: 0.0}),
    "exp, begins with factor one": (HALVED, {0.25: 0.8, 0.5: 0.4, 0.75: 0.2, 1: 0.1}),
    "exp counts updates before its start": (LATE, {0.25: 0.8, 0.5: 0.8, 0.75: 0.2, 1: 0.1}),
    "exp, a longer last rollout": (LONGER, {1 / 2.5: 0.8, 2 / 2.5: 0.4, 3 / 2.5: 0.2}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_coefficient_follows_its_schedule(name):
    schedule, expected = EXPECTED[name]
    found = {progress: schedule.value(progress) for progress in expected}
    assert found == pytest.approx(expected, abs=1e-12)
