"""Training runs killed and starved at random moments, then resumed until they are done.

    python -m tests.robustness.faults --rounds 100

Every round breaks one run in one way and goes on with `main.py --resume`; in the end its trained
parameters, optimiser and metrics.csv (but time/*, and how often a model with a cache was
asked) must be those of an undisturbed run. Runs are forked from one process that has
imported everything, so a round takes a second or two.
"""

import argparse
import contextlib
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

import main as main_program
from envs import SUITES
from tests.runs import DESCRIBED, ROWS, outcome, same, words_of
from trainers import checkpoint
from trainers.checkpoint import LAST

MOST_KILLS = 3
LEAST_APART = 0.02  # seconds from one checkpoint to the next within an update
LOG = "log.txt"
DISK_MB = 256
DISK_BLOCK = 4096


class Case(NamedTuple):
    """A run to break.

    Attributes:
        command: Begins it.
        folder: Its run folder, below the working directory.
        seconds: Its duration, undisturbed.
        n_bytes: Size of its files.
        expected: Its outcome, undisturbed.
    """

    command: list[str]
    folder: Path
    seconds: float
    n_bytes: int
    expected: dict[str, Any]


def make_case(name: str, workplace: Path) -> Case:
    """Return a case with the outcome of an undisturbed run."""
    longer = {"checkpoint_minutes": 0, "n_steps": 3 * ROWS[name]["n_steps"]}
    if "replay_ratio" in ROWS[name]:  # most of the time goes by within updates
        longer["replay_ratio"] = 0.5
    settings = ROWS[name] | longer
    command = [*words_of(settings), "--run-id=run"]
    workplace.mkdir()
    warm_up(command, workplace)
    begun = time.perf_counter()
    status = wait(start(command, workplace))
    assert status == 0, (workplace / LOG).read_text()
    seconds = time.perf_counter() - begun
    (folder,) = (path.relative_to(workplace) for path in workplace.glob("experiments/*/*/run"))
    n_bytes = sum(path.stat().st_size for path in (workplace / folder).rglob("*"))
    return Case(command, folder, seconds, n_bytes, outcome(workplace / folder))


def warm_up(command: list[str], workplace: Path) -> None:
    """Import in this process whatever a run imports, so that none of its forks must."""
    with (
        contextlib.chdir(workplace),
        open(LOG, "w") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        status = main_program.main([*command[:-1], "--run-id=warm-up", "--var=n_steps=1"])
    assert status == 0, (workplace / LOG).read_text()


def start(command: list[str], workplace: Path) -> int:
    """Fork a process that runs main.py with a command line in a folder; return its id."""
    process = os.fork()
    if process:
        return process
    status = 70
    try:
        os.chdir(workplace)
        log = os.open(LOG, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # tqdm's own lock is shared with the parent: a process killed holding it stops all others.
        tqdm.set_lock(threading.RLock())
        status = main_program.main(command)
        sys.stdout.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def wait(process: int) -> int:
    """Return the exit status of a process, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def go_on(case: Case, workplace: Path) -> list[str]:
    """Return the command line that continues a run, or begins it where it has no folder yet."""
    begun = (workplace / case.folder).is_dir()
    return ["--resume", str(case.folder)] if begun else case.command


def finish(case: Case, workplace: Path) -> None:
    """Go on to the end and compare."""
    command = go_on(case, workplace)
    status = wait(start(command, workplace))
    said = (workplace / LOG).read_text()
    assert status == 0 or "this run is finished" in said, f"{command}: status {status}\n{said}"
    assert same(outcome(workplace / case.folder), case.expected), "another outcome"


def kill_at_random(case: Case, workplace: Path, dice: random.Random) -> str:
    """Kill the run up to three times, at any moment."""
    n_killed = 0
    for _ in range(dice.randint(1, MOST_KILLS)):
        process = start(go_on(case, workplace), workplace)
        time.sleep(dice.uniform(0, case.seconds))
        os.kill(process, signal.SIGKILL)
        n_killed += wait(process) == -signal.SIGKILL
    return f"{n_killed} kills"


def kill_in_a_checkpoint(case: Case, workplace: Path, dice: random.Random) -> str:
    """Kill the run while a checkpoint is being written."""
    process = start(case.command, workplace)

    def is_partial() -> bool:
        return any((workplace / case.folder).glob(f"{LAST}.*.partial"))

    for _ in range(dice.randint(1, 6)):
        _wait_until(lambda: not is_partial(), process)
        _wait_until(is_partial, process)
    time.sleep(dice.uniform(0, 0.002))
    left = is_partial()
    os.kill(process, signal.SIGKILL)
    wait(process)
    return "during a checkpoint" if left and is_partial() else "between checkpoints"


def fill_the_disk(case: Case, workplace: Path, dice: random.Random) -> str:
    """Let the disk run full while the run goes on, then make room again."""
    with small_disk(workplace):
        ballast = workplace / "ballast"
        free = os.statvfs(workplace).f_bavail * DISK_BLOCK
        ballast.write_bytes(bytes(max(0, free - dice.randrange(case.n_bytes))))
        status = wait(start(case.command, workplace))
        said = (workplace / LOG).read_text()
        assert status in (0, 1, 2), f"status {status}\n{said}"
        assert "Traceback" not in said, said
        assert not list(workplace.rglob("*.pt.partial")), "a half-written file is left"
        ballast.unlink()
        finish(case, workplace)
    return {0: "room enough", 1: "full", 2: "full before the first step"}[status]


def _wait_until(condition: Callable[[], bool], process: int) -> None:
    """Wait for a condition as long as a process lives."""
    while not condition() and os.waitid(os.P_PID, process, _DEAD) is None:
        time.sleep(0.0001)


_DEAD = os.WEXITED | os.WNOHANG | os.WNOWAIT


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a small file system in memory on a folder."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)],
        check=True,
        capture_output=True,
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def can_mount() -> bool:
    """Return whether this process may mount a file system."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder)):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


FAULTS: dict[str, Callable[[Case, Path, random.Random], str]] = {
    "killed": kill_at_random,
    "killed in a checkpoint": kill_in_a_checkpoint,
    "disk full": fill_the_disk,
}


def main() -> int:
    """Break `--rounds` runs in every way and say how many came out as if nothing had been."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="of every fault (default 100)")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--agents", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint.LEAST_APART = LEAST_APART
    # A fork lacks the threads for which a pool of the parent's would wait when it is collected.
    os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)
    logging.basicConfig(format="%(message)s", level=logging.ERROR)
    SUITES[DESCRIBED] = "tests.described:Described"
    if "disk full" in arguments.faults and not can_mount():
        print("disk full: skipped, file systems cannot be mounted here")
        arguments.faults.remove("disk full")
    failures = 0
    with tempfile.TemporaryDirectory() as place:
        names = enumerate(arguments.agents)
        cases = [make_case(name, Path(place, str(number))) for number, name in names]
        for fault in arguments.faults:
            failures += break_runs(fault, cases, arguments.rounds, arguments.seed)
    return int(failures > 0)


def break_runs(fault: str, cases: list[Case], n_rounds: int, seed: int) -> int:
    """Break runs in one way, print the outcomes, and return how many came out wrong."""
    happened: Counter[str] = Counter()
    failures = 0
    begun = time.perf_counter()
    for number in range(n_rounds):
        dice = random.Random(f"{fault} {seed} {number}")
        case = cases[number % len(cases)]
        with tempfile.TemporaryDirectory() as place:
            try:
                happened[FAULTS[fault](case, Path(place), dice)] += 1
                if fault != "disk full":
                    finish(case, Path(place))
            except AssertionError as error:
                failures += 1
                print(f"{fault}, round {number}, {case.folder}: {error}", flush=True)
    seconds = time.perf_counter() - begun
    detail = ", ".join(f"{count} {what}" for what, count in sorted(happened.items()))
    right = n_rounds - failures
    print(
        f"{fault}: {right} of {n_rounds} as if undisturbed ({detail}; {seconds:.0f} s)", flush=True
    )
    return failures


if __name__ == "__main__":
    sys.exit(main())
