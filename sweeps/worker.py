"""What a task does on the machine that got it: one run of main.py, as a process of its own.

Only Python's own library is imported, so that a worker is small and quick to start; what a run
needs is imported by the run's process, whose crash leaves the worker alive.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.2
TAIL = 4096


class Order(NamedTuple):
    """What to run; paths are relative to the folder the sweep was started in.

    Attributes:
        workplace: That folder.
        program: main.py.
        folder: The run's.
        settings: File with all its settings.
        log: File for what it prints, added to.
        stops: Files of which each, once it is there, asks to end.
        n_threads: For PyTorch's operations.
        on_gpu: Whether it may use the GPUs that are visible here.
    """

    workplace: Path
    program: Path
    folder: Path
    settings: Path
    log: Path
    stops: tuple[Path, ...]
    n_threads: int
    on_gpu: bool


class Ending(NamedTuple):
    """How an attempt ended: exit status, negative for a signal, and the last line printed."""

    status: int
    last_line: str = ""

    def __str__(self) -> str:
        if self.status < 0:
            return f"killed by {signal.Signals(-self.status).name}"
        return self.last_line or f"exit status {self.status}"


def attempt(order: Order) -> Ending:
    """Begin a run, or go on with it, and wait for its end.

    Once one of the files `order.stops` is there the run is asked to save and end, and none is
    begun. That reaches every machine; how Ray cancels tasks depends on its version.
    """
    workplace = order.workplace
    stops = [workplace / stop for stop in order.stops]
    if any(stop.exists() for stop in stops):
        return Ending(128 + signal.SIGTERM, "not begun")
    log_path = workplace / order.log
    with log_path.open("ab") as log:
        command = _command(order)
        log.write(f"\n{os.uname().nodename}: {' '.join(command)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            command,
            cwd=workplace,
            env=_environment(order, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_ends_with(os.getpid()),
        )
        status = _wait(process, stops)
    return Ending(status, last_line(log_path))


def last_line(path: Path) -> str:
    """Return the last line of a text file that is not empty."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _command(order: Order) -> list[str]:
    program = [sys.executable, str(order.program)]
    if (order.workplace / order.folder).exists():
        return [*program, "--resume", str(order.folder)]
    return [*program, "--config", str(order.settings), "--run-id", order.folder.name]


def _environment(order: Order, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run's process."""
    changed = {"OMP_NUM_THREADS": str(order.n_threads), "TQDM_DISABLE": "1"}
    if not order.on_gpu:
        changed["CUDA_VISIBLE_DEVICES"] = ""
    return {**environment, **changed}


def _ends_with(parent: int) -> Callable[[], None]:
    """Return what makes a new process get SIGTERM when this one dies, however it dies."""
    libc = ctypes.CDLL(None)

    def in_child() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    return in_child


def _wait(process: subprocess.Popen, stops: Sequence[Path]) -> int:
    """Return the exit status of a process that is asked to end once one of the files is there."""
    asked = False
    while process.poll() is None:
        if not asked and any(stop.exists() for stop in stops):
            asked = True
            process.terminate()
        time.sleep(POLL_SECONDS)
    return process.returncode
