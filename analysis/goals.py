"""What agents that are told goals come to: achievements, how good suggestions are, what they cost.

From the metrics of runs in Crafter, and of runs with goals anywhere (docs/metrics.md). Runs that
differ in their seed alone are averaged, as plot.py does.
"""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from analysis.figures import (
    COLOURS,
    QUIET,
    Findings,
    counted_runs,
    draw_curve,
    new_figure,
    short_number,
    style,
)
from analysis.run_data import (
    Group,
    RunRecord,
    Table,
    agent_name,
    group_runs,
    read_columns,
    read_rows,
    read_run,
    run_folders,
)
from analysis.statistics import Result, summarize
from runs.loggers import FILE, STEPS
from utils.errors import UserError, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

RATE = "achievements/"
GRADES = {  # their colours
    "good": "#009E73",
    "poorly_timed": "#E69F00",
    "bad": "#D55E00",
    "nonsense": QUIET,
}
OCCASIONS = {"suggested": "suggestions", "rewarded": "rewarded goals"}
COUNTED = ("asked", "from_cache", "rejected", "unanswered")
SPENT = ("requests", "tokens", "seconds")
COSTS = (*COUNTED, *SPENT)
CURVES = {  # their titles
    "rollout/achievements_mean": "different achievements an episode",
    "rollout/achievements_total": "different achievements over the run",
    "goals/return_mean": "paid for goals an episode",
}
COST = "suggester/"
FAMILIES = (*CURVES, RATE, "goals/", COST)  # beginnings of what counts here
N_WINDOWS = 40  # of a run, in each of which suggestions are counted by how good they are
WIDTH, ROW_HEIGHT, RATE_HEIGHT, LINE_HEIGHT = 11.5, 2.9, 0.27, 0.2  # inches
LEGEND_COLUMNS = 3
LINE_SIGNS = 170  # of small print, across the picture
MOST_SIGNS = 40  # of an agent's name beside a row


class Shares(NamedTuple):
    """How goals are divided among grades, window by window of the steps of a group's runs.

    Attributes:
        x: Where the windows end, in environment steps.  [W]
        shares: NaN where there were no goals; the runs' goals are counted together.  [grades, W]
        whole: The same of all goals together.  [grades]
    """

    x: np.ndarray
    shares: np.ndarray
    whole: np.ndarray


class Told(NamedTuple):
    """What the runs of one agent in one environment come to.

    Attributes:
        environment, name: Of the agent.
        folders: Of its runs.
        n_runs: How many there are.
        curves: Means over runs by metric: achievements, what goals paid, costs.
        rates: At the end, by achievement: share of the last 100 episodes that unlocked it.
        quality: By occasion ("suggested", "rewarded"), where somebody judged.
    """

    environment: str
    name: str
    folders: str
    n_runs: int
    curves: Mapping[str, Result]
    rates: Mapping[str, Result]
    quality: Mapping[str, Shares]


def analyse(paths: Iterable[Path], keys: Sequence[str]) -> Findings:
    """Print what does not count, and return what runs in folders tell of goals.

    Args:
        paths: Run folders, or folders of them.
        keys: Settings that tell agents apart.

    Raises:
        UserError: a folder is not a run's, or tells nothing of goals; runs that should be averaged
            differ in more than their seed.
    """
    left_out: list[str] = []
    folders = run_folders(*paths)
    for folder in folders:
        _check_tells_of_goals(folder)
    runs = [read_run(folder, STEPS, "steps") for folder in folders]
    told = [_told(group, keys) for group in group_runs(runs, keys, left_out)]
    _check_any_value(told)
    if left_out:
        print("\n".join([*left_out, ""]))
    tables = {"success by achievement, at the end": rates_table(told)} if _any_rates(told) else {}
    return Findings(_draw(told), summary(told), _numbers(told), tables)


def shares_of(runs: Sequence[Mapping[str, np.ndarray]], occasion: str) -> Shares | None:
    """Return how goals were divided among grades; None where nobody judged or there were none.

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
    counts = np.sum([_counts_at(edges, columns, names) for columns in runs], 0)  # [grades, W + 1]
    if not np.any(counts[:, -1]):
        return None
    return Shares(edges[1:], _divided(np.diff(counts)), _divided(counts[:, -1]))


def summary(told: Iterable[Told]) -> Table:
    """Return a line for each agent, with means over its runs at their end, a heading first."""
    heading = ("agent", "environment", "runs", "steps", "an episode", "over the run", "paid")
    rows: list[Sequence[object]] = [
        (*heading, "good suggestions", "good of paid", *(name.replace("_", " ") for name in COSTS))
    ]
    for one in told:
        curves = [_final(one.curves, name, "{:.2f}") for name in CURVES]
        good = [
            f"{one.quality[name].whole[0]:.1%}" if name in one.quality else "" for name in OCCASIONS
        ]
        costs = [_final(one.curves, COST + name, "{:,.0f}") for name in COSTS]
        place = (one.name, one.environment, one.n_runs, f"{_last_step(one):,.0f}")
        rows.append((*place, *curves, *good, *costs))
    return [list(row) for row in zip(*_columns_with_values(rows), strict=True)]


def _last_step(one: Told) -> float:
    ends = [result.curves.x[-1] for result in (*one.curves.values(), *one.rates.values())]
    return float(max([*ends, *(shares.x[-1] for shares in one.quality.values())]))


def _columns_with_values(rows: Table) -> list[tuple[object, ...]]:
    """Return the columns of a table that have a value below their heading."""
    return [column for column in zip(*rows, strict=True) if any(cell != "" for cell in column[1:])]


def rates_table(told: Sequence[Told]) -> Table:
    """Return the success rate of each achievement at the end, a column an agent."""
    shown = [one for one in told if one.rates]
    names = list(dict.fromkeys(name for one in shown for name in one.rates))
    rows: list[Sequence[object]] = [("achievement", *(one.name for one in shown))]
    for name in names:
        rows.append((_plain_name(name), *(_final(one.rates, name, "{:.3f}") for one in shown)))
    return rows


def _check_tells_of_goals(folder: Path) -> None:
    """Raise UserError unless a run has logged anything that is shown here."""
    if not any(name.startswith(FAMILIES) for name in read_rows(folder / FILE)[0]):
        raise UserError(
            f"{printable(str(folder))}: it has logged no achievements and no goals. Name runs in "
            "Crafter, or with suggester or single_task"
        )


def _check_any_value(told: Iterable[Told]) -> None:
    """Raise UserError where there is nothing to draw yet."""
    for one in told:
        if not (one.curves or one.rates or one.quality):
            raise UserError(
                f"{printable(one.folders)}: what it has logged of goals has no value yet (it has "
                "one when an episode has ended). Wait, or name other runs"
            )


def _told(group: Group, keys: Sequence[str]) -> Told:
    """Return what the runs of a group come to."""
    runs = [read_columns(run.folder) for run in group.runs]
    names = [name for name in runs[0] if all(name in columns for columns in runs)]
    curves = {name: _result(group, runs, name) for name in names if _is_curve(name)}
    rates = {name: _result(group, runs, name) for name in names if name.startswith(RATE)}
    quality = {occasion: shares_of(runs, occasion) for occasion in OCCASIONS}
    return Told(
        group.environment,
        agent_name(group.runs[0], keys),
        ", ".join(str(run.folder) for run in group.runs),
        len(runs),
        {name: result for name, result in curves.items() if result},
        {name: result for name, result in rates.items() if result},
        {occasion: shares for occasion, shares in quality.items() if shares},
    )


def _is_curve(name: str) -> bool:
    return name in CURVES or (name.startswith(COST) and name.removeprefix(COST) in COSTS)


def _result(group: Group, runs: Sequence[Mapping[str, np.ndarray]], name: str) -> Result | None:
    """Return the mean over runs of a metric; None where one of them has no value of it yet."""
    known = [~np.isnan(columns[STEPS] + columns[name]) for columns in runs]
    if not all(map(np.any, known)):
        return None
    shown = [
        RunRecord(run.folder, run.settings, columns[STEPS][rows], columns[name][rows])
        for run, columns, rows in zip(group.runs, runs, known, strict=True)
    ]
    return summarize(group._replace(runs=shown), "mean", None)


def _counts_at(
    edges: np.ndarray, columns: Mapping[str, np.ndarray], names: Sequence[str]
) -> np.ndarray:
    """Return counts since the run began, at steps between its rows, too.  [grades, W + 1]"""
    steps = np.concatenate(([0.0], columns[STEPS]))
    return np.stack(
        [np.interp(edges, steps, np.nan_to_num([0.0, *columns[name]])) for name in names]
    )


def _divided(counts: np.ndarray) -> np.ndarray:
    """Return what share each row has of the sum of its column; NaN where that is nothing."""
    whole = counts.sum(0)
    return np.divide(counts, whole, out=np.full(counts.shape, np.nan), where=whole > 0)


def _final(results: Mapping[str, Result], name: str, form: str) -> str:
    return form.format(float(results[name].final.value)) if name in results else ""


def _any_rates(told: Iterable[Told]) -> bool:
    return any(one.rates for one in told)


def _numbers(told: Iterable[Told]) -> Table:
    """Return every number of the picture in a line of its own, a heading first."""
    heading = ("environment", "agent", "runs", "env_steps", "name", "value", "low", "high")
    rows: list[Sequence[object]] = [heading]
    for one in told:
        place = one.environment, one.name, one.n_runs
        for name, result in one.curves.items():
            rows += [
                (*place, step, name, *each)
                for step, *each in zip(result.curves.x, *_filled(result), strict=True)
            ]
        for name, result in one.rates.items():
            final = ["" if value is None else float(value) for value in result.final]
            rows.append((*place, result.curves.x[-1], name, *final))
        for occasion, shares in one.quality.items():
            for grade, values in zip(GRADES, shares.shares, strict=True):
                name = f"goals/{occasion}_{grade} share"
                rows += [
                    (*place, step, name, "" if np.isnan(value) else value, "", "")
                    for step, value in zip(shares.x, values, strict=True)
                ]
    return rows


def _filled(result: Result) -> list[Sequence[object]]:
    """Return value, low and high of a curve, empty cells where there is no interval."""
    empty = [""] * len(result.curves.x)
    return [empty if values is None else values.tolist() for values in result.mean]


def _draw(told: Sequence[Told]) -> "Figure":
    """Return curves of all agents, their success rates, and a row for each whose goals count."""
    colours = {(one.environment, one.name): n for n, one in enumerate(told)}
    rows: list[tuple[float, Callable[[SubFigure], None]]] = []
    curves = [name for name in CURVES if any(name in one.curves for one in told)]
    if curves:
        height = ROW_HEIGHT + LINE_HEIGHT * math.ceil(len(told) / LEGEND_COLUMNS)
        rows.append((height, lambda part: _draw_curves(part, told, curves, colours)))
    rates = list(dict.fromkeys(name for one in told for name in one.rates))
    if rates:
        names = [name for name in rates if _is_unlocked(told, name)]
        none = [name for name in rates if name not in names]
        height = 1.3 + RATE_HEIGHT * math.ceil(len(names) / 2) * max(1, 0.5 * len(told))
        rows.append((height, lambda part: _draw_rates(part, told, names, none, colours)))
    for one in told:
        if one.quality or _has_costs(one):
            rows.append((ROW_HEIGHT, partial(_draw_goals, one=one)))
    with style():
        figure = new_figure(WIDTH, sum(height for height, _ in rows) + 0.2)
        parts = figure.subfigures(
            len(rows), 1, squeeze=False, height_ratios=[height for height, _ in rows]
        )
        for part, (_, draw_row) in zip(parts[:, 0], rows, strict=True):
            draw_row(part)
        parts[-1, 0].supxlabel(_footnote(told), x=0.01, ha="left", size=8, color=QUIET)
    return figure


def _draw_curves(
    part: "SubFigure",
    told: Sequence[Told],
    names: Sequence[str],
    colours: Mapping[tuple[str, str], int],
) -> None:
    panels = part.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        for one in told:
            if name in one.curves:
                label = f"{one.name}, {one.environment} ({counted_runs(one.n_runs)})"
                curve = one.curves[name]
                draw_curve(axes, curve.curves.x, curve.mean, _colour(one, colours), label)
        axes.set_title(CURVES[name])
        _dress(axes)
    drawn = [axes.get_legend_handles_labels() for axes in panels]
    lines = {label: line for own in drawn for line, label in zip(*own, strict=True)}
    part.legend(
        list(lines.values()),
        list(lines),
        loc="outside upper left",
        ncols=LEGEND_COLUMNS,
        handlelength=1.4,
        fontsize=9,
    )


def _draw_rates(
    part: "SubFigure",
    told: Sequence[Told],
    names: Sequence[str],
    none: Sequence[str],
    colours: Mapping[tuple[str, str], int],
) -> None:
    """Draw a bar for each agent and achievement, in two columns, with its interval.

    Achievements that nobody unlocks are listed below.
    """
    shown = [one for one in told if one.rates]
    half = max(1, (len(names) + 1) // 2)
    panels = part.subplots(1, 2)
    for axes, own in zip(panels, (names[:half], names[half:]), strict=True):
        for n, one in enumerate(shown):
            finals = [one.rates[name].final if name in one.rates else None for name in own]
            places = np.arange(len(own)) + (n + 0.5) / len(shown) * 0.8 - 0.4
            _draw_bars(axes, places, finals, 0.8 / len(shown), _colour(one, colours))
        axes.set_yticks(range(len(own)), map(_plain_name, own))
        axes.set_ylim(half - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(_percent)
        axes.grid(axis="x")
    panels[0].set_title("share of the last 100 episodes that unlocked it")
    if none:
        text = "\n".join(
            textwrap.wrap(f"by nobody: {', '.join(map(_plain_name, none))}", LINE_SIGNS)
        )
        part.supxlabel(text, x=0.01, ha="left", size=9, color=QUIET)


def _is_unlocked(told: Sequence[Told], name: str) -> bool:
    """Return whether anybody has an achievement at the end."""
    return any(name in one.rates and float(one.rates[name].final.value) > 0 for one in told)


def _plain_name(name: str) -> str:
    """Return what an achievement is called, given its metric."""
    return name.split("/")[1].replace("_", " ")


def _draw_bars(
    axes: "Axes", places: np.ndarray, finals: Sequence[Any], height: float, colour: str
) -> None:
    values = [0.0 if final is None else float(final.value) for final in finals]
    axes.barh(places, values, height=height * 0.9, color=colour)
    for place, final in zip(places, finals, strict=True):
        if final is not None and final.low is not None:
            axes.plot([final.low, final.high], [place] * 2, color=QUIET, linewidth=1)


def _draw_goals(part: "SubFigure", one: Told) -> None:
    """Draw how good one agent's goals were over time, and what they cost."""
    panels = list(part.subplots(1, len(OCCASIONS) + 1))
    for axes, (occasion, words) in zip(panels, OCCASIONS.items(), strict=False):
        if occasion in one.quality:
            _draw_shares(axes, one.quality[occasion], words)
        else:
            _leave_empty(axes, words, "nobody judged how good they are, or there were none")
    if _has_costs(one):
        _draw_costs(panels[-1], one)
    else:
        _leave_empty(panels[-1], "asked of the model", "no model is asked")
    name = f"{one.name}, {one.environment}"
    short = name if len(name) <= MOST_SIGNS else f"{name[: MOST_SIGNS - 1]}…"
    panels[0].set_ylabel(short)


def _draw_shares(axes: "Axes", shares: Shares, words: str) -> None:
    """Draw shares of grades over steps, one above the other, each with that of the whole run."""
    names = [grade.replace("_", " ") for grade in GRADES]
    labels = [f"{name} {share:.0%}" for name, share in zip(names, shares.whole, strict=True)]
    known = ~np.isnan(shares.shares[0])
    x = np.concatenate(([0.0], shares.x[known]))
    stacked = shares.shares[:, known]
    stacked = np.concatenate((stacked[:, :1], stacked), axis=1)
    axes.stackplot(x, stacked, colors=list(GRADES.values()), labels=labels, linewidth=0)
    axes.set_title(f"how good {words} are")
    _dress(axes)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(_percent)
    axes.legend(loc="lower left", fontsize=8, frameon=True, framealpha=0.85)


def _draw_costs(axes: "Axes", one: Told) -> None:
    """Draw how many questions were asked, and write what they took."""
    for n, name in enumerate(COUNTED):
        result = one.curves.get(COST + name)
        if result is not None:
            label = f"{name.replace('_', ' ')} {float(result.final.value):,.0f}"
            draw_curve(axes, result.curves.x, result.mean, COLOURS[n], label)
    spent = [
        f"{float(one.curves[COST + name].final.value):,.0f} {name}"
        for name in SPENT
        if COST + name in one.curves
    ]
    axes.set_title("asked of the model")
    axes.set_ylabel(", ".join(spent))
    _dress(axes)
    axes.yaxis.set_major_formatter(short_number)
    axes.legend(loc="best", handlelength=1.4, fontsize=8)


def _leave_empty(axes: "Axes", title: str, why: str) -> None:
    axes.set_title(title)
    axes.text(0.5, 0.5, why, ha="center", va="center", color=QUIET, size=9, wrap=True)
    axes.set_axis_off()


def _dress(axes: "Axes") -> None:
    """Give a panel over steps its axis."""
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_formatter(short_number)
    axes.set_xlim(left=0)
    axes.margins(x=0.01)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.grid(axis="y")


def _percent(value: float, _position: object = None) -> str:
    return f"{value:.0%}"


def _colour(one: Told, colours: Mapping[tuple[str, str], int]) -> str:
    return COLOURS[colours[one.environment, one.name] % len(COLOURS)]


def _has_costs(one: Told) -> bool:
    return any(name.startswith(COST) for name in one.curves)


def _footnote(told: Sequence[Told]) -> str:
    if all(one.n_runs == 1 for one in told):
        return "one run each: no interval"
    return "means over runs, 95 % bootstrap intervals; goals of an agent's runs counted together"
