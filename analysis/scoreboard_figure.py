"""The picture of the scoreboard: a panel for each task, a line in it for each agent."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plots.style import COLOURS, INK, QUIET, RULE, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

N_COLUMNS = 5
WIDTH, ROW_HEIGHT = 14.5, 3.3  # inches
LEFT, RIGHT = -0.3, 1.5  # of the axis; what is worse stands at its edge
LINE, PAD = 39, 36  # letters; points between a panel and its title
NOTE = (
    "normalised score: 0 (dashed) is chance, 1 the best there is; mean over seeds, 95 % bootstrap "
    "intervals, a small dot is a run, × how many there are; a triangle: below the axis"
)


def draw(cells: Sequence[Any]) -> "Figure":
    """Return a panel for each task of the cells (analysis/scoreboard.py), agents below another."""
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    n_rows = -(-len(tasks) // N_COLUMNS)
    with style():
        figure = new_figure(WIDTH, ROW_HEIGHT * n_rows + 0.3)
        panels = figure.subplots(n_rows, N_COLUMNS, squeeze=False, sharex=True, sharey=True)
        for axes in panels.flat[len(tasks) :]:
            axes.set_visible(False)
        for axes, task in zip(panels.flat, tasks, strict=False):
            _draw_task(axes, [cell for cell in cells if cell.task is task])
        figure.supxlabel(NOTE, x=0.01, ha="left", size=8, color=QUIET)
    return figure


def _draw_task(axes: "Axes", cells: Sequence[Any]) -> None:
    for position, cell in enumerate(cells):
        if cell.mean is None:
            axes.text(0.5, position, cell.empty, ha="center", va="center", size=8, color=QUIET)
        else:
            _draw_agent(axes, position, cell)
    task = cells[0].task
    axes.axvline(0, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    axes.axvline(1, color=QUIET, linewidth=0.9, zorder=1)
    axes.axvspan(0, 1, color=RULE, alpha=0.4, linewidth=0, zorder=0)
    axes.set_title(task.name, pad=PAD)
    told = textwrap.fill(task.memory.partition(";")[0], LINE)
    axes.annotate(
        *(told, (0, 1)),
        xycoords="axes fraction",
        xytext=(0, PAD - 5),
        textcoords="offset points",
        va="top",
        size=8,
        color=QUIET,
    )
    axes.set_yticks(range(len(cells)), [cell.agent.name for cell in cells], color=INK)
    axes.set_ylim(len(cells) - 0.5, -0.6)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_xlim(LEFT, RIGHT)
    axes.tick_params(labelbottom=True)
    axes.spines["left"].set_visible(False)


def _draw_agent(axes: "Axes", position: int, cell: Any) -> None:
    """Draw the mean of a cell, its interval, and every run."""
    colour = COLOURS[position % len(COLOURS)]
    value, low, high = cell.mean
    if low is not None:
        ends = np.clip([low, high], LEFT, RIGHT)
        axes.plot(ends, [position] * 2, color=colour, alpha=0.35, linewidth=6, zorder=2)
    scores = np.clip(cell.task.normalised(np.array(cell.scores)), LEFT, RIGHT)
    axes.scatter(scores, [position] * len(scores), s=9, color=colour, zorder=3)
    marker = "o" if value >= LEFT else "<"
    at = max(value, LEFT)
    (mean,) = axes.plot(at, position, marker, color=colour, markersize=7.5, zorder=4)
    mean.set(markeredgecolor="white", clip_on=False)
    axes.text(1.29, position, f"{value:.2f}", ha="right", va="center", size=8.5, color=INK)
    axes.text(RIGHT, position, f"×{len(cell.scores)}", ha="right", va="center", size=7, color=QUIET)
