"""The picture of the probe: accuracy and signal against the steps since something was shown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plots.style import COLOURS, QUIET, new_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, ROW_HEIGHT = 9.6, 3.1  # inches
UNTRAINED, DASHES = ", untrained", (0, (2, 1.5))
THIN, STEP = 1.2, 0.9  # points; lines below others are thicker at the left, so that all are seen
NOTE = "each line is a run, with its 95 % interval over episodes; at the right where it can be read"

Looks = Mapping[str, Mapping[str, Any]]


def draw(lines: Sequence[Any]) -> "Figure":
    """Return a row for each task of lines (`analysis/probe.py`): accuracy, and signal beside it."""
    tasks = list(dict.fromkeys(line.task for line in lines))
    families = list(dict.fromkeys(line.agent.removesuffix(UNTRAINED) for line in lines))
    looks: Looks = {
        name: {"color": COLOURS[n % len(COLOURS)], "zorder": 3 + n}
        for n, name in enumerate(families)
    }
    with style():
        figure = new_figure(WIDTH, ROW_HEIGHT * len(tasks) + 0.4)
        panels = figure.subplots(len(tasks), 2, squeeze=False)
        for (left, right), task in zip(panels, tasks, strict=True):
            own = [line for line in lines if line.task == task]
            _draw_accuracy(left, own, looks)
            _draw_signal(right, own, looks)
            left.set_title(task)
        handles, labels = _labels(panels[:, 0])
        figure.legend(handles, labels, loc="outside upper left", ncols=6, fontsize=9)
        figure.supxlabel(NOTE, x=0.01, ha="left", size=8, color=QUIET)
    return figure


def _draw_accuracy(axes: "Axes", lines: Sequence[Any], looks: Looks) -> None:
    for line in lines:
        k, accuracy, low, high = _columns(line, "k", "accuracy", "low", "high")
        look = _look(line, looks)
        width = THIN + STEP * (len(looks) + 2 - look["zorder"])
        axes.plot(k, accuracy, label=line.agent, linewidth=width, **look)
        axes.fill_between(k, low, high, color=look["color"], alpha=0.1, linewidth=0)
    k, chance = _columns(max(lines, key=lambda line: len(line.readings)), "k", "chance")
    axes.plot(k, chance, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), label="chance")
    axes.set_ylim(min(chance) - 0.08, 1.03)
    axes.set_xlabel("steps since it was shown")
    axes.set_ylabel("read rightly")
    axes.grid(axis="y")


def _draw_signal(axes: "Axes", lines: Sequence[Any], looks: Looks) -> None:
    for line in lines:
        k, signal, low, chance = _columns(line, "k", "signal", "low", "chance")
        is_read = (low > chance) & (signal > 0)
        axes.plot(k, np.where(is_read, signal, np.nan), linewidth=THIN, **_look(line, looks))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axes.set_xlabel("steps since it was shown")
    axes.set_ylabel("of the variance of all states")
    axes.set_title("how much of the state it is", weight="normal", size=9.5, color=QUIET)
    axes.minorticks_off()
    axes.grid(axis="y")


def _look(line: Any, looks: Looks) -> dict[str, Any]:
    """Return how a line is drawn: in the colour of its agent, dashed where untrained."""
    is_untrained = line.agent.endswith(UNTRAINED)
    look = looks[line.agent.removesuffix(UNTRAINED)]
    return {**look, "linestyle": DASHES if is_untrained else "-"}


def _columns(line: Any, *names: str) -> list[np.ndarray]:
    return [np.array([getattr(reading, name) for reading in line.readings]) for name in names]


def _labels(panels: Iterable["Axes"]) -> tuple[list[Any], list[str]]:
    """Return a handle for each agent of any panel, chance last."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    chance = found.pop("chance")
    return [*found.values(), chance], [*found, "chance"]
