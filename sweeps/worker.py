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

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.2
TAIL = 4096


def attempt(
    workplace: Path,
    program: Path,
    folder: Path,
    desk: Path,
    stop: Path,
    environment: Mapping[str, str],
) -> str:
    """Begin a run, or go on with it, and wait for its end.

    Once a file is there that asks to end the run saves and ends, and none is begun. That reaches
    every machine; how Ray cancels tasks depends on its version.

    Args:
        workplace: The folder the sweep was started in; other paths are relative to it.
        program: main.py.
        folder: The run's.
        desk: The name of its files, without .json for all its settings, .log for what it prints,
            added to, and .stop, which asks it to end.
        stop: Another file that asks to end.
        environment: Changes to that of the run's process.

    Returns:
        How it ended: the signal that killed it, or the last line that it printed.
    """
    log = workplace / f"{desk}.log"
    stops = [workplace / stop, workplace / f"{desk}.stop"]
    if any(stop.exists() for stop in stops):
        return "not begun"
    command = [sys.executable, str(program)]
    if (workplace / folder).exists():
        command += ["--resume", str(folder)]
    else:
        command += ["--config", f"{desk}.json", "--run-id", folder.name]
    with log.open("ab") as file:
        file.write(f"\n{os.uname().nodename}: {' '.join(command)}\n".encode())
        file.flush()
        process = subprocess.Popen(
            command,
            cwd=workplace,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_ends_with(os.getpid()),
        )
        status = _wait(process, stops)
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return last_line(log) or f"exit status {status}"


def last_line(path: Path) -> str:
    """Return the last line of a text file that is not empty."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


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
