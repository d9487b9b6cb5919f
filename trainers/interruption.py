"""Signals to a running training: end after this step, or save and go on."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

STOP = (signal.SIGINT, signal.SIGTERM)
SAVE = signal.SIGUSR1
STDERR = 2


class Interruption:
    """Notes signals while it is entered; who trains asks between two steps what was noted.

    Args:
        doing: What is told to who asks to stop.

    Attributes:
        stop: The signal that asked to end the run: Ctrl-C or SIGTERM. A Ctrl-C after it ends the
            process at once.
        save: Whether SIGUSR1 asked for a checkpoint since the last one.
    """

    def __init__(self, doing: str = "finishing this step") -> None:
        self._answer = f"\n{doing}; Ctrl-C leaves at once\n".encode()
        self.stop: signal.Signals | None = None
        self.save = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (*STOP, SAVE)}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == SAVE:
            self.save = True
        elif self.stop is None:
            self.stop = signal.Signals(number)
            # Printing is not safe here: the signal may have come in the middle of another print.
            os.write(STDERR, self._answer)
        elif number == signal.SIGINT:
            os._exit(128 + number)
