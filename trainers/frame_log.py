"""Rows of one environment on the disk: appended to files, read from anywhere, never rewritten.

A checkpoint names the files with their checksums, as far as they were written then. What comes
behind that is overwritten where a run goes on from it, so that what a killed process has added does
not count, and an earlier checkpoint of the run still finds its own rows.

Rows are read by system calls and not through mapped memory: what a process maps counts as its own,
and what a replay of a million frames holds would soon be all of it.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from trainers.replay import SavedFiles
from utils.files import checksum
from utils.saved_state import check_like

ROWS_AT_ONCE = 64  # that wait in memory before they are written
SUFFIX = ".rows"


class FrameLog:
    """A table of rows, of which the last are here; it grows at its end.

    Args:
        folder: Of the files.
        name: What they are called, before the number of their first row.
        dtype: Of a row.
        rows_per_file: Of which one whole file is removed at a time.

    Attributes:
        n_written: Rows appended since the beginning.
        first: The first that can be read.
    """

    def __init__(self, folder: Path, name: str, dtype: np.dtype, rows_per_file: int) -> None:
        self.folder, self.name, self.dtype = folder, name, dtype
        self.rows_per_file = rows_per_file
        self.n_written = self.first = 0
        self._waiting: list[bytes] = []
        self._digests: dict[int, str] = {}  # of whole files, by their first row
        self._sha256 = hashlib.sha256()  # of the file that is being written
        self._is_synced = True

    def append(self, row: np.void) -> None:
        """Put a row behind the others."""
        self._waiting.append(row.tobytes())
        self.n_written += 1
        if len(self._waiting) == ROWS_AT_ONCE or self.n_written % self.rows_per_file == 0:
            self.flush()

    def read(self, begin: int, end: int) -> np.ndarray:
        """Return the rows from one to another, which is not among them; they have been flushed."""
        parts = []
        while begin < end:
            path = self._path(self._begin_of(begin))
            here = min(end, self._begin_of(begin) + self.rows_per_file)
            parts.append(self._read(path, begin - self._begin_of(begin), here - begin))
            begin = here
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def flush(self) -> None:
        """Write what waits in memory."""
        if not self._waiting:
            return
        rows, self._waiting = b"".join(self._waiting), []
        n_rows = len(rows) // self.dtype.itemsize
        first = self.n_written - n_rows
        begin = self._begin_of(first)
        self.folder.mkdir(exist_ok=True)
        with open(os.open(self._path(begin), os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            # What a process has added that was killed since the checkpoint is cut off.
            file.truncate((first - begin) * self.dtype.itemsize)
            file.seek(0, os.SEEK_END)
            file.write(rows)
            self._sha256.update(rows)
            self._is_synced = False
            if self.n_written % self.rows_per_file == 0:
                file.flush()
                os.fsync(file.fileno())
                self._digests[begin] = self._sha256.hexdigest()
                self._sha256 = hashlib.sha256()

    def forget(self, before: int) -> list[Path]:
        """Give up all rows before one, and return the files in which no others stand."""
        names = self.paths()
        self.first = max(self.first, before)
        for begin in [begin for begin in self._digests if begin < self._begin_of(self.first)]:
            del self._digests[begin]
        return names[: len(names) - len(self.paths())]

    def paths(self) -> list[Path]:
        """Return the files that rows stand in."""
        begins = range(self._begin_of(self.first), self.n_written, self.rows_per_file)
        return [self._path(begin) for begin in begins]

    def save(self) -> dict[str, Any]:
        """Bring everything onto the disk, and return what it is."""
        self.flush()
        if not self._is_synced:
            last = self._begin_of(self.n_written - 1)
            descriptor = os.open(self._path(last), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._is_synced = True
        return {"first": self.first, "n_written": self.n_written}

    def files(self) -> SavedFiles:
        """Return the files, as far as they are written."""
        per_file, size = self.rows_per_file, self.dtype.itemsize
        files = {self._path(n).name: (per_file * size, d) for n, d in self._digests.items()}
        if n_rows := self.n_written % per_file:  # it goes on growing, whatever was given up
            last = self._path(self.n_written - n_rows)
            files[last.name] = (n_rows * size, self._sha256.copy().hexdigest())
        return files

    def load(self, state: dict[str, Any], files: SavedFiles) -> None:
        """Go on behind the last row that `save` has told of, in files that are as they were.

        Raises:
            ValueError: it is no such state.
        """
        check_like(state, {"first": 0, "n_written": 0}, "replay.logs")
        if not 0 <= state["first"] <= state["n_written"]:
            raise ValueError("replay: a log that ends before it begins")
        self.first, self.n_written, self._waiting = state["first"], state["n_written"], []
        n_rows = self.n_written % self.rows_per_file
        whole = range(self._begin_of(self.first), self.n_written - n_rows, self.rows_per_file)
        self._digests = {begin: files[self._path(begin).name][1] for begin in whole}
        self._sha256 = hashlib.sha256()
        if n_rows:
            last = self._path(self.n_written - n_rows)
            self._sha256 = checksum(last, n_rows * self.dtype.itemsize)

    def _begin_of(self, row: int) -> int:
        """Return the first row of the file that a row stands in."""
        return row - row % self.rows_per_file

    def _path(self, begin: int) -> Path:
        return self.folder / f"{self.name}_{begin:012d}{SUFFIX}"

    def _read(self, path: Path, begin: int, n_rows: int) -> np.ndarray:
        with path.open("rb", buffering=0) as file:
            file.seek(begin * self.dtype.itemsize)
            content = file.read(n_rows * self.dtype.itemsize)
        return np.frombuffer(content, self.dtype)
