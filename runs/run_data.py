"""The reader of run folders: settings, the table of metrics, and how far a run is."""

import csv
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runs.folder import SETTINGS, begun_with
from runs.loggers import FILE, STEPS
from settings import NAMED_BY_ALL, completed, read_json_object
from settings.declaration import shown
from utils.errors import UserError, suggestion

AXES = {"steps": STEPS, "seconds": "time/seconds"}
PRETRAINED = "pretrained"
TAIL = 16_384  # bytes; they hold the last row of a metrics.csv many times


class RunRecord(NamedTuple):
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


class Progress(NamedTuple):
    """The last row of a run.

    Attributes:
        env_steps: Environment steps behind it.
        mean_return: Of the last episodes; None before the first has ended.
        speed: Environment steps per second, updates included; None where unknown.
    """

    env_steps: int = 0
    mean_return: float | None = None
    speed: float | None = None


def run_folders(*paths: Path) -> list[Path]:
    """Return every run folder once: those named, and those somewhere below folders that are none.

    Raises:
        UserError: there is no run at a path.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        below = [path] if os.path.isfile(path / SETTINGS) else []
        if not below and os.path.isdir(path):
            below = sorted(file.parent for file in path.rglob(FILE))
        if not below:
            raise UserError(
                f"{path}: neither a run folder nor a folder of run folders (experiments/...)"
            )
        found |= {folder.resolve(): folder for folder in below}
    return list(found.values())


def read_settings_of(folder: Path, **kinds: type) -> dict[str, Any]:
    """Return the settings of a run, with those that are younger than it as they were before.

    Args:
        folder: The run's.
        kinds: Settings that must be there, and their types.

    Raises:
        UserError: config.json is no run's.
    """
    path = folder / SETTINGS
    return checked_settings(read_json_object(path), str(path), **kinds)


def checked_settings(values: dict[str, Any], where: str, **kinds: type) -> dict[str, Any]:
    """Return the settings of a run, completed, where those named have the given types."""
    settings = completed(values)
    for name, kind in kinds.items():
        found = (values if name in NAMED_BY_ALL else settings).get(name)
        if not isinstance(found, kind):
            given = shown(found)
            raise UserError(f"{where}: not the settings of a run ({name} is {given})")
    return settings


def columns_of(folder: Path) -> list[str]:
    """Return the names of all that a run has logged."""
    return list(read_rows(folder / FILE)[0])


def read_run(folder: Path, metric: str, axis: str) -> RunRecord:
    """Return a run; where the metric has no value yet, without rows."""
    settings = read_settings_of(folder, model=str, env=str, seed=int)
    rows = read_rows(folder / FILE)
    columns = [AXES[axis], metric]
    for column in columns:
        if column not in rows[0]:
            hint = suggestion(column, rows[0]) or f" It has {', '.join(rows[0])}"
            raise UserError(f"{folder / FILE}: no column '{column}'.{hint}")
    x, y = _numbers(folder, rows, columns)
    known = ~np.isnan(x + y)  # no mean return before the first episode's end
    told = {PRETRAINED: begun_with(folder) is not None, **settings}
    return RunRecord(folder, told, x[known], y[known])


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


def read_progress(folder: Path) -> Progress:
    """Return what the last whole row of metrics.csv says, zeros where there is none.

    Only the file's end is read, as a sweep asks again and again.
    """
    if not (folder / FILE).is_file():
        return Progress()
    try:
        with (folder / FILE).open("rb") as file:
            header = file.readline()
            size = file.seek(0, 2)
            file.seek(max(len(header), size - TAIL))
            rows = [line for line in file.read().splitlines(True) if line.endswith(b"\n")]
        row = next(csv.DictReader(line.decode() for line in (header, *rows[-1:])))
        speed = float(row["time/fps"])
        mean_return = row["rollout/return_mean"]
        return Progress(
            int(row[STEPS]),
            float(mean_return) if mean_return else None,
            speed if math.isfinite(speed) and speed > 0 else None,
        )
    except (OSError, StopIteration, KeyError, TypeError, ValueError, csv.Error):
        return Progress()


def read_evaluation(path: Path, kinds: dict[str, Any]) -> dict[str, Any]:
    """Return what eval.py has written into a file; under `var` the settings that were changed.

    Args:
        path: The file.
        kinds: What else must be in it, and of what types, as `isinstance` takes them.

    Raises:
        UserError: it is no evaluation.
    """
    result = {"var": {}, **read_json_object(path)}
    is_whole = all(isinstance(result.get(name), kind) for name, kind in kinds.items())
    changed = result["var"]
    if not (is_whole and isinstance(changed, dict) and isinstance(changed.get("length", 0), int)):
        raise UserError(f"{path}: not an evaluation that eval.py wrote. Move it elsewhere")
    return result


def _numbers(folder: Path, rows: Sequence[dict[str, str]], columns: Sequence[str]) -> np.ndarray:
    """Return columns of a table; NaN where a cell is empty.  [columns, rows]"""
    try:
        return np.array([[float(row[column] or "nan") for column in columns] for row in rows]).T
    except ValueError:
        names = " and ".join(columns) if len(columns) == 2 else "its columns"
        raise UserError(f"{folder / FILE}: {names} are not numbers in every row") from None
