"""What agents that are told goals come to: achievements, how good suggestions are, what they cost.

From the metrics of runs in Crafter, and of runs with goals anywhere (docs/metrics.md). Runs that
differ in their seed alone are averaged, as plot.py does.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.findings import Findings
from analysis.goals_figure import draw, plain_name
from plots.results import Result, summarize
from plots.runs import Group, agent_name, group_runs
from plots.table import Table
from runs.metrics import STEPS
from runs.run_data import RunRecord, columns_of, read_columns, read_run, run_folders
from utils.errors import UserError, printable

PER_EPISODE, OVER_THE_RUN = "rollout/achievements_mean", "rollout/achievements_total"
PAID = "goals/return_mean"
RATE = "achievements/"
GRADES = ("good", "poorly_timed", "bad", "nonsense")
OCCASIONS = ("suggested", "rewarded")
COSTS = ("asked", "from_cache", "rejected", "unanswered", "requests", "tokens", "seconds")
CURVES = (PER_EPISODE, OVER_THE_RUN, PAID)
COST = "suggester/"
FAMILIES = (*CURVES, RATE, "goals/", COST)  # beginnings of what counts here
N_WINDOWS = 40  # of a run, in each of which suggestions are counted by how good they are


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
    return Findings(draw(told), summary(told), _numbers(told), tables)


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
        rows.append((plain_name(name), *(_final(one.rates, name, "{:.3f}") for one in shown)))
    return rows


def _check_tells_of_goals(folder: Path) -> None:
    """Raise UserError unless a run has logged anything that is shown here."""
    if not any(name.startswith(FAMILIES) for name in columns_of(folder)):
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
