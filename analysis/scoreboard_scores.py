"""What a run came to, for the scoreboard: measured in its folder, or kept in a table.

The table, scoreboard.csv, has a line for each run that counted, with the settings that it read: so
runs of several machines stand together, and a score outlives its run folder.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from plots.runs import AXES, read_columns, read_rows
from runs.metrics import FILE
from trainers.checkpoint import LAST, load_checkpoint
from utils.errors import UserError

N_LAST = 5  # evaluations at the end of a run whose mean is its score
COLUMNS = ("run", "settings", "score", "steps_per_second", "n_trained")  # read back from a table

Number = TypeVar("Number", int, float)


class Result(NamedTuple):
    """What a run came to.

    Attributes:
        score: In the metric of its task.
        steps_per_second: Environment steps over the seconds of the run; None where nobody knows.
        n_trained: Parameters that an optimiser moves; None where no checkpoint is left.
    """

    score: float
    steps_per_second: float | None
    n_trained: int | None


class Found(NamedTuple):
    """A run, and what is told of it.

    Attributes:
        where: What its settings stand in, for errors.
        folder: Where it lies, or lay when it was written into a table.
        settings: By name, not yet checked.
        result: What it came to, where a table says so; None: it is to be measured.
    """

    where: str
    folder: Path
    settings: Mapping[str, Any]
    result: Result | None = None


def measured(folder: Path, metric: str) -> Result:
    """Return what a finished run came to.

    Raises:
        UserError: the metric has no value, or nobody logged how far the run was, and when.
    """
    columns = read_columns(folder)
    missing = [name for name in AXES.values() if name not in columns]
    if missing:
        raise UserError(f"{folder / FILE}: no column '{missing[0]}'. Name other runs")
    score = score_of(columns, metric)
    if score is None:
        raise UserError(f"{folder}: finished, and rollout/{metric} has no value. Name other runs")
    n_steps, seconds = (columns[name][-1] for name in AXES.values())
    return Result(score, n_steps / seconds, trained_parameters(folder))


def score_of(columns: Mapping[str, np.ndarray], metric: str) -> float | None:
    """Return the mean of a run's last five greedy evaluations, else of its last 100 episodes.

    Args:
        columns: What the run has logged, by name; NaN where there was nothing to say.  [rows]
        metric: The last part of a column's name.
    """
    for name, n_last in (f"eval/{metric}", N_LAST), (f"rollout/{metric}", 1):
        values = columns.get(name, np.array([]))
        known = values[~np.isnan(values)]
        if len(known):
            return float(known[-n_last:].mean())
    return None


def trained_parameters(folder: Path) -> int | None:
    """Return how many numbers a run's optimisers move; None where it kept no checkpoint.

    Adam keeps moments of each of them, and of nothing that is frozen or a copy.
    """
    path = folder / LAST
    return _n_moments(load_checkpoint(path).get("learner")) if path.is_file() else None


def kept(table: Path) -> Iterator[Found]:
    """Yield the runs in a scoreboard.csv.

    Raises:
        UserError: it is no such table.
    """
    for number, row in enumerate(read_rows(table, "the scoreboard"), 2):
        where = f"{table}, line {number}"
        missing = [name for name in COLUMNS if name not in row]
        if missing:
            raise UserError(f"{table}: not a table of the scoreboard (no column {missing[0]})")
        try:
            settings = json.loads(row["settings"])
            numbers = float(row["score"]), _or_none(float, row["steps_per_second"])
            result = Result(*numbers, _or_none(int, row["n_trained"]))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not a run of the scoreboard ({error})") from None
        if not isinstance(settings, dict) or not math.isfinite(result.score):
            raise UserError(f"{where}: settings must be an object and score a number")
        yield Found(where, Path(row["run"]), settings, result)


def _or_none(kind: Callable[[str], Number], text: str) -> Number | None:
    return kind(text) if text else None


def _n_moments(state: Any) -> int:
    if not isinstance(state, Mapping):
        return 0
    own = state["exp_avg"].numel() if "exp_avg" in state else 0
    return own + sum(map(_n_moments, state.values()))
