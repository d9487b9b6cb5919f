"""Signals to a running training: end after this update, or save and go on."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

STOP = (signal.SIGINT, signal.SIGTERM)
SAVE = signal.SIGUSR1
STDERR = 2


AFTER_UPDATE = "stopping after this update; once more to stop now, the last checkpoint stays"


class Interruption:
    """Notes signals while it is entered; a run asks after each update what was noted.

    Args:
        answer: What is said to the first signal to stop.

    Attributes:
        stop: The signal that asked to end the run: Ctrl-C or SIGTERM. The same again, or a Ctrl-C,
            ends the process at once.
        save: Whether SIGUSR1 asked for a checkpoint since the last one.
    """

    def __init__(self, answer: str = AFTER_UPDATE) -> None:
        self._answer = f"\n{answer}\n".encode()
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
        elif number in (signal.SIGINT, self.stop):  # torchrun passes a Ctrl-C on as SIGTERM
            os._exit(128 + number)
