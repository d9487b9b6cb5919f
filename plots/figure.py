"""The picture plot.py draws: curves and final scores of each environment, then the comparison."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from plots.results import Comparison, Result
from plots.statistics import NAMES
from plots.style import (
    COLOURS,
    INK,
    QUIET,
    counted_runs,
    draw_curve,
    new_figure,
    short_number,
    style,
    write_beside,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXIS_LABELS = {"steps": "environment steps", "seconds": "seconds of training"}
METRIC_LABELS = {
    "rollout/return_mean": "mean return, last 100 episodes",
    "rollout/return_mean_padded": "mean return, last 100 episodes, zeros for the first N",
    "rollout/length_mean": "mean episode length, last 100 episodes",
    "rollout/success_mean": "share of successes, last 100 episodes",
    "eval/return_mean": "mean return, greedy evaluation",
    "eval/length_mean": "mean episode length, greedy evaluation",
    "eval/success_mean": "share of successes, greedy evaluation",
    "time/fps": "steps per second",
}
ROW_HEIGHT, BAR_HEIGHT, LINE_HEIGHT = 3.1, 0.36, 0.17  # inches
LONGEST = 24  # letters of a name that fits on one line, and beside its curve


class Labels(NamedTuple):
    """What the numbers mean: a column of metrics.csv, steps or seconds, mean or iqm."""

    metric: str
    axis: str
    statistic: str
    threshold: float | None = None


def draw(results: Sequence[Result], comparisons: Sequence[Comparison], labels: Labels) -> "Figure":
    """Return the picture of all results."""
    environments = list(dict.fromkeys(result.environment for result in results))
    colours = dict.fromkeys(result.name for result in results)
    for number, name in enumerate(colours):
        colours[name] = COLOURS[number % len(COLOURS)]
    n_lines = max((name.count("\n") for name in map(_compared, comparisons)), default=0)
    row = BAR_HEIGHT + LINE_HEIGHT * n_lines
    above, below = ROW_HEIGHT * len(environments), 0.9 + row * len(comparisons)
    with style():
        figure = new_figure(9, above + (below if comparisons else 0))
        heights = (above, below) if comparisons else (above,)
        parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        grid = parts[0].subplots(len(environments), 2, squeeze=False, width_ratios=(2.1, 1))
        for (left, right), environment in zip(grid, environments, strict=True):
            shown = [result for result in results if result.environment == environment]
            _draw_curves(left, shown, colours, labels)
            _draw_finals(right, shown, colours)
        if comparisons:
            _draw_comparisons(parts[1].subplots(), comparisons, colours)
        parts[-1].supxlabel(_footnote(results, labels), x=0.01, ha="left", size=8, color=QUIET)
    return figure


def _draw_curves(axes: "Axes", results: Sequence[Result], colours: dict, labels: Labels) -> None:
    for result in results:
        label = f"{result.name} ({counted_runs(result.n_runs)})"
        draw_curve(axes, result.curves.x, result.mean, colours[result.name], label)
    if labels.threshold is not None:
        axes.axhline(labels.threshold, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_title(results[0].environment)
    axes.set_xlabel(AXIS_LABELS[labels.axis])
    axes.set_ylabel(METRIC_LABELS.get(labels.metric, labels.metric))
    axes.xaxis.set_major_formatter(short_number)
    axes.set_xlim(left=0)
    axes.margins(x=0.01)
    axes.grid(axis="y")
    if not _are_long(results):  # else they stand at the bars alone, which have the same colours
        axes.legend(loc="best", handlelength=1.4)


def _draw_finals(axes: "Axes", results: Sequence[Result], colours: dict) -> None:
    """Draw a bar an agent, with its interval and a dot for every run."""
    for position, result in enumerate(results):
        value, low, high = result.final
        axes.barh(position, value, height=0.5, color=colours[result.name])
        if low is not None and high is not None:
            axes.plot([low, high], [position] * 2, color=INK, linewidth=1.6)
            spread = position + np.linspace(-0.16, 0.16, result.n_runs)
            axes.scatter(result.finals, spread, s=9, color="white", edgecolor=INK, linewidth=0.7)
        text = f"{value:.3g}"
        end = max(result.finals.max(), high if high is not None else value, 0)
        write_beside(axes, text, (end, position), 3)
    names = [result.name for result in results]
    if _are_long(results):
        names = [f"{_wrapped(result.name)} ({counted_runs(result.n_runs)})" for result in results]
    axes.set_yticks(range(len(results)), names)
    axes.set_ylim(max(len(results) - 0.4, 2.6), -0.6)
    axes.margins(x=0.16)
    axes.set_title("at the end")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)


def _draw_comparisons(axes: "Axes", comparisons: Sequence[Comparison], colours: dict) -> None:
    for position, (better, _, (value, low, high)) in enumerate(comparisons):
        colour = colours[better]
        if low is not None and high is not None:
            axes.plot([low, high], [position] * 2, color=colour, alpha=0.3, linewidth=9)
        axes.plot(value, position, "o", color=colour, markersize=7)
        write_beside(axes, f"{value:.2f}", (1, position), 8)
    axes.set_yticks(range(len(comparisons)), map(_compared, comparisons))
    axes.set_ylim(len(comparisons) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.axvline(0.5, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.set_title("probability of improvement")


def _compared(comparison: Comparison) -> str:
    better, other, _ = comparison
    between = "\nbeats  " if len(better) + len(other) > 2 * LONGEST else "  beats  "
    return f"{better}{between}{other}"


def _are_long(results: Sequence[Result]) -> bool:
    return any(len(result.name) > LONGEST for result in results)


def _wrapped(name: str) -> str:
    """Return a name with a line for each setting, if it is long."""
    return name.replace(", ", ",\n") if len(name) > LONGEST else name


def _footnote(results: Sequence[Result], labels: Labels) -> str:
    if all(result.n_runs == 1 for result in results):
        return "one run each: no interval"
    return f"{NAMES[labels.statistic]} over runs, 95 % bootstrap intervals"
