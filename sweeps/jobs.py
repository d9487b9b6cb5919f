"""The runs of a sweep as Ray tasks, tried again until they are complete.

A task is `attempt`: one run of main.py, as a process of its own, so that a crash leaves the worker
alive. The function is sent to workers by value and needs Python's own library only: a worker is
small and quick to start.
"""

import fcntl
import hashlib
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tqdm import tqdm

from analysis.run_data import Progress, read_progress
from sweeps.grid import SweepRun
from utils.errors import UserError, escape
from utils.files import open_without_waiting
from utils.run_folder import EXPERIMENTS, is_finished, usable_cores, write_json

PROGRAM = Path(__file__).resolve().parent.parent / "main.py"
JOBS_DIR = EXPERIMENTS / ".sweep"  # settings and output of the runs
REFRESH_SECONDS, CONNECT_SECONDS = 1.0, 10.0
LONGEST_NOTE = 200
POLL_SECONDS = 0.2
TAIL = 4096
OBJECT_STORE_BYTES = 100 * 2**20  # only names of files and last lines go through it
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # Ray's default gives way to all other processes
    # Else a worker that ends would kill its runs at once; so they get SIGTERM and save.
    "RAY_kill_child_processes_on_worker_exit": "false",
}


class State(StrEnum):
    """The state of a job.

    PRUNED runs were ended early because others do better, STOPPED ones because the sweep was ended.
    """

    DONE = "done"  # in the order in which they are counted
    PRUNED = "pruned"
    WAITING = "waiting"
    STOPPED = "stopped"
    FAILED = "failed"
    RUNNING = "running"


@dataclass(eq=False)
class Job:
    """A run and its progress in this sweep.

    Attributes:
        n_attempts: Attempts that ended in this sweep.
        note: How the last attempt ended, if not well.
        is_cut: Whether it was asked to end early.
    """

    run: SweepRun
    state: State = State.WAITING
    n_attempts: int = 0
    note: str = ""
    progress: Progress = field(default_factory=Progress)
    is_cut: bool = False
    _log_bytes: int = 0

    def __post_init__(self) -> None:
        self._log_bytes = _n_bytes(self.log)  # output of an earlier sweep does not count
        if is_finished(self.run.folder):
            self.state = State.DONE
        self.refresh()

    @property
    def desk(self) -> Path:
        """The run's files beside its folder, without their endings; `attempt` uses them as well.

        .json has all settings for main.py, .log has the run's output, and .stop asks it to end.
        """
        return JOBS_DIR / self.run.folder.relative_to(EXPERIMENTS)

    @property
    def log(self) -> Path:
        return Path(f"{self.desk}.log")

    @property
    def stop(self) -> Path:
        return Path(f"{self.desk}.stop")

    @property
    def steps_left(self) -> int:
        if self.state in (State.DONE, State.PRUNED, State.FAILED):
            return 0
        return max(0, self.run.config.n_steps - self.progress.env_steps)

    def prepare(self) -> None:
        """Write the files for an attempt; the run counts as running once it has printed a line."""
        self.desk.parent.mkdir(parents=True, exist_ok=True)
        write_json(Path(f"{self.desk}.json"), self.run.config.as_dict())
        self.stop.unlink(missing_ok=True)
        self.state, self._log_bytes = State.WAITING, _n_bytes(self.log)

    def cut(self) -> None:
        """End the run early; one that has ended counts as if it had been cut in time."""
        self.is_cut = True
        if self.state in (State.WAITING, State.RUNNING):
            self.stop.touch()
        else:
            self.state = State.PRUNED

    def refresh(self) -> None:
        if self.state is State.WAITING and _n_bytes(self.log) > self._log_bytes:
            self.state = State.RUNNING
        self.progress = read_progress(self.run.folder)

    def settle(self, ending: str, retries: int, stopping: bool) -> None:
        self.n_attempts += 1
        self.note = ending
        if self.is_cut:
            self.state, self.note = State.PRUNED, ""
        elif is_finished(self.run.folder):
            self.state, self.note = State.DONE, ""
        elif stopping:
            self.state = State.STOPPED
        else:
            self.state = State.FAILED if self.n_attempts > retries else State.WAITING
        self.progress = read_progress(self.run.folder)


class Jobs:
    """The runs of a grid, all known beforehand; `sweeps.search` has runs that are not."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)
        self._missing = iter([job for job in jobs if job.state is not State.DONE])

    @property
    def n_to_come(self) -> int:
        return 0

    def next_job(self, n_open: int, n_places: int) -> Job | None:
        """Return a job to begin or resume, None if there is none at present.

        `n_open` jobs were returned and have not ended; `n_places` runs can go on at once, a limit
        that a grid leaves to Ray's queue.
        """
        return next(self._missing, None)

    def follow(self) -> None:
        """Called about once a second; nothing in a grid depends on progress."""


class RayPool:
    """Runs attempts as Ray has room for them, on this machine or on a cluster.

    Attributes:
        n_places: Tasks that can go on at once.
        request: The file that asks all of them to end by being there.
    """

    def __init__(self, cpus: int, gpus: float, trust: bool = False) -> None:
        import ray

        # Sent as it is, so that workers need not find this package.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)
        self._attempt = task(attempt)
        self._program = [str(PROGRAM), *(["--trust"] if trust else [])]
        self._environment = {"OMP_NUM_THREADS": str(cpus), "TQDM_DISABLE": "1"}
        if not gpus:
            self._environment["CUDA_VISIBLE_DEVICES"] = ""
        self.request = JOBS_DIR / f"stop-{socket.gethostname()}-{os.getpid()}"
        self._jobs: dict[Any, Job] = {}
        self.n_places = _places(cpus, gpus)

    def submit(self, job: Job) -> None:
        files = job.run.folder, job.desk, self.request
        task = self._attempt.remote(Path.cwd(), self._program, *files, self._environment)
        self._jobs[task] = job

    def ended(self, seconds: float) -> list[tuple[Job, str]]:
        """Return attempts that ended since the last call, and how; wait up to some seconds."""
        import ray

        if not self._jobs:
            return []
        done, _ = ray.wait(list(self._jobs), num_returns=1, timeout=seconds)
        return [(self._jobs.pop(task), _ending(task)) for task in done]

    def stop(self) -> None:
        self.request.touch()


def run_jobs(
    work: Jobs, pool: RayPool, retries: int, is_asked_to_stop: Callable[[], bool]
) -> Iterator[Sequence[Job]]:
    n_open, stopping = 0, False
    while True:
        while not stopping and (job := work.next_job(n_open, pool.n_places)):
            job.prepare()
            pool.submit(job)
            n_open += 1
        if not n_open:
            return
        if is_asked_to_stop() and not stopping:
            stopping = True
            pool.stop()
        for job, ending in pool.ended(REFRESH_SECONDS):
            job.settle(ending, retries, stopping)
            if job.state is State.WAITING:
                job.prepare()
                pool.submit(job)
            else:
                n_open -= 1
        for job in work.jobs:
            if job.state in (State.WAITING, State.RUNNING):
                job.refresh()
        work.follow()
        yield work.jobs


@contextmanager
def reserved(folders: Iterable[Path]) -> Iterator[None]:
    """Keep other sweeps from training the same runs; a killed sweep keeps nothing."""
    # Each run is one byte of one file, locked at a place that its name decides: thousands of lock
    # files would need as many open files.
    JOBS_DIR.mkdir(parents=True, exist_ok=True)
    with open(JOBS_DIR / ".lock", "a", opener=open_without_waiting) as file:
        for folder in folders:
            place = int.from_bytes(hashlib.sha256(os.fsencode(folder)).digest()[:7], "big")
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except (BlockingIOError, PermissionError):
                raise UserError(
                    f"{folder}: another sweep trains this run at this moment. Wait for it or end "
                    "it, or give this sweep a --name of its own"
                ) from None
        yield


def check_address(address: str | None) -> None:
    """Raise UserError unless a server answers at an address; auto is left to Ray."""
    if address in (None, "auto"):
        return
    # Ray itself would try for two minutes.
    host, _, port = str(address).removeprefix("ray://").rpartition(":")
    try:
        if not host:
            raise ValueError("no host")
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError, ValueError) as error:
        reason = escape(str(error))
        raise UserError(
            f"--address {escape(str(address))}: no Ray cluster answers there ({reason}). "
            "Use auto, or HOST:PORT of its first machine"
        ) from None


@contextmanager
def ray_pool(address: str | None, cpus: int, gpus: float, trust: bool = False) -> Iterator[RayPool]:
    """Start Ray here or connect to a cluster, and leave it; UserError without cluster or room."""
    os.environ.update(ENVIRONMENT)
    import ray

    here = address is None
    try:
        ray.init(
            address=address or "local",
            num_cpus=usable_cores() if here else None,
            object_store_memory=OBJECT_STORE_BYTES if here else None,
            include_dashboard=False if here else None,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except Exception as error:  # Ray raises a bare one where its start takes longer than 30 s
        where = f"--address {address}: " if address else ""
        raise UserError(f"{where}Ray cannot be reached: {str(error).splitlines()[0]}") from None
    try:
        pool = RayPool(cpus, gpus, trust)
        pool.request.unlink(missing_ok=True)
        yield pool
        pool.request.unlink(missing_ok=True)
    finally:
        ray.shutdown()


def _places(cpus: int, gpus: float) -> int:
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    found = [(machine.get("CPU", 0), machine.get("GPU", 0)) for machine in machines]
    places = sum(int(min(n / cpus, n_gpus / gpus if gpus else math.inf)) for n, n_gpus in found)
    if not places:
        there = ", ".join(f"{n:g} cores and {n_gpus:g} GPUs" for n, n_gpus in found)
        raise UserError(f"--cpus {cpus} --gpus {gpus:g}: no machine has that many: {there}")
    return places


def _ending(task: Any) -> str:
    import ray

    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        lines = str(error).strip().splitlines()
        return ": ".join((type(error).__name__, *lines[-1:]))[:LONGEST_NOTE]


def _n_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def attempt(
    workplace: Path,
    program: Sequence[str],
    folder: Path,
    desk: Path,
    stop: Path,
    more: Mapping[str, str],
) -> str:
    """Begin or resume a run, and return how it ended: a signal's name or its last line.

    Either of two files, the sweep's and the run's, asks it to save and end. Files reach every
    machine; Ray's way to cancel tasks depends on its version.

    Args:
        workplace: The folder the sweep was started in; other paths are relative to it.
        program: main.py, and options for every run.
        folder: The run's.
        desk: The name of its files, see `Job.desk`.
        stop: The sweep's file that asks to end.
        more: Changes to the environment variables of the run.
    """
    log = workplace / f"{desk}.log"
    stops = [workplace / stop, workplace / f"{desk}.stop"]
    if any(each.exists() for each in stops):
        return "not begun"
    new = ["--config", f"{desk}.json", "--run-id", folder.name]
    is_there = (workplace / folder).exists()
    resumed = ["--resume", str(folder)]
    command = [sys.executable, *program, *(resumed if is_there else new)]
    with log.open("ab") as file:
        file.write(f"\n{os.uname().nodename}: {' '.join(command)}\n".encode())
        file.flush()
        # In a session of its own: Ctrl-C reaches the sweep alone, which then asks runs to save.
        process = subprocess.Popen(
            command,
            cwd=workplace,
            env={**os.environ, **more},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with ended_with_us(process):
            asked = False
            while process.poll() is None:
                if not asked and any(each.exists() for each in stops):
                    asked = True
                    process.terminate()
                time.sleep(POLL_SECONDS)
    if process.returncode < 0:
        return f"killed by {signal.Signals(-process.returncode).name}"
    return last_line(log) or f"exit status {process.returncode}"


@contextmanager
def ended_with_us(process: subprocess.Popen) -> Iterator[None]:
    """Let a process save and end, too, if this one is killed meanwhile."""
    # The shell waits for a line that never comes: its input ends when we do, however that happens.
    watch = ["sh", "-c", 'read -r line; kill -TERM "$0"', str(process.pid)]
    with subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True) as watching:
        try:
            yield
        finally:
            watching.kill()


def last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def show(work: Jobs, seconds: Iterable[Sequence[Job]]) -> None:
    said: dict[Job, tuple[State, int]] = {}
    begun = sum(job.progress.env_steps for job in work.jobs)
    with tqdm(initial=begun, unit=" steps", unit_scale=True, disable=None) as bar:
        for jobs in seconds:
            for job in jobs:
                now = (job.state, job.n_attempts)
                if now != said.get(job, (State.WAITING, 0)):
                    tqdm.write(status_line(job))
                    sys.stdout.flush()
                said[job] = now
            bar.n = sum(job.progress.env_steps for job in jobs)
            to_come = work.n_to_come * jobs[0].run.config.n_steps
            bar.total = bar.n + sum(job.steps_left for job in jobs) + to_come
            bar.set_description(summary(jobs, work.n_to_come))


def status_line(job: Job) -> str:
    progress, n_steps = job.progress, job.run.config.n_steps
    line = f"{job.state:8s}{job.run.folder}  {progress.env_steps:,} of {n_steps:,} steps"
    if progress.mean_return is not None:
        line += f", return {progress.mean_return:.3f}"
    if progress.speed is not None:
        line += f", {progress.speed:,.0f} steps/s"
    return line + (f"  attempt {job.n_attempts}: {escape(job.note)}" if job.note else "")


def summary(jobs: Sequence[Job], n_to_come: int = 0) -> str:
    counts = Counter(job.state for job in jobs)
    parts = [f"{counts[state]} {state}" for state in State if counts[state]]
    parts += [f"{n_to_come} to come"] * (n_to_come > 0)
    return f"{len(jobs) + n_to_come} runs: {', '.join(parts)}"
