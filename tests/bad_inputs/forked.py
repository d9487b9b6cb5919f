"""Programs run in forks of this process, which has imported all, so that hundreds take seconds."""

import ctypes
import faulthandler
import logging
import os
import re
import resource
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import huggingface_hub
from tqdm import tqdm

from runs.folder import LOCK
from settings.parts import all_settings
from tests.bad_inputs.harness import PROGRAMS
from tests.bad_inputs.workshop import TRACE

FIELDS = all_settings()

SECONDS = 40.0  # far more than any of these commands takes: who needs them hangs
MORE_MEMORY = 3 * 2**30
LARGEST_FILE = 2**30
MOST_LINES = len(FIELDS) + 5  # every setting may be wrong
LONGEST_LINE = 10_000
ENDINGS = (0, 1, 2, 128 + signal.SIGINT, 128 + signal.SIGTERM)
PROGRESS = re.compile(r"[^\n]*\r[^\n]*\d+(%\||/\d+ \[|\.\d+/)[^\n]*(\n|$)|[^\n]*\r(?=\n|$)")
OUT, ERR = "stdout", "stderr"
DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2  # capabilities(7)

Tree = dict[str, tuple[int, int, int]]


class Outcome(NamedTuple):
    """What a program did.

    Attributes:
        status: Its exit status, negative for a signal, None where it did not end by itself.
        out: What it wrote to stdout.
        err: What it wrote to stderr, without progress bars.
        changed: The paths below its working directory that are new, other, or gone.
    """

    status: int | None
    out: str
    err: str
    changed: list[str]

    def complaints(self) -> list[str]:
        """Return what no program may do, whatever it is given."""
        found = []
        if self.status is None:
            return [f"had not ended after {SECONDS} seconds"]
        if "Traceback (most" not in self.out + self.err and self.status not in ENDINGS:
            found.append(f"ended with status {self.status}")
        if "Traceback (most" in self.out + self.err:
            found.append(f"traceback: {_last_line(self.err)}")
        if TRACE in {Path(path).name for path in self.changed}:
            found.append("ran code of a file")
        if self.status == 2:
            found += self._complaints_about_a_refusal()
        return found

    def _complaints_about_a_refusal(self) -> list[str]:
        lines = self.err.removesuffix("\n").split("\n")
        found = []
        if not 1 <= len(lines) <= MOST_LINES or not all(line.strip() for line in lines):
            found.append(f"refused in {len(lines)} lines, or in empty ones")
        if not all(line.isprintable() for line in lines):
            found.append("refused in signs that do not print")
        if max(map(len, lines)) > LONGEST_LINE:
            found.append(f"refused in a line of {max(map(len, lines))} signs")
        if any("Warning:" in line for line in lines):
            found.append(f"refused with a warning: {lines}")
        if self.changed:
            found.append(f"refused, but changed {self.changed[:3]}")
        return found


def run_forked(program: str, command: list[str], place: Path) -> Outcome:
    """Run a program's own `main` in a fork with `place` as its working directory.

    Beside `place`, what it says is kept in two files. A program that does not end is killed with
    all it has started.
    """
    before = tree(place)
    process = os.fork()
    if process == 0:
        _be_the_program(program, command, place)
    status = _wait(process)
    out, err = ((place.parent / name).read_bytes().decode(errors="replace") for name in (OUT, ERR))
    after = tree(place)
    changed = [path for path in sorted(before | after) if before.get(path) != after.get(path)]
    kept = [path for path in changed if not _is_new_lock(path, before)]
    return Outcome(status, out, PROGRESS.sub("", err), kept)


def tree(place: Path) -> Tree:
    """Return size, time of change and mode of every path below a folder, folders' times left out.

    A folder's time changes where a file in it is made and deleted again, which is nobody's loss.
    """
    found: Tree = {}
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            facts = os.lstat(path)
            size, changed = (0, 0) if name in folders else (facts.st_size, facts.st_mtime_ns)
            found[os.path.relpath(path, place)] = (size, changed, facts.st_mode)
    return found


def _is_new_lock(path: str, before: Tree) -> bool:
    """Return whether a path is the lock of a run's folder that had none, which means nothing."""
    return path not in before and Path(path).name == LOCK


def _be_the_program(program: str, command: list[str], place: Path) -> None:
    status = 70
    try:
        os.setpgid(0, 0)
        _redirect(place)
        _limit()
        faulthandler.disable()  # a test runner's, which writes elsewhere
        faulthandler.dump_traceback_later(0.9 * SECONDS, file=sys.stderr)  # where a hang is
        give_up_override()
        status = PROGRAMS[program].main(command)
    except SystemExit as ended:  # --help
        status = ended.code if isinstance(ended.code, int) else 71
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 70)


def _redirect(place: Path) -> None:
    """Take a terminal's place away, and what a test runner has put in the way."""
    os.chdir(place)
    for number, path in ((0, Path(os.devnull)), (1, place.parent / OUT), (2, place.parent / ERR)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(path, flags, 0o600), number)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="strict", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    logging.root.handlers.clear()  # they write to the stderr of before
    tqdm.set_lock(threading.RLock())  # its own is shared with the parent
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    vars(huggingface_hub)["get_session"] = _no_connection


def _no_connection(*_: object, **__: object) -> None:
    raise ConnectionError("no connection")


def _limit() -> None:
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for what, most in (
        (resource.RLIMIT_AS, in_use + MORE_MEMORY),
        (resource.RLIMIT_FSIZE, LARGEST_FILE),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def give_up_override() -> None:
    """Let the permissions of files hold for this process even where it is root's (Linux)."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    libc.capget(header, sets)
    for number in (0, 1):
        sets[number] &= ~(1 << DAC_OVERRIDE | 1 << DAC_READ_SEARCH)
    libc.capset(header, sets)


def _wait(process: int) -> int | None:
    """Return how a process ended, None where it had to be killed."""
    ends = time.monotonic() + SECONDS
    pause = 0.001
    while time.monotonic() < ends:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            _kill_group(process)
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    _kill_group(process)
    os.waitpid(process, 0)
    return None


def _kill_group(process: int) -> None:
    try:
        os.killpg(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has left nobody behind
        return


def _last_line(text: str) -> str:
    """Return the last line of a text that says something."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")[:200]
