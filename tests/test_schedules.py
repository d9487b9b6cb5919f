import pytest

from trainers.ppo import scheduled

BURN_IN = {"decay": "linear_burn_in", "start_fraction": 0.25, "end_fraction": 0.75}
FALLING, AT_ONCE = ({"decay": "linear", "end": 0.2, "end_fraction": each} for each in (0.5, 0.0))
HALVED, LONGER = ({"decay": "exp", "factor": 0.5, "n_updates": n} for n in (4, 2.5))
LATE = HALVED | {"start_fraction": 0.75}
# Coefficients, 1 at the start, by progress; a last rollout longer than the run ends above 1.
EXPECTED = {
    "none": ({"decay": "none"}, {0: 1.0, 0.5: 1.0, 1: 1.0}),
    "linear stays at its end": (FALLING, {0: 1.0, 0.25: 0.6, 0.5: 0.2, 1: 0.2, 1.2: 0.2}),
    "linear that ends at once": (AT_ONCE, {0: 0.2}),
    "burn-in": (BURN_IN, {0: 1.0, 0.25: 1.0, 0.5: 0.5, 0.75: 0.0, 1: 0.0, 1.2: 0.0}),
    "exp, begins with factor one": (HALVED, {0.25: 1.0, 0.5: 0.5, 0.75: 0.25, 1: 0.125}),
    "exp counts updates before its start": (LATE, {0.25: 1.0, 0.5: 1.0, 0.75: 0.25, 1: 0.125}),
    "exp, a longer last rollout": (LONGER, {1 / 2.5: 1.0, 2 / 2.5: 0.5, 3 / 2.5: 0.25}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_coefficient_follows_its_schedule(name):
    schedule, expected = EXPECTED[name]
    options = {"start": 1.0, "end": 0.0, "n_updates": 4} | schedule
    found = {progress: scheduled(progress, **options) for progress in expected}
    assert found == pytest.approx(expected, abs=1e-12)
