"""Agents with language goals: their achievements, the quality of the suggestions, and the costs.

From the metrics of runs in Crafter, and of runs with goals anywhere
(docs/reference/metrics.md). Runs that differ in their seed alone are averaged, as plot.py does.
"""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analysis import figures, run_data
from analysis.statistics import CurveSummary, summarize
from utils.errors import UserError, escape
from utils.loggers import FILE, STEPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

RATE = "achievements/"
GRADES = {  # their colours
    "good": "#009E73",
    "context_insensitive": "#E69F00",
    "common_sense_insensitive": "#D55E00",
    "impossible": figures.QUIET,
}
EVENTS = {"suggested": "suggestions", "rewarded": "rewarded goals"}
COST = "suggester/"
COUNTED = [COST + name for name in ("asked", "from_cache", "rejected", "unanswered")]
SPENT = [COST + name for name in ("requests", "tokens", "seconds")]
CURVES = {  # their titles
    "rollout/achievements_mean": "different achievements an episode",
    "rollout/achievements_total": "different achievements over the run",
    "goals/return_mean": "paid for goals an episode",
}
FAMILIES = (*CURVES, RATE, "goals/", COST)  # beginnings of the metrics that are shown
N_WINDOWS = 40  # of a run, in each of which suggestions are counted by how good they are
WIDTH, ROW_HEIGHT, RATE_HEIGHT, LINE_HEIGHT = 11.5, 2.9, 0.27, 0.2  # inches
LEGEND_COLUMNS = 3
LINE_SIGNS = 170  # of small print, across the picture
MOST_SIGNS = 40  # of an agent's name beside a row
PERCENT = "{x:.0%}"


class Shares(NamedTuple):
    """How goals are divided among grades, window by window of the steps of a group's runs.

    Attributes:
        x: Ends of the windows, in environment steps.  [W]
        shares: NaN where there were no goals; the runs' goals are counted together.  [grades, W]
        whole: The same of all goals together.  [grades]
    """

    x: np.ndarray
    shares: np.ndarray
    whole: np.ndarray


class GoalRow(NamedTuple):
    """The results of one agent's runs in one environment.

    Attributes:
        curves: Means over runs by metric: achievements, payments for goals, costs.
        rates: At the end, by achievement: share of the last 100 episodes that unlocked it.
        quality: By occasion ("suggested", "rewarded"), where goals were judged.
    """

    environment: str
    name: str
    n_runs: int
    colour: str
    curves: Mapping[str, CurveSummary]
    rates: Mapping[str, CurveSummary]
    quality: Mapping[str, Shares]

    @property
    def has_costs(self) -> bool:
        return any(name.startswith(COST) for name in self.curves)


def analyse(paths: Iterable[Path], keys: Sequence[str]) -> figures.AnalysisResult:
    """Print which runs are left out, and compare the others, told apart by the settings `keys`."""
    left_out: list[str] = []
    folders = run_data.run_folders(*paths)
    for folder in folders:
        if not any(name.startswith(FAMILIES) for name in run_data.read_rows(folder / FILE)[0]):
            place = escape(str(folder))
            raise UserError(f"{place}: no achievements and no goals. Name runs that have some")
    groups = run_data.group_runs(
        [run_data.read_run(each, STEPS, "steps") for each in folders], keys, left_out
    )
    told = [
        _told(group, keys, figures.COLOURS[number % len(figures.COLOURS)])
        for number, group in enumerate(groups)
    ]
    if left_out:
        print("\n".join([*left_out, ""]))
    has_rates = any(one.rates for one in told)
    tables = {"success by achievement, at the end": rates_table(told)} if has_rates else {}
    return figures.AnalysisResult(_draw(told), summary(told), _numbers(told), tables)


def shares_of(runs: Sequence[Mapping[str, np.ndarray]], occasion: str) -> Shares | None:
    """Return how goals were divided among grades; None without goals or without a judge.

    Args:
        runs: The columns of each.
        occasion: "suggested" or "rewarded".
    """
    names = [f"goals/{occasion}_{grade}" for grade in GRADES]
    if any(name not in columns for columns in runs for name in names):
        return None
    last = min(columns[STEPS][-1] for columns in runs)
    n_windows = min(N_WINDOWS, *(len(columns[STEPS]) for columns in runs))
    edges = np.linspace(0, last, n_windows + 1)
    counts = np.zeros((len(names), n_windows + 1))
    for columns in runs:  # counted since a run began, and known between its rows, too
        steps = np.concatenate(([0.0], columns[STEPS]))
        for own, name in zip(counts, names, strict=True):
            own += np.interp(edges, steps, np.nan_to_num([0.0, *columns[name]]))
    if not np.any(counts[:, -1]):
        return None
    return Shares(edges[1:], _divided(np.diff(counts)), _divided(counts[:, -1]))


def summary(told: Iterable[GoalRow]) -> run_data.Table:
    costs = [*COUNTED, *SPENT]
    heading = ("agent", "environment", "runs", "steps", "an episode", "over the run", "paid")
    titles = map(_plain_name, costs)
    rows: list[Sequence[object]] = [(*heading, "good suggestions", "good of paid", *titles)]
    for one in told:
        ends = [result.curves.x[-1] for result in (*one.curves.values(), *one.rates.values())]
        last = float(max([*ends, *(shares.x[-1] for shares in one.quality.values())]))
        good = [
            f"{one.quality[name].whole[0]:.1%}" if name in one.quality else "" for name in EVENTS
        ]
        scores = [_final(one.curves, name, "{:.2f}") for name in CURVES]
        spent = [_final(one.curves, name, "{:,.0f}") for name in costs]
        place = one.name, one.environment, one.n_runs, f"{last:,.0f}"
        rows.append((*place, *scores, *good, *spent))
    columns = [column for column in zip(*rows, strict=True) if any(map(str, column[1:]))]
    return [list(row) for row in zip(*columns, strict=True)]


def rates_table(told: Sequence[GoalRow]) -> run_data.Table:
    shown = [one for one in told if one.rates]
    rows: list[Sequence[object]] = [("achievement", *(one.name for one in shown))]
    for name in _achievements(told):
        rows.append((_plain_name(name), *(_final(one.rates, name, "{:.3f}") for one in shown)))
    return rows


def _told(group: run_data.Group, keys: Sequence[str], colour: str) -> GoalRow:
    runs = [run_data.read_columns(run.folder) for run in group.runs]
    results = {
        name: _result(group, runs, name)
        for name in runs[0]
        if all(name in columns for columns in runs)
        and (name in (*CURVES, *COUNTED, *SPENT) or name.startswith(RATE))
    }
    known = {name: result for name, result in results.items() if result}
    shares = {occasion: shares_of(runs, occasion) for occasion in EVENTS}
    told = GoalRow(
        group.environment,
        run_data.agent_name(group.runs[0], keys),
        len(runs),
        colour,
        {name: result for name, result in known.items() if not name.startswith(RATE)},
        {name: result for name, result in known.items() if name.startswith(RATE)},
        {occasion: each for occasion, each in shares.items() if each},
    )
    if not (told.curves or told.rates or told.quality):
        folders = ", ".join(str(run.folder) for run in group.runs)
        raise UserError(f"{escape(folders)}: no episode has ended yet. Wait, or name other runs")
    return told


def _result(
    group: run_data.Group, runs: Sequence[Mapping[str, np.ndarray]], name: str
) -> CurveSummary | None:
    known = [~np.isnan(columns[STEPS] + columns[name]) for columns in runs]
    if not all(map(np.any, known)):
        return None
    shown = [
        run_data.RunRecord(run.folder, run.settings, columns[STEPS][rows], columns[name][rows])
        for run, columns, rows in zip(group.runs, runs, known, strict=True)
    ]
    return summarize(group._replace(runs=shown), "mean", None)


def _divided(counts: np.ndarray) -> np.ndarray:
    whole = counts.sum(0)
    return np.divide(counts, whole, out=np.full(counts.shape, np.nan), where=whole > 0)


def _final(results: Mapping[str, CurveSummary], name: str, form: str) -> str:
    return form.format(float(results[name].final.value)) if name in results else ""


def _achievements(told: Iterable[GoalRow]) -> list[str]:
    return list(dict.fromkeys(name for one in told for name in one.rates))


def _plain_name(name: str) -> str:
    return name.split("/")[1].replace("_", " ")


def _numbers(told: Iterable[GoalRow]) -> run_data.Table:
    heading = ("environment", "agent", "runs", "env_steps", "name", "value", "low", "high")
    rows: list[Sequence[object]] = [heading]
    for one in told:
        place = one.environment, one.name, one.n_runs
        for name, result in one.curves.items():
            empty = [""] * len(result.curves.x)  # where there is no interval
            columns = [empty if values is None else values.tolist() for values in result.mean]
            for step, *each in zip(result.curves.x, *columns, strict=True):
                rows.append((*place, step, name, *each))
        for name, result in one.rates.items():
            rows.append((*place, result.curves.x[-1], name, *result.final.texts(repr)))
        for occasion, shares in one.quality.items():
            for grade, values in zip(GRADES, shares.shares, strict=True):
                name = f"goals/{occasion}_{grade} share"
                for step, value in zip(shares.x, values, strict=True):
                    rows.append((*place, step, name, "" if np.isnan(value) else value, "", ""))
    return rows


def _draw(told: Sequence[GoalRow]) -> "Figure":
    rows: list[tuple[float, Callable[[SubFigure], None]]] = []
    curves = [name for name in CURVES if any(name in one.curves for one in told)]
    if curves:
        height = ROW_HEIGHT + LINE_HEIGHT * math.ceil(len(told) / LEGEND_COLUMNS)
        rows.append((height, partial(_draw_curves, told=told, names=curves)))
    rates = _achievements(told)
    if rates:
        ends = {
            name: [one.rates[name].final for one in told if name in one.rates] for name in rates
        }
        names = [name for name in rates if any(float(end.value) > 0 for end in ends[name])]
        none = [name for name in rates if name not in names]  # that no agent unlocks
        height = 1.3 + RATE_HEIGHT * math.ceil(len(names) / 2) * max(1, 0.5 * len(told))
        rows.append((height, partial(_draw_rates, told=told, names=names, none=none)))
    for one in told:
        if one.quality or one.has_costs:
            rows.append((ROW_HEIGHT, partial(_draw_goals, one=one)))
    note = "means over runs, 95 % bootstrap intervals; goals of an agent's runs counted together"
    if all(one.n_runs == 1 for one in told):
        note = "one run each: no interval"
    heights = [height for height, _ in rows]
    with figures.style():
        figure = figures.new_figure(WIDTH, sum(heights) + 0.2)
        parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=heights)
        for part, (_, draw_row) in zip(parts[:, 0], rows, strict=True):
            draw_row(part)
        parts[-1, 0].supxlabel(note, x=0.01, ha="left", size=8, color=figures.QUIET)
    return figure


def _draw_curves(part: "SubFigure", told: Sequence[GoalRow], names: Sequence[str]) -> None:
    panels = part.subplots(1, len(names), squeeze=False)[0]
    lines: dict[str, Any] = {}
    for axes, name in zip(panels, names, strict=True):
        for one in told:
            if name in one.curves:
                label = f"{one.name}, {one.environment} ({figures.counted_runs(one.n_runs)})"
                curve = one.curves[name]
                figures.draw_curve(axes, curve.curves.x, curve.mean, one.colour, label)
        axes.set_title(CURVES[name])
        _dress(axes)
        handles, labels = axes.get_legend_handles_labels()
        lines |= zip(labels, handles, strict=True)
    part.legend(
        list(lines.values()),
        list(lines),
        loc="outside upper left",
        ncols=LEGEND_COLUMNS,
        handlelength=1.4,
        fontsize=9,
    )


def _draw_rates(
    part: "SubFigure", told: Sequence[GoalRow], names: Sequence[str], none: Sequence[str]
) -> None:
    shown = [one for one in told if one.rates]
    half = max(1, (len(names) + 1) // 2)
    height = 0.8 / len(shown)
    panels = part.subplots(1, 2)
    for axes, own in zip(panels, (names[:half], names[half:]), strict=True):
        for n, one in enumerate(shown):
            for place, name in enumerate(own, start=1):
                if name not in one.rates:
                    continue
                final, y = one.rates[name].final, place - 1 + (n + 0.5) * height - 0.4
                axes.barh(y, float(final.value), height=height * 0.9, color=one.colour)
                if final.low is not None:
                    axes.plot([final.low, final.high], [y, y], color=figures.QUIET, linewidth=1)
        axes.set_yticks(range(len(own)), map(_plain_name, own))
        axes.set_ylim(half - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PERCENT)
        axes.grid(axis="x")
    panels[0].set_title("share of the last 100 episodes that unlocked it")
    if none:
        text = textwrap.fill(f"by no agent: {', '.join(map(_plain_name, none))}", LINE_SIGNS)
        part.supxlabel(text, x=0.01, ha="left", size=9, color=figures.QUIET)


def _draw_goals(part: "SubFigure", one: GoalRow) -> None:
    panels = list(part.subplots(1, len(EVENTS) + 1))
    for axes, (occasion, words) in zip(panels, EVENTS.items(), strict=False):
        axes.set_title(f"how good {words} are" if occasion in one.quality else words)
        if occasion in one.quality:
            _draw_shares(axes, one.quality[occasion])
        else:
            _leave_empty(axes, "not judged, or there were none")
    panels[-1].set_title("asked of the model")
    if one.has_costs:
        _draw_costs(panels[-1], one)
    else:
        _leave_empty(panels[-1], "no model is asked")
    name = f"{one.name}, {one.environment}"
    short = name if len(name) <= MOST_SIGNS else f"{name[: MOST_SIGNS - 1]}…"
    panels[0].set_ylabel(short)


def _draw_shares(axes: "Axes", shares: Shares) -> None:
    names = [grade.replace("_", " ") for grade in GRADES]
    labels = [f"{name} {share:.0%}" for name, share in zip(names, shares.whole, strict=True)]
    known = ~np.isnan(shares.shares[0])
    x = np.concatenate(([0.0], shares.x[known]))
    stacked = shares.shares[:, known]
    stacked = np.concatenate((stacked[:, :1], stacked), axis=1)
    axes.stackplot(x, stacked, colors=list(GRADES.values()), labels=labels, linewidth=0)
    _dress(axes)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PERCENT)
    axes.legend(loc="lower left", fontsize=8, frameon=True, framealpha=0.85)


def _draw_costs(axes: "Axes", one: GoalRow) -> None:
    for colour, name in zip(figures.COLOURS, COUNTED, strict=False):
        if name in one.curves:
            result = one.curves[name]
            label = f"{_plain_name(name)} {_final(one.curves, name, '{:,.0f}')}"
            figures.draw_curve(axes, result.curves.x, result.mean, colour, label)
    spent = [name for name in SPENT if name in one.curves]
    told = [f"{_final(one.curves, name, '{:,.0f}')} {_plain_name(name)}" for name in spent]
    axes.set_ylabel(", ".join(told))
    _dress(axes)
    axes.yaxis.set_major_formatter(figures.short_number)
    axes.legend(loc="best", handlelength=1.4, fontsize=8)


def _leave_empty(axes: "Axes", why: str) -> None:
    axes.text(0.5, 0.5, why, ha="center", va="center", color=figures.QUIET, size=9, wrap=True)
    axes.set_axis_off()


def _dress(axes: "Axes") -> None:
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_formatter(figures.short_number)
    axes.set_xlim(left=0)
    axes.margins(x=0.01)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.grid(axis="y")
