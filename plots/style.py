"""The look of every picture: light, quiet, and safe for readers who confuse colours."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.files import written_whole

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

    from plots.statistics import Estimate

INK, QUIET, RULE = "#24292f", "#57606a", "#e3e6ea"
# Okabe and Ito's palette, ordered so that neighbours differ in lightness too; without its yellow,
# which is hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
MAP = "viridis"
SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "font.family": "sans-serif",
    "text.color": INK,
    "text.parse_math": False,  # names are shown as they are
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.labelsize": 9.5,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "savefig.dpi": 160,
    "svg.hashsalt": "helm",  # the same numbers give the same file
}


@contextmanager
def style() -> Iterator[None]:
    """Draw everything inside in this style."""
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, in inches, that no window or backend knows of."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    return Figure(figsize=(width, height), layout=layout, facecolor="white")


def image_panels(figure: "FigureBase", n_panels: int) -> list["Axes"]:
    """Return panels in rows for images of one size, which share their axes."""
    from matplotlib.ticker import MaxNLocator

    n_rows, n_columns = panel_shape(n_panels)
    panels = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).flat
    for axes in panels[n_panels:]:
        axes.set_visible(False)
    panels[0].xaxis.set_major_locator(MaxNLocator(4, integer=True))
    panels[0].yaxis.set_major_locator(MaxNLocator(4, integer=True))
    return list(panels[:n_panels])


def panel_shape(n_panels: int) -> tuple[int, int]:
    """Return the rows and columns in which panels fill a page held sideways."""
    n_columns = min(math.ceil(math.sqrt(1.5 * n_panels)), n_panels)
    return math.ceil(n_panels / n_columns), n_columns


def save_figure(figure: "Figure", *paths: Path) -> None:
    """Write a picture to files, whole or not at all, each in the format its ending names."""
    with style():
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else None
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(path) as file:
                figure.savefig(file, format=path.suffix[1:], metadata=metadata)


def draw_curve(axes: "Axes", x: "np.ndarray", mean: "Estimate", colour: str, label: str) -> None:
    """Draw a curve [P], and its interval as a band where it has one."""
    value, low, high = mean
    axes.plot(x, value, color=colour, label=label, zorder=3)
    if low is not None and high is not None:
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def counted_runs(n_runs: int) -> str:
    """Return a number of runs in words."""
    return f"{n_runs} run" + "s" * (n_runs > 1)


def write_beside(axes: "Axes", text: str, place: tuple[float, float], points: float) -> None:
    """Write a text some points to the right of a place."""
    axes.annotate(
        *(text, place),
        xytext=(points, 0),
        textcoords="offset points",
        va="center",
        size=9,
        annotation_clip=False,
    )


def short_number(value: float, _position: object = None) -> str:
    """Return 250000 as 250k and 1500000 as 1.5M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
