"""The picture of the length study: score against length, and lengths trained at x played at."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plots.style import COLOURS, MAP, QUIET, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_HEIGHT, LINES_WIDTH, GRID_WIDTH = 3.2, 5.2, 3.1  # inches
DARK = 0.6  # scores below it stand on a dark ground
MARKERS = "osD^vP*"


def draw(lines: Sequence[Any], crossed: Sequence[Any], chances: Mapping[str, float]) -> "Figure":
    """Return a row for each environment: its lines, then a grid for each agent played elsewhere.

    Args:
        lines: Cells (analysis/lengths.py) of runs at the length they were trained at.
        crossed: Cells for the grids.
        chances: The score of chance by environment.
    """
    environments = list(dict.fromkeys(cell.environment for cell in lines))
    agents = {agent: n for n, agent in enumerate(dict.fromkeys(cell.agent for cell in lines))}
    grids = {name: _by_agent(crossed, name) for name in environments}
    n_grids = max(map(len, grids.values()))
    with style():
        figure = new_figure(
            LINES_WIDTH + GRID_WIDTH * n_grids, ROW_HEIGHT * len(environments) + 0.3
        )
        widths = [LINES_WIDTH, *[GRID_WIDTH] * n_grids]
        shape = len(environments), 1 + n_grids
        panels = figure.subplots(*shape, squeeze=False, width_ratios=widths)
        for (left, *others), name in zip(panels, environments, strict=True):
            _draw_lines(left, [c for c in lines if c.environment == name], agents, chances[name])
            for axes in others[len(grids[name]) :]:
                axes.set_visible(False)
            for axes, (agent, cells) in zip(others, grids[name].items(), strict=False):
                _draw_grid(axes, agent, cells)
        note = "mean over runs, 95 % bootstrap intervals; a dot is a run"
        figure.supxlabel(note, x=0.01, ha="left", size=8, color=QUIET)
    return figure


def _by_agent(cells: Sequence[Any], environment: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for cell in cells:
        if cell.environment == environment:
            found.setdefault(cell.agent, []).append(cell)
    return found


def _draw_lines(
    axes: "Axes", cells: Sequence[Any], agents: Mapping[str, int], chance: float
) -> None:
    for agent, cells_of_agent in _by_agent(cells, cells[0].environment).items():
        colour = COLOURS[agents[agent] % len(COLOURS)]
        x = np.array([cell.trained for cell in cells_of_agent])
        mean, low, high = np.array([_filled(cell.mean) for cell in cells_of_agent]).T
        marker = MARKERS[agents[agent] % len(MARKERS)]
        axes.plot(x, mean, color=colour, label=agent, zorder=3, marker=marker, markersize=5)
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.vlines(x, low, high, color=colour, linewidth=1.2)
        for cell in cells_of_agent:
            scores = [one.score for one in cell.played]
            axes.scatter([cell.trained] * len(scores), scores, s=8, color=colour, alpha=0.5)
    axes.axhline(chance, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), label="chance")
    lengths = sorted({cell.trained for cell in cells})
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.margins(x=0.06)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -0.03), max(high, 1.04))
    axes.set_title(cells[0].environment)
    axes.set_xlabel("length of the task, trained and played at")
    axes.set_ylabel("success" if "success" in cells[0].metric else "return")
    axes.grid(axis="y")
    axes.legend(loc="best", handlelength=1.6, fontsize=9)


def _filled(mean: Any) -> tuple[float, float, float]:
    """Return mean, low and high, all the same where there is no interval."""
    value, low, high = mean
    return (value, value, value) if low is None else (value, low, high)


def _draw_grid(axes: "Axes", agent: str, cells: Sequence[Any]) -> None:
    """Draw scores as colours and numbers, rows where trained, columns where played."""
    trained = sorted({cell.trained for cell in cells})
    tested = sorted({cell.tested for cell in cells})
    scores = np.full((len(trained), len(tested)), np.nan)
    for cell in cells:
        row, column = trained.index(cell.trained), tested.index(cell.tested)
        scores[row, column] = cell.mean.value
        colour = "white" if cell.mean.value < DARK else "black"
        text = f"{cell.mean.value:.2f}"
        axes.text(column, row, text, ha="center", va="center", size=9, color=colour)
    axes.imshow(scores, cmap=MAP, vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(tested)), map(str, tested))
    axes.set_yticks(range(len(trained)), map(str, trained))
    axes.set_title(agent)
    axes.set_xlabel("length played at")
    axes.set_ylabel("length trained at")
