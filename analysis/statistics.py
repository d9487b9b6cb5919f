"""Averages over runs with their uncertainty (Agarwal et al. 2021, arXiv:2108.13264)."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from analysis.run_data import Group, Table
from utils.errors import UserError

CONFIDENCE = 0.95
N_RESAMPLES = 2000
QUARTER = 0.25
# Defaults of analyses; here, and not beside them, for --help waits for no PyTorch.
BETAS = (1.0, 10.0, 100.0, 1000.0)  # inverse temperatures
MOST_WORDS = 25
PROBED = 400  # episodes of each run
TAUS = np.linspace(0, 1, 51)  # normalised scores at which a performance profile is drawn


class Estimate(NamedTuple):
    """A number or a curve with its 95 % interval, which a single run does not have."""

    value: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def texts(self, text: Callable[[float], str]) -> list[str]:
        """Return a number and the ends of its interval as they are written, "" without one."""
        return ["" if each is None else text(float(each)) for each in self]


class Curves(NamedTuple):
    x: np.ndarray
    y: np.ndarray


class CurveSummary(NamedTuple):
    """One agent in one environment.

    Attributes:
        mean: Over the runs at each point.  [P]
        final: Over the runs at the last point.
        reached: The x at which `mean` first comes to the threshold; None if it does not.
        n_reached: The number of runs that come to the threshold.
    """

    environment: str
    name: str
    curves: Curves
    mean: Estimate
    final: Estimate
    reached: float | None
    n_reached: int

    @property
    def n_runs(self) -> int:
        return len(self.curves.y)

    @property
    def finals(self) -> np.ndarray:
        """Every run's score at the last point.  [n]"""
        return self.curves.y[:, -1]


class Comparison(NamedTuple):
    better: str
    other: str
    probability: Estimate


class Aggregate(NamedTuple):
    """The final scores of one agent over E environments.

    A score is normalised: 0 and 1 are the lowest and the highest of any run in its environment.

    Attributes:
        iqm: The interquartile mean over all runs.
        profile: The share of runs with a score above each of TAUS.
    """

    name: str
    environments: Sequence[str]
    iqm: Estimate
    profile: Estimate


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Return the mean of the middle half; below four values nothing is cut and it is the mean."""
    from scipy import stats  # slow to import

    return stats.trim_mean(values, QUARTER, axis=axis)


STATISTICS: dict[str, Callable[..., np.ndarray]] = {"iqm": interquartile_mean, "mean": np.mean}
NAMES = {"iqm": "interquartile mean", "mean": "mean"}


def estimate(runs: np.ndarray, statistic: str) -> Estimate:
    """Return a statistic over runs [n, ...] with a percentile bootstrap interval over runs."""
    function = STATISTICS[statistic]
    return _with_interval(function(runs, axis=0), (runs,), function)


def difference(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """Return by how much the mean over our runs [n] is above that over theirs [m]."""

    def statistic(*samples: np.ndarray, axis: int = 0) -> np.ndarray:
        return np.subtract(*(each.mean(axis) for each in samples))

    return _with_interval(statistic(ours, theirs), (ours, theirs), statistic)


def difference_over_tasks(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> Estimate:
    """Return by how much we are ahead in the mean over T tasks of the means over runs.

    The bootstrap is joint: it draws tasks anew, and in each drawn one the runs of both. So the
    interval speaks of other tasks of their kind, not of other seeds alone.

    Args:
        ours, theirs: Our runs' scores in each task, and theirs.  each [n]
    """
    rng = np.random.default_rng(0)

    def means(runs: np.ndarray) -> np.ndarray:
        return runs[rng.integers(len(runs), size=(N_RESAMPLES, len(runs)))].mean(1)

    value = np.mean([x.mean() - y.mean() for x, y in zip(ours, theirs, strict=True)])
    drawn = rng.integers(len(ours), size=(len(ours), N_RESAMPLES))
    resampled = np.zeros(N_RESAMPLES)
    for place in drawn:  # a task that is drawn twice has other runs each time
        gaps = np.stack([means(x) - means(y) for x, y in zip(ours, theirs, strict=True)])
        resampled += gaps[place, np.arange(N_RESAMPLES)] / len(ours)
    tail = (1 - CONFIDENCE) / 2
    return Estimate(value, *np.quantile(resampled, (tail, 1 - tail)))


def verdict(found: Estimate, counts: float) -> str:
    """Judge a difference by its interval; a difference below `counts` is none."""
    if found.low is None or found.high is None:
        return "inconclusive"
    if found.low > counts:
        return "ahead"
    if found.high < -counts:
        return "behind"
    return "comparable" if -counts <= found.low and found.high <= counts else "inconclusive"


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
        shares = []
        for x, y in zip(samples[:half], samples[half:], strict=True):
            x, y = x[..., :, None], y[..., None, :]  # every pair
            shares.append(((x > y) + 0.5 * (x == y)).mean((-2, -1)))
        return np.mean(shares, axis=0)

    return _with_interval(statistic(*ours, *theirs), (*ours, *theirs), statistic)


def _with_interval(
    value: np.ndarray, samples: Sequence[np.ndarray], statistic: Callable[..., np.ndarray]
) -> Estimate:
    if min(map(len, samples)) < 2:
        return Estimate(value)
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
    return Estimate(value, *found.confidence_interval)


def on_common_axis(xs: Sequence[np.ndarray], ys: Sequence[np.ndarray]) -> Curves:
    """Return curves on one axis: their own where they share it, else the range common to all.

    On the common range each curve is interpolated linearly, at as many points as the shortest has.
    """
    if all(np.array_equal(x, xs[0]) for x in xs):
        return Curves(xs[0], np.stack(ys))
    # Beyond the shortest curve the mean would be of other runs than before.
    low, high = max(x[0] for x in xs), min(x[-1] for x in xs)
    if low > high:
        where = f"one ends at {high:,.0f}, another begins at {low:,.0f}"
        raise UserError(f"curves share no steps: {where}. Leave out the run that is too short")
    x = np.linspace(low, high, min(map(len, xs)))
    return Curves(x, np.stack([np.interp(x, *curve) for curve in zip(xs, ys, strict=True)]))


def first_reaching(x: np.ndarray, y: np.ndarray, threshold: float) -> float | None:
    reached = np.flatnonzero(y >= threshold)
    return float(x[reached[0]]) if len(reached) else None


def summarize(group: Group, statistic: str, threshold: float | None) -> CurveSummary:
    try:
        curves = on_common_axis([run.x for run in group.runs], [run.y for run in group.runs])
    except UserError as error:
        raise UserError(f"{group.name} on {group.environment}: {error}") from None
    mean = estimate(curves.y, statistic)
    final = estimate(curves.y[:, -1], statistic)
    reached, n_reached = None, 0
    if threshold is not None:
        reached = first_reaching(curves.x, mean.value, threshold)
        n_reached = sum(first_reaching(curves.x, y, threshold) is not None for y in curves.y)
    return CurveSummary(group.environment, group.name, curves, mean, final, reached, n_reached)


def compare(results: Iterable[CurveSummary]) -> list[Comparison]:
    """Return every pair of agents, the one that probably wins first."""
    # A pair needs two runs each in some environment; a single run cannot tell luck from skill.
    finals: dict[str, dict[str, np.ndarray]] = {}
    for result in results:
        own = finals.setdefault(result.name, {})
        if result.n_runs > 1:
            own[result.environment] = result.finals
    found = []
    for first, second in combinations(finals, 2):
        both = [environment for environment in finals[first] if environment in finals[second]]
        if not both:
            continue
        samples = [[finals[name][environment] for environment in both] for name in (first, second)]
        probability = probability_of_improvement(*samples)
        if probability.value < 0.5:
            first, second = second, first
            probability = probability_of_improvement(*reversed(samples))
        found.append(Comparison(first, second, probability))
    return found


def aggregate(results: Sequence[CurveSummary]) -> list[Aggregate]:
    """Return every agent's aggregate over the environments that all have; none below two of them.

    The bootstrap is stratified: it draws anew within each environment.
    """
    finals = {(result.name, result.environment): result.finals for result in results}
    names, environments = (list(dict.fromkeys(each)) for each in zip(*finals, strict=True))
    shared = [each for each in environments if all((name, each) in finals for name in names)]
    samples: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for environment in shared:
        scores = np.concatenate([finals[name, environment] for name in names])
        low, spread = scores.min(), np.ptp(scores)
        for name in names:
            normalised = (finals[name, environment] - low) / (spread or 1.0)
            samples[name].append(normalised)

    def iqm(*scores: np.ndarray, axis: int = -1) -> np.ndarray:
        return interquartile_mean(np.concatenate(scores, axis), axis)

    def profile(*scores: np.ndarray, axis: int = -1) -> np.ndarray:
        every = np.concatenate(scores, axis)
        return np.stack([(every > tau).mean(axis) for tau in TAUS])

    return [
        Aggregate(name, shared, *(_with_interval(f(*own), own, f) for f in (iqm, profile)))
        for name, own in samples.items()
        if len(shared) > 1
    ]


def aggregates_table(aggregates: Iterable[Aggregate], precise: bool = False) -> Table:
    number = repr if precise else "{:.3f}".format
    rows = [[each.name, len(each.environments), *each.iqm.texts(number)] for each in aggregates]
    return [["agent", "environments", "IQM, normalised", "low", "high"], *rows]


def profiles_table(aggregates: Iterable[Aggregate]) -> Table:
    heading = ["agent", "score", "runs above", "low", "high"]
    lines = [
        [each.name, float(tau), *Estimate(*at).texts(repr)]
        for each in aggregates
        for tau, *at in zip(TAUS, *(part for part in each.profile if part is not None), strict=True)
    ]
    return [heading, *lines]


def results_table(
    results: Iterable[CurveSummary], axis: str, threshold: float | None, precise: bool = False
) -> Table:
    """Return a line for each agent in each environment, its heading first.

    `axis` is "steps" or "seconds"; without a threshold its two columns are left out; `precise`
    gives all digits, for other programs.
    """
    heading: list[object] = ["agent", "environment", "runs", axis, "final", "low", "high"]
    if threshold is not None:
        heading += [f"{axis} to {threshold:g}", "runs there"]
    score = repr if precise else "{:.3f}".format
    place = repr if precise else "{:,.0f}".format
    table = [heading]
    for result in results:
        line = [result.name, result.environment, result.n_runs, place(float(result.curves.x[-1]))]
        line += result.final.texts(score)
        if threshold is not None:
            line.append("never" if result.reached is None else place(result.reached))
            line.append(result.n_reached if precise else f"{result.n_reached}/{result.n_runs}")
        table.append(line)
    return table


def curves_table(results: Iterable[CurveSummary], axis: str) -> Table:
    """Return every point of the curves with its interval, all digits, a heading first."""
    rows: list[Sequence[object]] = [
        ("agent", "environment", "runs", axis, "value", "low", "high"),
    ]
    for result in results:
        value, low, high = result.mean
        absent = np.full(len(value), None)
        bounds = [absent if each is None else each for each in (low, high)]
        for x, *point in zip(result.curves.x, value, *bounds, strict=True):
            numbers = Estimate(*point).texts(repr)
            rows.append((result.name, result.environment, result.n_runs, repr(float(x)), *numbers))
    return rows


def comparisons_table(comparisons: Iterable[Comparison], precise: bool = False) -> Table:
    number = repr if precise else "{:.2f}".format
    rows = [[each.better, each.other, *each.probability.texts(number)] for each in comparisons]
    return [["agent", "beats", "probability", "low", "high"], *rows]
