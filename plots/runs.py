"""Run folders as learning curves, and which of them may be averaged."""

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runs.folder import begun_with
from runs.metrics import FILE
from settings import completed, read_json_object, settings_without_effect
from utils.errors import UserError, printable, suggestion

AXES = {"steps": "env_steps", "seconds": "time/seconds"}
PRETRAINED = "pretrained"
PLAIN = ("model", "algorithm", "suggester", "curiosity")  # settings whose values name themselves


class Run(NamedTuple):
    """One run folder.

    Attributes:
        folder: Where it lies.
        settings: Its config.json, with what is younger than the run as it was before, and under
            `pretrained` whether it began with another run's parameters (--init-from).
        x: Environment steps or seconds behind each row.  [rows]
        y: The metric.  [rows]
    """

    folder: Path
    settings: dict[str, Any]
    x: np.ndarray
    y: np.ndarray


class Group(NamedTuple):
    """Runs that differ in their seed alone, under the names of their panel and their curve."""

    environment: str
    name: str
    runs: list[Run]


def run_folders(path: Path) -> list[Path]:
    """Return the folder itself if it is a run's, else those of runs somewhere below it."""
    if os.path.isfile(path / "config.json"):
        return [path]
    found = sorted(file.parent for file in path.rglob(FILE)) if os.path.isdir(path) else []
    if not found:
        raise UserError(
            f"{path}: neither a run folder nor a folder of run folders (experiments/...)"
        )
    return found


def columns_of(folder: Path) -> list[str]:
    """Return what a run has logged."""
    return list(read_rows(folder / FILE)[0])


def read_run(folder: Path, metric: str, axis: str) -> Run:
    """Return a run; where the metric has no value yet, without rows."""
    settings = read_json_object(folder / "config.json")
    kinds = {"model": str, "env": str, "seed": int}
    if not all(isinstance(settings.get(name), kind) for name, kind in kinds.items()):
        raise UserError(f"{folder / 'config.json'}: not the settings of a run")
    rows = read_rows(folder / FILE)
    columns = [AXES[axis], metric]
    for column in columns:
        if column not in rows[0]:
            hint = suggestion(column, rows[0]) or f" It has {', '.join(rows[0])}"
            raise UserError(f"{folder / FILE}: no column '{column}'.{hint}")
    x, y = _numbers(folder, rows, columns)
    known = ~np.isnan(x + y)  # no mean return before the first episode's end
    told = {PRETRAINED: begun_with(folder) is not None, **completed(settings)}
    return Run(folder, told, x[known], y[known])


def read_columns(folder: Path) -> dict[str, np.ndarray]:
    """Return all that a run has logged, by name; NaN where there was nothing to say.  [rows]"""
    rows = read_rows(folder / FILE)
    names = list(rows[0])
    return dict(zip(names, _numbers(folder, rows, names), strict=True))


def read_rows(path: Path, writer: str = "main.py") -> list[dict[str, str]]:
    """Return the rows of a CSV file, without a last one that is still being written.

    Raises:
        UserError: it is missing, has no rows, or is not what `writer` writes.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path} is missing. Name folders that main.py wrote")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if None not in row.values()]
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path}: not a table of {writer} ({error})") from None
    if not rows:
        raise UserError(f"{path} has no rows yet")
    if any(None in row for row in rows):  # where DictReader puts what is beyond the last column
        raise UserError(f"{path}: not a table of {writer} (a row is too long)")
    return rows


def agent_name(run: Run, keys: Sequence[str]) -> str:
    """Return what an agent is called by some settings: GPT DQN, memory_layers=2.

    The value of a plain setting says enough, and nothing of it is said where it is null.
    """
    values = {key: run.settings.get(key) for key in keys}
    plain = [str(values.pop(key) or "") for key in PLAIN if key in values]
    others = [f"{key}={value}" for key, value in values.items()]
    return printable(", ".join(filter(None, [" ".join(filter(None, plain)), *others])))


def read_runs(
    paths: Iterable[Path], metric: str, axis: str, left_out: list[str] | None = None
) -> list[Run]:
    """Return the runs in folders: each is a run folder, or holds run folders somewhere below.

    Args:
        paths: The folders.
        metric: A column of metrics.csv.
        axis: A key of AXES.
        left_out: Gets a line that names the runs whose metric has no value yet.

    Raises:
        UserError: a folder or its files are not a run's, or no run has a value of the metric.
    """
    folders = {folder.resolve(): folder for path in paths for folder in run_folders(path)}
    runs = [read_run(folder, metric, axis) for folder in folders.values()]
    without = [run for run in runs if not len(run.x)]
    if without:
        reason = f"{metric} has no value yet (it has one when an episode has ended)"
        if len(without) == len(runs):
            raise UserError(f"{_folders(without)}: {reason}. Wait, or name other runs")
        if left_out is not None:
            left_out.append(f"left out, {reason}: {_folders(without)}")
    return [run for run in runs if len(run.x)]


def group_runs(
    runs: Iterable[Run],
    keys: Sequence[str],
    left_out: list[str] | None = None,
    panels: Sequence[str] = ("env",),
) -> list[Group]:
    """Return the runs grouped by environment and by the named settings, sorted.

    Of runs of several lengths the longest are compared, unless `keys` tell lengths apart; of runs
    that are the same, the one that got furthest.

    Args:
        runs: To be grouped.
        keys: Settings that tell agents apart.
        left_out: Gets a line for each group from which runs are left out.
        panels: Settings that stand for the environment: what is never averaged over.

    Raises:
        UserError: a setting no run has; runs of a group that differ in more than the seed.
    """
    runs, left_out = list(runs), [] if left_out is None else left_out
    known = {name for run in runs for name in run.settings}
    for option, names in (("--by", keys), ("--panels", panels)):
        for key in names:
            if key not in known:
                raise UserError(
                    f"{option} {key}: no setting of these runs.{suggestion(key, known)}"
                )
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        texts = {key: _text(run.settings.get(key)) for key in (*panels, *keys)}
        place = ", ".join(texts.pop(key) for key in dict.fromkeys(panels))
        name = ", ".join(_label(key, text) for key, text in texts.items())
        grouped.setdefault((place, name), []).append(run)
    short = _without_folders([name for _, name in grouped])
    groups = []
    for (environment, name), found in grouped.items():
        group = _of_longest_runs(Group(environment, short[name], found), keys, left_out)
        _check_only_the_seed_differs(group, keys)
        groups.append(_without_repeated_runs(group, left_out))
    return sorted(groups, key=lambda group: (group.environment, group.name))


def _numbers(folder: Path, rows: Sequence[dict[str, str]], columns: Sequence[str]) -> np.ndarray:
    """Return columns of a table; NaN where a cell is empty.  [columns, rows]"""
    try:
        return np.array([[float(row[column] or "nan") for column in columns] for row in rows]).T
    except ValueError:
        names = " and ".join(columns) if len(columns) == 2 else "its columns"
        raise UserError(f"{folder / FILE}: {names} are not numbers in every row") from None


def _label(key: str, text: str) -> str:
    return text if key == "model" else f"{key}={text}"


def _without_folders(names: Iterable[str]) -> dict[str, str]:
    """Return names with paths cut down to their last part; in full where that makes two alike."""
    short = {name: re.sub(r"(?<==)[^,]*/(?=[^,/])", "", name) for name in names}
    counts = Counter(short.values())
    return {name: text if counts[text] == 1 else name for name, text in short.items()}


def _text(value: object) -> str:
    return printable(value) if isinstance(value, str) else json.dumps(value)


def _title(group: Group) -> str:
    return f"{group.name} on {group.environment}" if group.name else group.environment


def _of_longest_runs(group: Group, keys: Sequence[str], left_out: list[str]) -> Group:
    """Return a group without the runs that were to be shorter than others of it."""
    lengths = [run.settings.get("n_steps") for run in group.runs]
    if "n_steps" in keys or not all(isinstance(length, int) for length in lengths):
        return group
    most = max(length for length in lengths if isinstance(length, int))
    shorter = [run for run in group.runs if run.settings["n_steps"] != most]
    if shorter:
        by = ",".join([*keys, "n_steps"])
        left_out.append(
            f"{_title(group)}: left out, shorter than {most:,} steps: {_folders(shorter)} "
            f"(--by {by} draws them apart)"
        )
    return group._replace(runs=[run for run in group.runs if run.settings["n_steps"] == most])


def _without_repeated_runs(group: Group, left_out: list[str]) -> Group:
    """Return a group with one run of each seed: the first of those that got furthest."""
    furthest = sorted(group.runs, key=lambda run: -len(run.x))
    by_seed: dict[object, Run] = {}
    for run in furthest:
        by_seed.setdefault(run.settings["seed"], run)
    repeated = [run for run in group.runs if by_seed[run.settings["seed"]] is not run]
    if repeated:
        seeds = ", ".join(sorted({str(run.settings["seed"]) for run in repeated}))
        left_out.append(
            f"{_title(group)}: left out, since others have the same settings and seed ({seeds}): "
            f"{_folders(repeated)}"
        )
    return group._replace(runs=[run for run in group.runs if by_seed[run.settings["seed"]] is run])


def _folders(runs: Iterable[Run]) -> str:
    return ", ".join(printable(str(run.folder)) for run in runs)


def _check_only_the_seed_differs(group: Group, keys: Sequence[str]) -> None:
    differing = _differing(group.runs)
    if differing:
        names = ", ".join(f"{key} ({', '.join(values)})" for key, values in differing.items())
        raise UserError(
            f"{_title(group)}: these runs differ in more than the seed: {names}. "
            f"Draw them apart with --by {','.join([*keys, *differing])}, or name fewer runs"
        )


def _differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the settings other than the seed in which runs differ, with their values."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    found = {
        name: sorted({_text(run.settings.get(name, "not set")) for run in runs})
        for name in names
        if name != "seed" and name not in settings_without_effect()
    }
    return {name: values for name, values in found.items() if len(values) > 1}
