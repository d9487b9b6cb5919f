"""The runs of a sweep under way: what is missing is tried, and tried again, until it is there.

Which runs are to be done, and when, a `Work` says: all of a grid at once, or those of a search as
there is room for them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from runs.folder import EXPERIMENTS, is_finished
from runs.run_data import Progress, read_progress
from sweeps.grid import Run
from sweeps.worker import Ending, Order

DESK = EXPERIMENTS / ".sweep"  # what runs are given and what they print
REFRESH_SECONDS = 1.0


class State(StrEnum):
    """Where a job stands.

    PRUNED runs were ended early since others do better, STOPPED ones since the sweep was to end.
    """

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    PRUNED = "pruned"
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
        is_cut: Whether it was asked to end early.
    """

    run: Run
    state: State = State.WAITING
    n_attempts: int = 0
    note: str = ""
    progress: Progress = field(default_factory=Progress)
    is_cut: bool = False
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
    def stop(self) -> Path:
        """The file whose presence asks the run to end."""
        return self._on_desk(".stop")

    @property
    def steps_left(self) -> int:
        """Environment steps that are missing."""
        if self.state in (State.DONE, State.PRUNED):
            return 0
        return max(0, self.run.config.n_steps - self.progress.env_steps)

    def queued(self) -> None:
        """Note that an attempt is to come; it runs once it has printed something."""
        self.state, self._log_bytes = State.WAITING, _n_bytes(self.log)

    def cut(self) -> None:
        """Have the run end early; one that has ended counts as if it had been cut in time."""
        self.is_cut = True
        if self.state in (State.WAITING, State.RUNNING):
            self.stop.touch()
        else:
            self.state = State.PRUNED

    def cut_before(self) -> None:
        """Note that an earlier sweep has cut the run."""
        self.is_cut, self.state = True, State.PRUNED

    def refresh(self) -> None:
        """Look up how far the run is."""
        if self.state is State.WAITING and _n_bytes(self.log) > self._log_bytes:
            self.state = State.RUNNING
        self.progress = read_progress(self.run.folder)

    def settle(self, ending: Ending, retries: int, stopping: bool) -> None:
        """Note the end of an attempt and what follows from it."""
        self.n_attempts += 1
        self.note = str(ending)
        if self.is_cut:
            self.state, self.note = State.PRUNED, ""
        elif is_finished(self.run.folder):
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


class Work(Protocol):
    """The runs that are to be done."""

    @property
    def jobs(self) -> list[Job]:
        """Return all that are known so far."""

    @property
    def n_to_come(self) -> int:
        """Return how many are not."""

    def next_job(self, n_open: int, n_places: int) -> Job | None:
        """Return a job to begin or go on with; None where none can be now.

        Args:
            n_open: Jobs that were returned and have not ended.
            n_places: Runs that there is room for at once.
        """

    def follow(self) -> None:
        """Take notice of where the jobs stand, about once a second."""


class Grid:
    """Runs that are known beforehand."""

    n_to_come = 0

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)
        self._missing = iter([job for job in jobs if job.state is not State.DONE])

    def next_job(self, n_open: int, n_places: int) -> Job | None:
        """Return the next that is missing, whether there is room or not: the pool has a queue."""
        return next(self._missing, None)

    def follow(self) -> None:
        """Nothing depends on where a job stands."""


class Pool(Protocol):
    """Where attempts are carried out.

    Attributes:
        n_places: Attempts that there is room for at once.
    """

    n_places: int

    def submit(self, job: Job, order: Order) -> None:
        """Queue an attempt."""

    def ended(self, seconds: float) -> list[tuple[Job, Ending]]:
        """Return the attempts that ended since the last call, waiting for one for some time."""


def carry_out(
    work: Work,
    pool: Pool,
    order_of: Callable[[Job], Order],
    retries: int,
    is_asked_to_stop: Callable[[], bool],
    stop: Callable[[], object],
) -> Iterable[Sequence[Job]]:
    """Do what is missing; yield the jobs about once a second, with where they stand.

    Args:
        work: The runs of the sweep.
        pool: Carries out attempts.
        order_of: Returns what the pool is to do for a job.
        retries: Further attempts after a first one that fails.
        is_asked_to_stop: Whether to end all runs, saved.
        stop: Asks the attempts to do so.
    """
    n_open, stopping = 0, False
    while True:
        while not stopping and (job := work.next_job(n_open, pool.n_places)):
            pool.submit(job, order_of(job))
            n_open += 1
        if not n_open:
            return
        if is_asked_to_stop() and not stopping:
            stopping = True
            stop()
        for job, ending in pool.ended(REFRESH_SECONDS):
            job.settle(ending, retries, stopping)
            if job.state is State.WAITING:
                pool.submit(job, order_of(job))
            else:
                n_open -= 1
        for job in work.jobs:
            if job.state in (State.WAITING, State.RUNNING):
                job.refresh()
        work.follow()
        yield work.jobs


def _n_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
