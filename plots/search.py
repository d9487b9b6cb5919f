"""The picture of a search: scores as they came, what mattered, and each setting by itself."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plots.style import COLOURS, QUIET, new_figure, style, write_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DONE, PRUNED, BEST = COLOURS[0], QUIET, COLOURS[1]
MOST_COLUMNS = 4
ROW_HEIGHT, WIDTH = 2.7, 9.0  # inches
MOST_SHOWN = 16  # signs of a choice


class Point(NamedTuple):
    """A trial with a score.

    Attributes:
        number: Which, from 0.
        score: Its own, or where it was pruned the last before that.
        is_pruned: Whether it was ended early.
        values: Of the searched settings.
    """

    number: int
    score: float
    is_pruned: bool
    values: Mapping[str, Any]


def draw(
    points: Sequence[Point],
    importances: Mapping[str, float],
    is_log: Mapping[str, bool],
    metric: str,
) -> "Figure":
    """Return the picture of a search.

    Args:
        points: Its trials; one finished at least.
        importances: The share of each setting in how scores differ; may be empty.
        is_log: Each searched setting, and whether its axis is logarithmic.
        metric: What a score is of, in words.
    """
    names = list(is_log)
    n_columns = min(MOST_COLUMNS, len(names))
    n_rows = math.ceil(len(names) / n_columns)
    with style():
        figure = new_figure(WIDTH, ROW_HEIGHT * (n_rows + 1))
        parts = figure.subfigures(2, 1, squeeze=False, height_ratios=(1, n_rows))
        above, below = parts[:, 0]
        left, right = above.subplots(1, 2, width_ratios=(1.6, 1))
        _draw_history(left, points, metric)
        _draw_importances(right, importances, names)
        panels = list(below.subplots(n_rows, n_columns, sharey=True, squeeze=False).flat)
        for axes, name in zip(panels, names, strict=False):
            _draw_setting(axes, points, name, is_log[name])
        for axes in panels[len(names) :]:
            axes.set_visible(False)
        for axes in panels[::n_columns]:
            axes.set_ylabel("score")
    return figure


def _draw_history(axes: "Axes", points: Sequence[Point], metric: str) -> None:
    """Draw scores by trial, and the best of finished trials until then."""
    from matplotlib.ticker import MaxNLocator

    _scatter(axes, points, [point.number for point in points])
    done = [point for point in points if not point.is_pruned]
    best = np.maximum.accumulate([point.score for point in done])
    numbers = [point.number for point in done]
    steps = [*numbers, points[-1].number], [*best, best[-1]]
    axes.step(*steps, where="post", color=BEST, linewidth=1.6, label="best so far")
    axes.set_title("trials")
    axes.set_xlabel("trial")
    axes.set_ylabel(metric)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.grid(axis="y")
    axes.legend(loc="best", handlelength=1.4)


def _draw_importances(axes: "Axes", importances: Mapping[str, float], names: Sequence[str]) -> None:
    axes.set_title("importance of settings")
    shown = sorted(names, key=lambda name: -importances.get(name, 0.0))
    shares = [importances.get(name, 0.0) for name in shown]
    axes.barh(range(len(shown)), shares, height=0.5, color=DONE)
    for position, share in enumerate(shares):
        text = f"{share:.2f}" if importances else "not known yet"
        write_beside(axes, text, (share, position), 4)
    axes.set_yticks(range(len(shown)), shown)
    axes.set_ylim(max(len(shown) - 0.4, 2.6), -0.6)
    axes.set_xlim(0, 1.15)
    axes.set_xticks([0, 0.5, 1])
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)


def _draw_setting(axes: "Axes", points: Sequence[Point], name: str, is_log: bool) -> None:
    """Draw scores by the value of one setting."""
    from matplotlib.ticker import MaxNLocator

    values = [point.values[name] for point in points]
    axes.set_title(name)
    axes.grid(axis="y")
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        if is_log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
        elif all(isinstance(value, int) for value in values):
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        _scatter(axes, points, values)
        return
    choices = list(dict.fromkeys(sorted(map(str, values))))
    _scatter(axes, points, [choices.index(str(value)) for value in values])
    labels = [choice[:MOST_SHOWN] for choice in choices]
    axes.set_xticks(range(len(choices)), labels)
    axes.set_xlim(-0.6, len(choices) - 0.4)


def _scatter(axes: "Axes", points: Sequence[Point], x: Sequence[float]) -> None:
    """Draw a dot for each trial, hollow where it was pruned."""
    for is_pruned, label in ((False, "finished"), (True, "pruned")):
        places = [
            (place, point.score)
            for place, point in zip(x, points, strict=True)
            if point.is_pruned == is_pruned
        ]
        if places:
            face, edge = ("white", PRUNED) if is_pruned else (DONE, "white")
            dots = axes.scatter([x for x, _ in places], [y for _, y in places], s=34, label=label)
            dots.set(facecolor=face, edgecolor=edge, linewidth=0.9, zorder=3)
