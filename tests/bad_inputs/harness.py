"""Programs run on bad inputs, in this process or in a fork; all that a refusal must be."""

import contextlib
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
import warnings
from pathlib import Path
from typing import NamedTuple

import huggingface_hub
import pytest
from tqdm import tqdm

import eval as eval_program
import main as main_program
import plot
import prepare_embeddings
import publish
import sweep
from analysis import __main__ as analysis
from benchmarks import __main__ as benchmarks
from utils.errors import UserError
from utils.run_folder import LOCK
from utils.settings import all_settings

PROGRAMS = {
    "main": main_program,
    "eval": eval_program,
    "prepare": prepare_embeddings,
    "plot": plot,
    "sweep": sweep,
    "publish": publish,
    "analysis": analysis,
    "benchmarks": benchmarks,
}
TRACE = "code_was_run"  # the file an intruder would leave
SECONDS = 40.0  # far more than any of these commands takes: a program that needs them hangs
MORE_MEMORY, LARGEST_FILE = 3 * 2**30, 2**30
MOST_LINES = len(all_settings()) + 5  # every setting may be wrong
LONGEST_LINE = 10_000
ENDINGS = (0, 1, 2, 128 + signal.SIGINT, 128 + signal.SIGTERM)
PROGRESS = re.compile(r"[^\n]*\r[^\n]*\d+(%\||/\d+ \[|\.\d+/)[^\n]*(\n|$)|[^\n]*\r(?=\n|$)")
OUT, ERR = "stdout", "stderr"
DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2  # capabilities(7)


def settings(**changes):
    """Return the command line of some settings."""
    return [f"--var={name}={value}" for name, value in changes.items()]


def tree(place="."):
    """Return size, time of change and mode of every path below a folder; of folders the mode.

    A folder's time changes where a file in it is made and deleted again, which is nobody's loss.
    """
    found = {}
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            facts = os.lstat(path)
            size, changed = (0, 0) if name in folders else (facts.st_size, facts.st_mtime_ns)
            found[os.path.relpath(path, place)] = (size, changed, facts.st_mode)
    return found


@contextlib.contextmanager
def in_one_line(reason):
    """Demand that the block is refused as a user's error of one line that holds the reason."""
    with pytest.raises(UserError, match=reason) as caught:
        yield caught
    assert len(caught.value.lines) == 1, caught.value
    assert "\n" not in str(caught.value)


def refused(capsys, program, command, n_lines=1):
    """Run a program, demand a refusal, and return its lines on stderr."""
    before = tree()
    capsys.readouterr()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        status = PROGRAMS[program].main(command)
    captured = capsys.readouterr()
    lines = captured.err.removesuffix("\n").split("\n")
    assert status == 2
    assert len(lines) == n_lines, captured.err
    assert all(line.strip() and "Traceback" not in line for line in lines)
    assert all(line.isprintable() for line in lines)
    assert captured.out.count("\n") <= 1, captured.out  # the heading, such as "HELM on ..."
    assert [str(each.message) for each in warned if each.category is not DeprecationWarning] == []
    assert tree() == before
    return lines


class Outcome(NamedTuple):
    """Exit status of a program, negative for a signal, None where it did not end by itself; its
    output, progress bars left out; and the paths below its working directory that are new, other,
    or gone."""

    status: int | None
    out: str
    err: str
    changed: list[str]

    def complaints(self):
        """Return the violations of the contract that holds for any input."""
        if self.status is None:
            return [f"had not ended after {SECONDS} seconds"]
        lines = self.err.removesuffix("\n").split("\n")
        has_traceback = "Traceback (most" in self.out + self.err
        last = next((line for line in reversed(lines) if line.strip()), "")[:200]
        found = {
            f"ended with status {self.status}": self.status not in ENDINGS and not has_traceback,
            f"traceback: {last}": has_traceback,
            "ran code of a file": TRACE in {Path(path).name for path in self.changed},
        }
        if self.status == 2:
            longest = max(map(len, lines))
            is_told = 1 <= len(lines) <= MOST_LINES and all(line.strip() for line in lines)
            found |= {
                f"refused in {len(lines)} lines, or in empty ones": not is_told,
                "refused in signs that do not print": not all(map(str.isprintable, lines)),
                f"refused in a line of {longest} signs": longest > LONGEST_LINE,
                f"refused with a warning: {lines}": any("Warning:" in line for line in lines),
                f"refused, but changed {self.changed[:3]}": bool(self.changed),
            }
        return [complaint for complaint, holds in found.items() if holds]


def run_forked(program, command, place):
    """Run a program's own `main` in a fork with `place` as its working directory.

    This process has imported everything, so that hundreds take seconds. Beside `place`, the output
    is kept in two files. A program that does not end is killed with all it has started.
    """
    before = tree(place)
    process = os.fork()
    if process == 0:
        _be_the_program(program, command, place)
    status = _wait(process)
    out, err = ((place.parent / name).read_bytes().decode(errors="replace") for name in (OUT, ERR))
    after = tree(place)
    changed = [
        path
        for path in sorted(before | after)
        if before.get(path) != after.get(path)
        and not (path not in before and Path(path).name == LOCK)  # a new lock means nothing
    ]
    return Outcome(status, out, PROGRESS.sub("", err), changed)


def _be_the_program(program, command, place):
    status = 70
    try:
        os.setpgid(0, 0)
        _redirect(place)
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        for limit, most in (
            (resource.RLIMIT_AS, in_use + MORE_MEMORY),
            (resource.RLIMIT_FSIZE, LARGEST_FILE),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(limit, (most, most))
        faulthandler.disable()  # a test runner's, which writes elsewhere
        faulthandler.dump_traceback_later(0.9 * SECONDS, file=sys.stderr)  # where a hang is
        _give_up_override()
        status = PROGRAMS[program].main(command)
    except SystemExit as ended:  # --help
        status = ended.code if isinstance(ended.code, int) else 71
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 70)


def _redirect(place):
    """Replace the terminal by files, and remove the test runner's handlers."""
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
    vars(huggingface_hub)["get_session"] = no_connection


def no_connection(*_, **__):
    raise ConnectionError("no connection")


def _give_up_override():
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


def _wait(process):
    """Return the exit status of a process, None where it had to be killed; end its children."""
    ends, found, status = time.monotonic() + SECONDS, 0, 0
    while not found and time.monotonic() < ends:
        time.sleep(0.005)
        found, status = os.waitpid(process, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has left nobody behind
        os.killpg(process, signal.SIGKILL)
    if not found:
        os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) if found else None
