"""What a comparison of agents comes to: curves, final scores, who is probably better."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from plots.runs import Group
from plots.statistics import (
    Curves,
    Estimate,
    estimate,
    first_reaching,
    on_common_axis,
    probability_of_improvement,
)
from plots.table import Table


class Result(NamedTuple):
    """One agent in one environment.

    Attributes:
        environment, name: Of the group of runs.
        curves: The runs on one axis.  [n, P]
        mean: Over the runs at each point.  [P]
        final: Over the runs at the last point.
        reached: Where `mean` first comes to the threshold; None if it does not, or there is none.
        n_reached: How many runs come to the threshold.
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
        """Return n."""
        return len(self.curves.y)

    @property
    def finals(self) -> np.ndarray:
        """Return every run's score at the last point.  [n]"""
        return self.curves.y[:, -1]


class Comparison(NamedTuple):
    """How probably one agent beats another, over the environments both were run in."""

    better: str
    other: str
    probability: Estimate


def summarize(group: Group, statistic: str, threshold: float | None) -> Result:
    """Return what the runs of a group come to."""
    curves = on_common_axis([run.x for run in group.runs], [run.y for run in group.runs])
    mean = estimate(curves.y, statistic)
    final = estimate(curves.y[:, -1], statistic)
    reached, n_reached = None, 0
    if threshold is not None:
        reached = first_reaching(curves.x, mean.value, threshold)
        n_reached = sum(first_reaching(curves.x, y, threshold) is not None for y in curves.y)
    return Result(group.environment, group.name, curves, mean, final, reached, n_reached)


def compare(results: Sequence[Result]) -> list[Comparison]:
    """Return every pair of agents, the one that probably wins first.

    A pair needs two runs each in some environment; a single run cannot tell luck from skill.
    """
    found = []
    names = list(dict.fromkeys(result.name for result in results))
    for first, second in combinations(names, 2):
        ours, theirs = _finals(results, first), _finals(results, second)
        both = [environment for environment in ours if environment in theirs]
        if not both:
            continue
        samples = [ours[name] for name in both], [theirs[name] for name in both]
        probability = probability_of_improvement(*samples)
        if probability.value < 0.5:
            first, second = second, first
            probability = probability_of_improvement(*reversed(samples))
        found.append(Comparison(first, second, probability))
    return found


def results_table(
    results: Iterable[Result], axis: str, threshold: float | None, precise: bool = False
) -> Table:
    """Return a line for each agent in each environment, its heading first.

    Args:
        results: The lines.
        axis: "steps" or "seconds".
        threshold: Of the last two columns, which are left out without one.
        precise: All digits, for other programs.
    """
    heading: list[object] = ["agent", "environment", "runs", axis, "final", "low", "high"]
    if threshold is not None:
        heading += [f"{axis} to {threshold:g}", "runs there"]
    score = repr if precise else "{:.3f}".format
    place = repr if precise else "{:,.0f}".format
    table: list[list[object]] = [heading]
    for result in results:
        final = [_blank_or(score, value) for value in result.final]
        line = [result.name, result.environment, result.n_runs, place(float(result.curves.x[-1]))]
        line += final
        if threshold is not None:
            line.append("never" if result.reached is None else place(result.reached))
            line.append(result.n_reached if precise else f"{result.n_reached}/{result.n_runs}")
        table.append(line)
    return table


def comparisons_table(comparisons: Iterable[Comparison], precise: bool = False) -> Table:
    """Return a line for each pair of agents, its heading first."""
    number = repr if precise else "{:.2f}".format
    table: list[list[object]] = [["agent", "beats", "probability", "low", "high"]]
    for better, other, probability in comparisons:
        table.append([better, other, *(_blank_or(number, value) for value in probability)])
    return table


def _blank_or(text: Callable[[float], str], value: np.ndarray | None) -> str:
    return "" if value is None else text(float(value))


def _finals(results: Iterable[Result], name: str) -> dict[str, np.ndarray]:
    return {
        result.environment: result.finals
        for result in results
        if result.name == name and result.n_runs > 1
    }
