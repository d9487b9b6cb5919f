"""Imported first by every program: what signals do while the rest, PyTorch above all, is loaded.

Ctrl-C ends the process as it ends any other; Python would print where in PyTorch it had come to.
SIGUSR1, which asks a training to save, finds nothing to save yet; by default it would kill.
"""

import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


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
    return bool(main_file) and Path(str(main_file)).resolve().parent in (ROOT, ROOT / "analysis")


# At import, or it would come too late: programs import what is slow before they call anything.
if is_started(getattr(sys.modules["__main__"], "__file__", None)):
    load_quietly()
