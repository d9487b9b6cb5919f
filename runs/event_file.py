"""TensorBoard's file of events, written at once where TensorBoard's own writer uses a thread."""

import os
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

EVENTS = "events.out.tfevents"


class EventFile:
    """A new file of events in a run folder, beside those of earlier parts of the run.

    A full disk is an error where it happens, and what was written before a crash is there.

    Args:
        folder: The run's.
        env_steps: Where the run goes on; what earlier files say of later steps is taken back.

    Attributes:
        is_first: Whether the folder had no such file before.
    """

    def __init__(self, folder: Path, env_steps: int) -> None:
        # TensorBoard reads the files of a folder in the order of their names.
        number = len(list(folder.glob(f"{EVENTS}.*")))
        name = f"{EVENTS}.{int(time.time()):010d}.{number:04d}.{socket.gethostname()}"
        self.is_first = number == 0
        self._file = (folder / name).open("wb")
        self._records = RecordWriter(self._file)
        self._add(Event(file_version="brain.Event:2"))
        # Tells readers to forget what earlier files say from this step on.
        self._add(Event(step=env_steps + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, summary: Summary, env_steps: int = 0) -> None:
        """Add scalars, pictures or texts of one step."""
        self._add(Event(step=env_steps, summary=summary))

    def sync(self) -> None:
        """Bring everything written onto the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._file.flush()
