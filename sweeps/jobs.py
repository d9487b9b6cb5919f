"""The runs of a sweep under way: what is missing is tried, and tried again, until it is there."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from runs.folder import EXPERIMENTS, is_finished
from sweeps.grid import Run
from sweeps.progress import Progress, read_progress
from sweeps.worker import Ending, Order

DESK = EXPERIMENTS / ".sweep"  # what runs are given and what they print
REFRESH_SECONDS = 1.0


class State(StrEnum):
    """Where a job stands; STOPPED is for runs that a sweep was asked to leave unfinished."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(eq=False)
class Job:
    """A run with what has become of it.

    Attributes:
        run: What to do.
        state: Where it stands.
        n_attempts: Attempts that ended in this sweep.
        note: How the last attempt ended, if not well.
        progress: What its metrics.csv says.
    """

    run: Run
    state: State = State.WAITING
    n_attempts: int = 0
    note: str = ""
    progress: Progress = field(default_factory=Progress)
    _log_bytes: int = 0

    def __post_init__(self) -> None:
        self.queued()  # what an earlier sweep printed does not count
        if is_finished(self.run.folder):
            self.state = State.DONE
        self.refresh()

    @property
    def settings(self) -> Path:
        """The file that main.py gets all settings from."""
        return self._on_desk(".json")

    @property
    def log(self) -> Path:
        """The file for what the run prints."""
        return self._on_desk(".log")

    @property
    def steps_left(self) -> int:
        """Environment steps that are missing."""
        if self.state is State.DONE:
            return 0
        return max(0, self.run.config.n_steps - self.progress.env_steps)

    def queued(self) -> None:
        """Note that an attempt is to come; it runs once it has printed something."""
        self.state, self._log_bytes = State.WAITING, _n_bytes(self.log)

    def refresh(self) -> None:
        """Look up how far the run is."""
        if self.state is State.WAITING and _n_bytes(self.log) > self._log_bytes:
            self.state = State.RUNNING
        self.progress = read_progress(self.run.folder)

    def settle(self, ending: Ending, retries: int, stopping: bool) -> None:
        """Note the end of an attempt and what follows from it."""
        self.n_attempts += 1
        self.note = str(ending)
        if is_finished(self.run.folder):
            self.state, self.note = State.DONE, ""
        elif stopping:
            self.state = State.STOPPED
        elif self.n_attempts > retries:
            self.state = State.FAILED
        else:
            self.queued()
        self.refresh()

    def _on_desk(self, suffix: str) -> Path:
        folder = self.run.folder
        return DESK / folder.relative_to(EXPERIMENTS).parent / (folder.name + suffix)


class Pool(Protocol):
    """Where attempts are carried out."""

    def submit(self, job: Job, order: Order) -> None:
        """Queue an attempt."""

    def ended(self, seconds: float) -> list[tuple[Job, Ending]]:
        """Return the attempts that ended since the last call, waiting for one for some time."""


def carry_out(
    jobs: Sequence[Job],
    pool: Pool,
    order_of: Callable[[Job], Order],
    retries: int,
    is_asked_to_stop: Callable[[], bool],
    stop: Callable[[], object],
) -> Iterable[Sequence[Job]]:
    """Do what is missing; yield the jobs about once a second, with where they stand.

    Args:
        jobs: All runs of the sweep.
        pool: Carries out attempts.
        order_of: Returns what the pool is to do for a job.
        retries: Further attempts after a first one that fails.
        is_asked_to_stop: Whether to end all runs, saved.
        stop: Asks the attempts to do so.
    """
    n_open, stopping = 0, False
    for job in jobs:
        if job.state is not State.DONE:
            pool.submit(job, order_of(job))
            n_open += 1
    while n_open:
        if is_asked_to_stop() and not stopping:
            stopping = True
            stop()
        for job, ending in pool.ended(REFRESH_SECONDS):
            job.settle(ending, retries, stopping)
            if job.state is State.WAITING:
                pool.submit(job, order_of(job))
            else:
                n_open -= 1
        for job in jobs:
            if job.state in (State.WAITING, State.RUNNING):
                job.refresh()
        yield jobs


def _n_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
