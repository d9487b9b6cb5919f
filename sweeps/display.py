"""What a person sees of a sweep: a live table on a terminal, a line for each event elsewhere."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweeps.estimates import Estimates
from sweeps.jobs import Job, State
from sweeps.progress import duration

ORDER = (*(State.RUNNING, State.FAILED, State.STOPPED, State.WAITING), State.PRUNED, State.DONE)
COLOURS = {State.RUNNING: "cyan", State.FAILED: "red", State.STOPPED: "yellow", State.DONE: "green"}
OVER = (State.DONE, State.PRUNED)
SUMMARY_SECONDS = 60.0
WIDTH_OF_A_FILE = 250
LINES_BESIDE = 7  # of a table's frame, its heading and the summary


class Display(Protocol):
    """Shows jobs again and again."""

    def show(self, jobs: Sequence[Job], n_to_come: int = 0) -> None:
        """Show where they stand now, and how many are not among them yet."""


class LiveTable:
    """A table that is drawn over itself."""

    def __init__(self, live: Live, estimates: Estimates) -> None:
        self._live, self._estimates = live, estimates

    def show(self, jobs: Sequence[Job], n_to_come: int = 0) -> None:
        """Draw what fits, the running ones first."""
        room = max(self._live.console.height - LINES_BESIDE, 3)
        ordered = sorted(jobs, key=lambda job: ORDER.index(job.state))
        drawn = table(ordered[:room], self._estimates)
        hidden = f", {len(jobs) - room} more not shown" if len(jobs) > room else ""
        drawn.caption = summary(jobs, self._estimates, n_to_come) + hidden
        self._live.update(drawn, refresh=True)


class Lines:
    """A line for each change, and now and then one for all."""

    def __init__(self, estimates: Estimates) -> None:
        self._estimates = estimates
        self._said: dict[Job, tuple[State, int]] = {}
        self._summed_up = time.monotonic()

    def show(self, jobs: Sequence[Job], n_to_come: int = 0) -> None:
        """Print what has changed since the last call."""
        for job in jobs:
            now = (job.state, job.n_attempts)
            before = self._said.get(job, (State.WAITING, 0))
            self._said[job] = now
            if now != before:
                print(_event(job), flush=True)
        if time.monotonic() - self._summed_up >= SUMMARY_SECONDS:
            self._summed_up = time.monotonic()
            print(summary(jobs, self._estimates, n_to_come), flush=True)


@contextmanager
def display(estimates: Estimates) -> Iterator[Display]:
    """Open what suits standard output."""
    console = Console()
    if not console.is_terminal:
        yield Lines(estimates)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveTable(live, estimates)


def print_table(jobs: Iterable[Job], estimates: Estimates) -> None:
    """Print all runs, not cut to the width of a terminal where there is none."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_OF_A_FILE)
    console.print(table(jobs, estimates))


def table(jobs: Iterable[Job], estimates: Estimates) -> Table:
    """Return a row for each run."""
    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("run", "state"):
        drawn.add_column(name, overflow="fold")
    for name in ("steps", "of", "return", "steps/s", "left", "tries"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("last failure", overflow="ellipsis", no_wrap=True)
    for job in jobs:
        drawn.add_row(
            Text(str(job.run.folder)),
            Text(job.state, style=COLOURS.get(job.state, "")),
            f"{job.progress.env_steps:,}",
            f"{job.run.config.n_steps:,}",
            "" if job.progress.mean_return is None else f"{job.progress.mean_return:.3f}",
            "" if job.progress.speed is None else f"{job.progress.speed:,.0f}",
            ""
            if job.state in (State.DONE, State.PRUNED)
            else duration(estimates.seconds_left(job)),
            str(job.n_attempts or ""),
            Text(job.note),
        )
    return drawn


def summary(jobs: Sequence[Job], estimates: Estimates, n_to_come: int = 0) -> str:
    """Return how many runs stand where, and the time until all are done."""
    counts = Counter(job.state for job in jobs)
    parts = [f"{counts[state]} {state}" for state in reversed(ORDER) if counts[state]]
    parts += [f"{n_to_come} to come"] * (n_to_come > 0)
    left = duration(estimates.until_all_are_done(jobs, counts[State.RUNNING], n_to_come))
    return f"{len(jobs) + n_to_come} runs: {', '.join(parts)}; time left: {left}"


def _event(job: Job) -> str:
    progress = job.progress
    parts = [f"{job.state:8s}{job.run.folder}"]
    if progress.mean_return is not None:
        parts.append(f"{progress.env_steps:,} steps, return {progress.mean_return:.3f}")
    if job.note:
        parts.append(f"attempt {job.n_attempts}: {job.note}")
    return "  ".join(parts)
