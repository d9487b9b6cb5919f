"""How far runs are and how fast, from their metrics.csv; what is left, from that."""

import statistics
from collections.abc import Iterable

from runs.folder import folder_of
from runs.run_data import read_progress
from settings import Config


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
