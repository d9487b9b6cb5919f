"""How far runs are and how fast, from their metrics.csv; what is left, from that."""

import csv
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from runs.folder import folder_of
from runs.metrics import FILE
from settings import Config

TAIL = 16_384  # holds the last row of a metrics.csv many times


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


def read_progress(folder: Path) -> Progress:
    """Return what the last whole row of metrics.csv says, zeros where there is none."""
    if not (folder / FILE).is_file():
        return Progress()
    try:
        with (folder / FILE).open("rb") as file:
            header = file.readline()
            size = file.seek(0, 2)
            file.seek(max(len(header), size - TAIL))
            rows = [line for line in file.read().splitlines(True) if line.endswith(b"\n")]
    except OSError:
        return Progress()
    if not rows:
        return Progress()
    names, values = csv.reader([header.decode(errors="replace"), rows[-1].decode(errors="replace")])
    row = dict(zip(names, values, strict=False))
    try:
        speed = float(row["time/fps"])
        known = speed if math.isfinite(speed) and speed > 0 else None
        mean_return = row["rollout/return_mean"]
        return Progress(int(row["env_steps"]), float(mean_return) if mean_return else None, known)
    except (KeyError, ValueError):
        return Progress()


def measured_speed(config: Config) -> float | None:
    """Return the median speed of the earlier runs of an agent in an environment."""
    place = folder_of(config, "any").parent
    folders = place.iterdir() if place.is_dir() else ()
    speeds = [read_progress(folder).speed for folder in folders]
    known = [speed for speed in speeds if speed is not None]
    return statistics.median(known) if known else None


def duration(seconds: float | None) -> str:
    """Return a time in words, such as 2 h 05 min; "unknown" for None."""
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes:02d} min" if hours else f"{minutes} min"


def shared_out(seconds: Iterable[float | None], n_at_once: int) -> float | None:
    """Return how long runs take, so many at once; None where one's time is unknown."""
    times = list(seconds)
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return None
    return max(sum(known) / max(n_at_once, 1), max(known, default=0.0))
