"""Imported first by every program: what must be settled before the rest, PyTorch above all.

Ctrl-C ends the process as it ends any other; Python would print where in PyTorch it had come to.
SIGUSR1, which asks a training to save, finds nothing to save yet; by default it would kill. Threads
of PyTorch that wait for others sleep.
"""

import signal
import sys
from pathlib import Path

from utils.threads import let_waiting_threads_sleep

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


# At import, or it would come too late: programs import what is slow before they call anything.
if is_started(getattr(sys.modules["__main__"], "__file__", None)):
    load_quietly()
    let_waiting_threads_sleep()
