"""Pictures: their style, the result of an analysis, plot.py's curves and a search."""

# The style is light, quiet, and safe for colour-blind readers.

import itertools
import math
import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analysis import statistics
from analysis.run_data import (
    Group,
    Table,
    aligned,
    check_panels,
    group_runs,
    literal,
    markdown,
    read_runs,
    write_csv,
)
from analysis.statistics import NAMES, TAUS, Aggregate, Comparison, CurveSummary, Estimate
from utils.errors import UserError, did_you_mean
from utils.files import atomic_write, check_writable, write_text
from utils.loggers import RETURN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

INK, QUIET = "#24292f", "#57606a"
# Okabe and Ito's palette, ordered so that neighbours differ in lightness too; without its yellow,
# which is hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
MAP = "viridis"
DASHED: dict[str, Any] = {"color": QUIET, "linewidth": 0.9, "linestyle": (0, (4, 3))}
POINTS = 10.0  # of letters in the style
STYLE = Path(__file__).with_suffix(".mplstyle")
PICTURES, TEX = (".png", ".svg", ".pdf"), ".tex"
AXIS_LABELS = {"steps": "environment steps", "seconds": "seconds of training"}
METRIC_LABELS = {
    RETURN: "mean return, last 100 episodes",
    "rollout/return_mean_padded": "mean return, last 100 episodes, zeros for the first N",
    "rollout/length_mean": "mean episode length, last 100 episodes",
    "rollout/success_mean": "share of successes, last 100 episodes",
    "eval/return_mean": "mean return, greedy evaluation",
    "eval/length_mean": "mean episode length, greedy evaluation",
    "eval/success_mean": "share of successes, greedy evaluation",
    "time/steps_per_second": "steps per second",
}
# Inches: at half a page's width, where README shows a picture, letters can still be read.
WIDTH, WIDE, ROW_HEIGHT, BAR_HEIGHT, LINE_HEIGHT = 6.6, 9.0, 2.9, 0.36, 0.17
LONGEST_CAPTION = 100  # letters of a line below the panels
LONGEST = 24  # letters of a name that fits on one line, and beside its curve
MOST_NAMED = 3  # curves; the names of more would hide them
MOST_IN_TEX = 200  # points of a curve; TeX has little memory
MOST_WRITTEN, DARK = 12, 0.6  # numbers in a row of a matrix; those below stand on dark ground


class AnalysisResult(NamedTuple):
    """The result of an analysis.

    Attributes:
        figure: The picture.
        summary: The few numbers to print, a heading first.
        numbers: All numbers of the picture, a heading first.
        tables: More to print, by title.
        page: Markdown to print in the place of the summary, and to write beside it.
    """

    figure: "Figure"
    summary: Table
    numbers: Table
    tables: Mapping[str, Table] = {}
    page: str = ""

    def save(self, folder: Path, name: str) -> list[Path]:
        print(self.page or aligned(self.summary))
        for title, table in self.tables.items():
            print(f"\n{title}\n{aligned(table)}")
        endings = [".png", ".csv", "_summary.csv", *([".md"] if self.page else [])]
        files = [folder / f"{name}{ending}" for ending in endings]
        save_figure(self.figure, files[0])
        write_csv(files[1], self.numbers)
        write_csv(files[2], self.summary)
        if self.page:
            write_text(files[3], self.page)
        return files


@contextmanager
def style(points: float = POINTS) -> Iterator[None]:
    """Draw in our style; other letters than the usual `points` make all of them so much larger."""
    import matplotlib as mpl

    settings = mpl.rc_params_from_file(STYLE, use_default_template=False)
    sizes = {
        key: each * points / POINTS
        for key, each in settings.items()
        if re.search(r"font\.size|(el|le)size", key)
    }
    with mpl.rc_context({**settings, **sizes}):
        yield


def new_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    return Figure(figsize=(width, height), layout=layout, facecolor="white")


def save_figure(figure: "Figure", *paths: Path) -> None:
    with style():
        for path in paths:
            dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                figure.savefig(file, format=path.suffix[1:], metadata=dates.get(path.suffix))


def image_panels(figure: "FigureBase", n_panels: int) -> list["Axes"]:
    from matplotlib.ticker import MaxNLocator

    n_rows, n_columns = panel_shape(n_panels)
    panels = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).flat
    for axes in panels[n_panels:]:
        axes.set_visible(False)
    panels[0].xaxis.set_major_locator(MaxNLocator(4, integer=True))
    panels[0].yaxis.set_major_locator(MaxNLocator(4, integer=True))
    return list(panels[:n_panels])


def panel_shape(n_panels: int) -> tuple[int, int]:
    n_columns = min(math.ceil(math.sqrt(1.5 * n_panels)), n_panels)
    return math.ceil(n_panels / n_columns), n_columns


def draw_curve(axes: "Axes", x: np.ndarray, mean: Estimate, colour: str, label: str) -> None:
    value, low, high = mean
    axes.plot(x, value, color=colour, label=label, zorder=3)
    if low is not None and high is not None:
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def dress_bars(axes: "Axes", names: Sequence[str], least: float = 0.0) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names) - 0.4, least), -0.6)
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)


def draw_matrix(
    axes: "Axes", values: np.ndarray, rows: Sequence[str], columns: Sequence[str]
) -> None:
    """Draw numbers from 0 to 1 as colours, and write them where there are not too many."""
    axes.imshow(values, cmap=MAP, vmin=0, vmax=1)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    for (row, column), value in np.ndenumerate(values):
        if max(values.shape) <= MOST_WRITTEN and not math.isnan(value):
            colour = "white" if value < DARK else "black"
            text = f"{value:.2f}".removeprefix("0")
            axes.text(column, row, text, ha="center", va="center", size=8, color=colour)


def counted_runs(n_runs: int) -> str:
    return f"{n_runs} run" + "s" * (n_runs > 1)


def write_beside(axes: "Axes", text: str, place: tuple[float, float], points: float) -> None:
    look: dict[str, Any] = {"va": "center", "size": _letters(0.9), "annotation_clip": False}
    axes.annotate(text, place, xytext=(points, 0), textcoords="offset points", **look)


def _letters(share: float) -> float:
    """Return the size of letters, a share of the usual ones'."""
    from matplotlib import rcParams

    return share * rcParams["font.size"]


def short_number(value: float, _position: object = None) -> str:
    """Return 250000 as 250k and 1500000 as 1.5M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


class FigureSize(NamedTuple):
    """Of a picture: inches, and the points of its letters."""

    width: float
    height: float
    points: float = POINTS


class Labels(NamedTuple):
    metric: str
    axis: str
    statistic: str
    threshold: float | None = None
    size: FigureSize | None = None


USUAL = Labels(RETURN, "steps", "iqm")


def check_picture(path: Path) -> None:
    if path.suffix not in (*PICTURES, TEX) or os.path.isdir(path):
        raise UserError(f"--output {path}: name a file ending in {', '.join(PICTURES)} or {TEX}")
    if not os.path.isdir(path.parent):
        raise UserError(f"--output {path}: there is no folder {path.parent}")
    check_writable(path.parent, "--output")


def draw_runs(
    folders: Sequence[Path],
    picture: Path,
    by: Sequence[str] = ("model",),
    panels: Sequence[str] = ("env",),
    labels: Labels = USUAL,
    endings: Sequence[str] = PICTURES[:2],
    ignore: Sequence[str] = (),
    renaming: Mapping[str, str] = {},
) -> None:
    """Group and compare runs, print the tables and write picture and numbers.

    Args:
        folders: Run folders, or folders of them.
        picture: The files' common name.
        by: Settings that tell agents apart.
        panels: Settings with one panel per value.
        endings: Of the files beside the numbers.
        ignore: Settings and facts that runs may differ in.
        renaming: Other names of agents and environments.
    """
    axis, threshold, output = labels.axis, labels.threshold, picture.with_suffix("")
    notes: list[str] = []
    runs = read_runs(folders, labels.metric, axis, notes)
    groups = renamed(group_runs(runs, by, notes, panels, ignore), renaming)
    apart = check_panels(groups, [*by, *panels], ignore, notes)
    caption = f"the agents also differ in {', '.join(apart)}" if apart else ""
    for environment, name, own in groups:
        first, last = min(run.x[-1] for run in own), max(run.x[-1] for run in own)
        if first < last:
            notes.append(
                f"{name} on {environment}: the runs end between {short_number(first)} and "
                f"{short_number(last)} {axis}; interpolated, and averaged up to the first end"
            )
    results = [statistics.summarize(group, labels.statistic, threshold) for group in groups]
    comparisons, aggregates = statistics.compare(results), statistics.aggregate(results)

    def tables(precise: bool) -> Iterator[tuple[str, Table]]:
        """Yield the addition to a file's name, and the table in it."""
        yield "", statistics.results_table(results, axis, threshold, precise)
        if comparisons:
            yield "_improvement", statistics.comparisons_table(comparisons, precise)
        if aggregates:
            yield "_aggregate", statistics.aggregates_table(aggregates, precise)

    def beside(addition: str, ending: str) -> Path:
        return output.with_name(f"{output.name}{addition}{ending}")

    shown = [table for _, table in tables(precise=False)]
    print("\n\n".join([*notes, *map(aligned, shown)]))
    endings = list(dict.fromkeys([*endings, picture.suffix]))
    pictures = [ending for ending in endings if ending in PICTURES]
    figure = draw(results, comparisons, labels, caption)
    save_figure(figure, *(beside("", each) for each in pictures))
    if TEX in endings:
        comment = "".join(f"% {note}\n" for note in notes)
        write_text(beside("_table", TEX), comment + tabular(shown[0]))
        write_text(beside("", TEX), comment + pgfplots(results, labels))
    if aggregates:
        every = draw_aggregates(aggregates)
        save_figure(every, *(beside("_aggregate", each) for each in pictures))
        write_csv(beside("_profile", ".csv"), statistics.profiles_table(aggregates))
    for addition, table in tables(precise=True):  # all digits, for other programs
        write_csv(beside(addition, ".csv"), table)
    write_csv(beside(f"_{axis}", ".csv"), statistics.curves_table(results, axis))
    told = "".join(f"- {literal(note)}\n" for note in notes)
    write_text(beside("", ".md"), "\n".join([*map(markdown, shown), *filter(None, [told])]))
    print(f"\nwritten to {output}{', '.join([*endings, '.csv', '.md'])}")


def renamed(groups: Sequence[Group], renaming: Mapping[str, str]) -> list[Group]:
    before = {group[:2]: group for group in groups}
    known = dict.fromkeys(itertools.chain.from_iterable(before))
    for old in renaming:
        if old not in known:
            hint = did_you_mean(old, known) or f" There are {', '.join(known)}"
            raise UserError(f"--rename {old}: no agent and no environment of these runs.{hint}")
    place = lambda name: renaming.get(name, name)  # noqa: E731
    after = {(place(env), place(name)): group for (env, name), group in before.items()}
    if len(after) < len(before):
        raise UserError("--rename: two agents of an environment would have one name")
    return [group._replace(environment=key[0], name=key[1]) for key, group in after.items()]


def draw(
    results: Sequence[CurveSummary],
    comparisons: Sequence[Comparison],
    labels: Labels,
    caption: str = "",
) -> "Figure":
    environments = list(dict.fromkeys(result.environment for result in results))
    names = dict.fromkeys(result.name for result in results)
    colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(names)}
    n_lines = max((name.count("\n") for name in map(_compared, comparisons)), default=0)
    row = BAR_HEIGHT + LINE_HEIGHT * n_lines
    most_lines = max(_wrapped(name).count("\n") + 1 for name in names)  # beside a final score
    most_bars = max(Counter(result.environment for result in results).values())
    height = max(ROW_HEIGHT, 1.1 + LINE_HEIGHT * most_lines * most_bars)
    above, below = height * len(environments), 0.9 + row * len(comparisons)
    # A single comparison of short names is told below the curves and needs no picture.
    in_words = len(comparisons) == 1 and not n_lines
    heights = (above, below) if comparisons and not in_words else (above,)
    size = labels.size or FigureSize(WIDTH, sum(heights))
    with style(size.points):
        if labels.size is None and any("\n" in _wrapped(name) for name in names):
            size = size._replace(width=WIDE)
        figure = new_figure(size.width, size.height)
        parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        grid = parts[0].subplots(len(environments), 2, squeeze=False, width_ratios=(2.1, 1))
        for (left, right), environment in zip(grid, environments, strict=True):
            shown = [result for result in results if result.environment == environment]
            is_named = len(shown) <= MOST_NAMED and all(len(one.name) <= LONGEST for one in shown)
            _draw_curves(left, shown, colours, labels)
            _draw_finals(right, shown, colours, is_named)
            if is_named:  # else names stand at the bars alone, which have the same colours
                left.legend(loc="best", handlelength=1.4)
        note = f"{NAMES[labels.statistic]} over runs, 95 % bootstrap intervals"
        if in_words:
            better, other, improvement = comparisons[0]
            note += f"; {better} beats {other} with probability {improvement.value:.2f}"
        elif comparisons:
            _draw_comparisons(parts[1].subplots(), comparisons, colours)
        if all(result.n_runs == 1 for result in results):
            note = "one run each: no interval"
        fit = int(LONGEST_CAPTION * size.width / WIDTH * POINTS / size.points)
        lines = [*textwrap.wrap(note, fit), *textwrap.wrap(caption, fit)]
        parts[-1].supxlabel("\n".join(lines), x=0.01, ha="left", size=_letters(0.8), color=QUIET)
    return figure


def _draw_curves(
    axes: "Axes", results: Sequence[CurveSummary], colours: dict, labels: Labels
) -> None:
    for result in results:
        label = f"{result.name} ({counted_runs(result.n_runs)})"
        draw_curve(axes, result.curves.x, result.mean, colours[result.name], label)
    if labels.threshold is not None:
        axes.axhline(labels.threshold, **DASHED)
    axes.set_title(results[0].environment)
    axes.set_xlabel(AXIS_LABELS[labels.axis])
    axes.set_ylabel(METRIC_LABELS.get(labels.metric, labels.metric))
    axes.xaxis.set_major_formatter(short_number)
    axes.set_xlim(left=0)
    axes.margins(x=0.01)
    axes.grid(axis="y")


def _draw_finals(
    axes: "Axes", results: Sequence[CurveSummary], colours: dict, is_named: bool
) -> None:
    names = []
    for position, result in enumerate(results):
        value, _, high = result.final
        _draw_estimate(axes, position, result.final, colours[result.name])
        end = max(result.finals.max(), value)
        if high is not None:
            end = max(end, high)
            spread = position + np.linspace(-0.16, 0.16, result.n_runs)
            axes.scatter(result.finals, spread, s=9, color="white", edgecolor=INK, linewidth=0.7)
        write_beside(axes, f"{value:.3g}", (end, position), 8)
        wrapped = _wrapped(result.name)
        names.append(wrapped if is_named else f"{wrapped} ({counted_runs(result.n_runs)})")
    dress_bars(axes, names, least=2.6)
    axes.margins(x=0.16)
    axes.set_title("at the end")


def _wrapped(name: str) -> str:
    return name.replace(", ", ",\n") if len(name) > LONGEST else name


def _draw_comparisons(axes: "Axes", comparisons: Sequence[Comparison], colours: dict) -> None:
    for position, (better, _, probability) in enumerate(comparisons):
        _draw_estimate(axes, position, probability, colours[better])
        write_beside(axes, f"{probability.value:.2f}", (1, position), 8)
    dress_bars(axes, [_compared(comparison) for comparison in comparisons])
    axes.set_xlim(0, 1)
    axes.axvline(0.5, **DASHED)
    axes.set_title("probability of improvement")


def _draw_estimate(axes: "Axes", position: int, estimate: Estimate, colour: str) -> None:
    value, low, high = estimate
    if low is not None and high is not None:
        axes.plot([low, high], [position] * 2, color=colour, alpha=0.3, linewidth=9)
    axes.plot(value, position, "o", color=colour, markersize=7)


def draw_aggregates(aggregates: Sequence[Aggregate]) -> "Figure":
    with style():
        figure = new_figure(9, max(ROW_HEIGHT, 1.2 + BAR_HEIGHT * len(aggregates)))
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.4))
        for position, each in enumerate(aggregates):
            colour = COLOURS[position % len(COLOURS)]
            _draw_estimate(left, position, each.iqm, colour)
            write_beside(left, f"{each.iqm.value:.2f}", (1, position), 8)
            draw_curve(right, TAUS, each.profile, colour, each.name)
        dress_bars(left, [each.name for each in aggregates], least=2.6)
        left.set_xlim(0, 1)
        left.set_title("interquartile mean")
        right.set_title("performance profile")
        right.set_ylabel("share of runs above the score")
        right.grid(axis="y")
        right.legend(loc="best", handlelength=1.4)
        for axes in (left, right):
            axes.set_xlabel("normalised score")
        note = (
            f"final scores in {len(aggregates[0].environments)} environments, 0 and 1 the lowest "
            "and the highest run in each; 95 % stratified bootstrap intervals"
        )
        figure.supxlabel(note, x=0.01, ha="left", size=8, color=QUIET)
    return figure


def pgfplots(results: Sequence[CurveSummary], labels: Labels) -> str:
    environments = dict.fromkeys(result.environment for result in results)
    names = list(dict.fromkeys(result.name for result in results))
    lines = ["% needs \\usepackage{pgfplots}"]
    for n in range(len(names)):
        lines.append(f"\\definecolor{{agent{n}}}{{HTML}}{{{COLOURS[n % len(COLOURS)][1:]}}}")
    for environment in environments:
        x, y = AXIS_LABELS[labels.axis], METRIC_LABELS.get(labels.metric, labels.metric)
        told = f"title={{{_tex(environment)}}}, xlabel={{{_tex(x)}}}, ylabel={{{_tex(y)}}}"
        lines += ["\\begin{tikzpicture}", f"\\begin{{axis}}[{told}, legend pos=outer north east]"]
        for result in (each for each in results if each.environment == environment):
            look = f"agent{names.index(result.name)}"
            n_points = len(result.curves.x)
            at = np.unique(np.linspace(0, n_points - 1, min(n_points, MOST_IN_TEX)).astype(int))
            mean, lower, upper = result.mean
            if lower is not None and upper is not None:
                low, high = lower[at], upper[at]
                x_both = result.curves.x[[*at, *at[::-1]]]
                band = _coordinates(x_both, np.concatenate([low, high[::-1]]))
                lines.append(
                    f"\\addplot[fill={look}, draw=none, opacity=0.18, forget plot] {band};"
                )
            lines.append(f"\\addplot[{look}, thick] {_coordinates(result.curves.x[at], mean[at])};")
            lines.append(f"\\addlegendentry{{{_tex(result.name)} ({counted_runs(result.n_runs)})}}")
        lines += ["\\end{axis}", "\\end{tikzpicture}"]
    return "\n".join(lines) + "\n"


def tabular(table: Table) -> str:
    heading, *rows = [" & ".join(_tex(str(cell)) for cell in row) + r" \\" for row in table]
    n_texts = 2  # agent and environment
    columns = "l" * n_texts + "r" * (len(table[0]) - n_texts)
    lines = ["% needs \\usepackage{booktabs}", f"\\begin{{tabular}}{{{columns}}}", r"\toprule"]
    return "\n".join([*lines, heading, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""])


def _coordinates(x: np.ndarray, y: np.ndarray) -> str:
    return f"coordinates {{{' '.join(f'({a:.6g},{b:.6g})' for a, b in zip(x, y, strict=True))}}}"


def _tex(text: str) -> str:
    plain = re.sub(r"[#$%&_{}]", r"\\\g<0>", text.replace("\\", "/"))
    return re.sub(r"[~^]", r"\\\g<0>{}", plain)


def _compared(comparison: Comparison) -> str:
    better, other, _ = comparison
    between = "\nbeats  " if len(better) + len(other) > 2 * LONGEST else "  beats  "
    return f"{better}{between}{other}"
