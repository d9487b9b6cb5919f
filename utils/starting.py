"""Imported first by every program: what must be settled before the rest, PyTorch above all.

PyTorch is not imported here: OpenMP reads its environment variables when PyTorch is loaded.
Ctrl-C ends the process as it ends any other; Python would print where in PyTorch it had come to.
SIGUSR1, which asks a training to save, finds nothing to save yet; by default it would kill. Threads
of PyTorch that wait for others sleep.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The programs, and what they are called where the package is installed.
COMMANDS = {
    "main.py": "helm-train",
    "eval.py": "helm-eval",
    "plot.py": "helm-plot",
    "sweep.py": "helm-sweep",
    "prepare_embeddings.py": "helm-prepare",
    "prepare_captions.py": "helm-prepare-captions",
    "publish.py": "helm-publish",
}


def load_quietly() -> None:
    """Let Ctrl-C end the process without a word and SIGUSR1 do nothing, unless either is set."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        # A handler, which other programs do not inherit as they would SIG_IGN.
        signal.signal(signal.SIGUSR1, lambda number, frame: None)


def loaded() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, which closes what has been opened."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_started(main_file: str | None) -> bool:
    """Return whether one of our programs was started, and not a test or a worker process."""
    if not main_file:
        return False
    file = Path(main_file)
    return file.name in COMMANDS.values() or file.resolve().parent in (ROOT, ROOT / "analysis")


def typed(program: str) -> list[str]:
    """Return the words that start one of the programs, as this one was started."""
    started = Path(sys.argv[0])
    if started.name in COMMANDS.values():
        return [COMMANDS[program]]
    folder = started.parent if started.resolve().parent == ROOT else Path()
    return ["python", str(folder / program)]


def let_waiting_threads_sleep() -> None:
    """Let threads that wait for others give their core away, unless the user says otherwise.

    By default they spin, which beside other work takes the core that the awaited thread needs.
    To be called before PyTorch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def number_of_threads(given: int | None) -> int:
    """Return how many threads a run has: the given number, or OMP_NUM_THREADS, or one.

    One, as the networks of the memory tasks are small: a small operation waits for the slowest of
    its threads, and where cores are shared with other work it can take ten times as long with two.
    """
    number = os.environ.get("OMP_NUM_THREADS", "")
    return given or (int(number) if number.isdecimal() else 0) or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Let sums be taken in the same order however many threads there are otherwise."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# At import, or it would come too late: programs import what is slow before they call anything.
if is_started(getattr(sys.modules["__main__"], "__file__", None)):
    load_quietly()
    let_waiting_threads_sleep()
