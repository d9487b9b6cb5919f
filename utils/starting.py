"""Imported first by every program: signals and threads are settled before PyTorch is loaded.

PyTorch is not imported here: OpenMP reads its environment variables when PyTorch is loaded. Until
`restore_sigint`, Ctrl-C ends the process silently, where Python would print a traceback from inside
PyTorch. SIGUSR1, which asks a training to save, finds nothing to save yet; by default it would
kill.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The programs, and their names where the package is installed.
COMMANDS = {
    "main.py": "helm-train",
    "eval.py": "helm-eval",
    "plot.py": "helm-plot",
    "sweep.py": "helm-sweep",
    "prepare_embeddings.py": "helm-prepare",
    "prepare_captions.py": "helm-prepare-captions",
    "publish.py": "helm-publish",
}


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


def cli_command(program: str) -> list[str]:
    started = Path(sys.argv[0])
    if started.name in COMMANDS.values():
        return [COMMANDS[program]]
    folder = started.parent if started.resolve().parent == ROOT else Path()
    return ["python", str(folder / program)]


def let_waiting_threads_sleep() -> None:
    """Let threads that wait for others sleep, unless the user has set OpenMP's policy.

    By default they spin, which beside other work takes the core that the awaited thread needs.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def number_of_threads(given: int | None) -> int:
    """Return the threads of a run: the given number, or OMP_NUM_THREADS, or one.

    One, as the networks of the memory tasks are small: a small operation waits for the slowest of
    its threads, and where cores are shared with other work it can take ten times as long with two.
    """
    number = os.environ.get("OMP_NUM_THREADS", "")
    return given or (int(number) if number.isdecimal() else 0) or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Let sums be taken in one order, for any number of threads elsewhere."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# At import, or it would come too late: programs import slow packages before they call anything.
if is_started(getattr(sys.modules["__main__"], "__file__", None)):
    defer_sigint()
    let_waiting_threads_sleep()
