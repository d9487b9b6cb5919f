"""Where numbers of a run go: one CSV row and TensorBoard scalars under the same names."""

import csv
import errno
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from utils.files import written_whole

FILE = "metrics.csv"
EVENTS = "events.out.tfevents"
LINE_END = b"\r\n"


class MetricsWriter:
    """Writes metrics.csv and TensorBoard events into a run folder.

    The columns of the CSV are those of the first row; every row is flushed when written.

    Args:
        folder: The run's.
        env_steps: Where the run goes on; what the folder says of later steps is taken back.
    """

    def __init__(self, folder: Path, env_steps: int = 0) -> None:
        self._path = folder / FILE
        columns = _keep_rows(self._path, env_steps)
        self._file = self._path.open("a", newline="", encoding="utf-8")
        self._csv = csv.DictWriter(self._file, columns) if columns else None
        self._events = EventFile(folder, env_steps)

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Add one row.

        Args:
            env_steps: Environment steps behind it, TensorBoard's horizontal axis.
            metrics: Values by name, the same names in every call.
        """
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise OSError(errno.ENOENT, "removed while the run went on", str(self._path))
        row = {"env_steps": env_steps, **metrics}
        if self._csv is None:
            self._csv = csv.DictWriter(self._file, list(row))
            self._csv.writeheader()
        self._csv.writerow(row)
        self._file.flush()
        self._events.write(env_steps, metrics)

    def sync(self) -> None:
        """Bring everything written onto the disk."""
        os.fsync(self._file.fileno())
        self._events.sync()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._file.close()
        finally:
            self._events.close()


class EventFile:
    """TensorBoard's file of events, written at once where TensorBoard's own writer uses a thread.

    So a full disk is an error where it happens, and what was written before a crash is there.
    """

    def __init__(self, folder: Path, env_steps: int) -> None:
        # TensorBoard reads the files of a folder in the order of their names.
        number = len(list(folder.glob(f"{EVENTS}.*")))
        name = f"{EVENTS}.{int(time.time()):010d}.{number:04d}.{socket.gethostname()}"
        self._file = (folder / name).open("wb")
        self._records = RecordWriter(self._file)
        self._add(Event(file_version="brain.Event:2"))
        # Tells readers to forget what earlier files say from this step on.
        self._add(Event(step=env_steps + 1, session_log=SessionLog(status=SessionLog.START)))

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Add one step's scalars."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._add(Event(step=env_steps, summary=Summary(value=values)))

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


def _keep_rows(path: Path, env_steps: int) -> list[str]:
    """Cut a CSV file behind a step, an unfinished line included, and return its columns."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(LINE_END)]
    steps = {row: re.match(rb"\d+(?=,)", row) for row in whole[1:]}
    kept = whole[:1] + [row for row, step in steps.items() if step and int(step[0]) <= env_steps]
    if kept != lines:
        with written_whole(path) as file:
            file.writelines(kept)
    return kept[0].decode().strip().split(",") if kept else []
