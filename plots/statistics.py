"""Averages over runs with their uncertainty (Agarwal et al. 2021, arXiv:2108.13264)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
N_RESAMPLES = 2000
QUARTER = 0.25


class Estimate(NamedTuple):
    """A number or a curve with its 95 % interval; without one if a single run stands behind it."""

    value: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


class Curves(NamedTuple):
    """Runs on one axis.

    Attributes:
        x: [P]
        y: [n, P]
    """

    x: np.ndarray
    y: np.ndarray


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Return the mean of the middle half; below four values nothing is cut and it is the mean."""
    from scipy import stats  # slow to import, and eval.py can do without

    return stats.trim_mean(values, QUARTER, axis=axis)


STATISTICS: dict[str, Callable[..., np.ndarray]] = {"iqm": interquartile_mean, "mean": np.mean}
NAMES = {"iqm": "interquartile mean", "mean": "mean"}


def estimate(runs: np.ndarray, statistic: str) -> Estimate:
    """Return a statistic over runs [n, ...] with a percentile bootstrap interval over runs."""
    function = STATISTICS[statistic]
    value = function(runs, axis=0)
    if len(runs) < 2:
        return Estimate(value)
    return Estimate(value, *_interval((runs,), function))


def probability_of_improvement(
    ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]
) -> Estimate:
    """Return how probably a run of ours beats one of theirs, averaged over environments.

        P = mean over environments of mean over pairs of [x > y] + [x = y] / 2

    The bootstrap is stratified: it draws anew within each agent and environment.

    Args:
        ours: Final scores in each environment.  each [n]
        theirs: The same of the other agent, the environments in the same order.  each [m]
    """

    def statistic(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
        half = len(samples) // 2
        pairs = zip(samples[:half], samples[half:], strict=True)
        return np.mean([_wins(x, y) for x, y in pairs], axis=0)

    value = statistic(*ours, *theirs)
    if min(map(len, (*ours, *theirs))) < 2:
        return Estimate(value)
    return Estimate(value, *_interval((*ours, *theirs), statistic))


def on_common_axis(xs: Sequence[np.ndarray], ys: Sequence[np.ndarray]) -> Curves:
    """Return curves on one axis: their own where they share it, else the range common to all.

    On the common range each curve is interpolated linearly, at as many points as the shortest has.
    """
    if all(np.array_equal(x, xs[0]) for x in xs):
        return Curves(xs[0], np.stack(ys))
    low, high = max(x[0] for x in xs), min(x[-1] for x in xs)
    x = np.linspace(low, max(low, high), min(map(len, xs)))
    return Curves(x, np.stack([np.interp(x, *curve) for curve in zip(xs, ys, strict=True)]))


def first_reaching(x: np.ndarray, y: np.ndarray, threshold: float) -> float | None:
    """Return where a curve first comes to a threshold, or None."""
    reached = np.flatnonzero(y >= threshold)
    return float(x[reached[0]]) if len(reached) else None


def _wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the share of pairs of x [..., n] and y [..., m] in which x is larger.  [...]"""
    x, y = x[..., :, None], y[..., None, :]
    return ((x > y) + 0.5 * (x == y)).mean((-2, -1))


def _interval(
    samples: Sequence[np.ndarray], statistic: Callable[..., np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    from scipy import stats

    found = stats.bootstrap(
        samples,
        statistic,
        n_resamples=N_RESAMPLES,
        batch=100,
        axis=0,
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),  # the same runs give the same picture
    )
    return found.confidence_interval
