"""Imported first by every program: signals and threads are settled before PyTorch is loaded.

PyTorch is not imported here: OpenMP reads its environment variables when PyTorch is loaded. Until
`restore_sigint`, Ctrl-C ends the process silently, where Python would print a traceback from inside
PyTorch. SIGUSR1, which asks a training to save, finds nothing to save yet; by default it would
kill.
"""

import os
import signal
import sys
from pathlib import Path

from utils.errors import COMMANDS, ROOT


def defer_sigint() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        # A handler, which other programs do not inherit as they would SIG_IGN.
        signal.signal(signal.SIGUSR1, lambda number, frame: None)


def restore_sigint() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, which closes open files and processes."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_started(main_file: str | None) -> bool:
    """Return whether one of our programs was started, and not a test or a worker process."""
    if not main_file:
        return False
    file = Path(main_file)
    return file.name in COMMANDS.values() or file.resolve().parent in (ROOT, ROOT / "analysis")


def let_waiting_threads_sleep() -> None:
    """Let threads that wait for others sleep, unless the user has set OpenMP's policy."""
    # By default they spin, which beside other work takes the core that the awaited thread needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def number_of_threads(given: int | None) -> int:
    """Return the threads of a run: the given number, or OMP_NUM_THREADS, or one."""
    # One, as the networks of the memory tasks are small: a small operation waits for the slowest of
    # its threads, and where cores are shared with other work it can take ten times as long with
    # two.
    number = os.environ.get("OMP_NUM_THREADS", "")
    return given or (int(number) if number.isdecimal() else 0) or 1


# At import, or it would come too late: programs import slow packages before they call anything.
if is_started(vars(sys.modules["__main__"]).get("__file__")):
    defer_sigint()
    let_waiting_threads_sleep()
