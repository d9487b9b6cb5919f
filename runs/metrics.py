"""Where numbers of a run go: one CSV row, and every logger under the same names."""

import csv
import errno
import hashlib
import logging
import math
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from runs.loggers import LoggerSettings, Media, configured_loggers
from utils.errors import UserError
from utils.files import checksum, keep_copy, written_whole

FILE = "metrics.csv"
LINE_END = b"\r\n"
STEPS = "env_steps"
NOTHING = {"n_bytes": 0, "sha256": hashlib.sha256().hexdigest()}  # as long as no row is written
CHANGED = "not as it was at the checkpoint"

log = logging.getLogger(__name__)


class MetricsWriter:
    """Writes metrics.csv and TensorBoard events into a run folder, and what else is configured.

    The columns of the CSV are those of the first row, and behind them what later versions of the
    program add; every row is flushed when written. NaN stands for what there is nothing to say of:
    it leaves its cell empty and is no point of a curve elsewhere.

    Args:
        folder: The run's.
        config: The settings of the run.
        env_steps: Where the run goes on; what the folder says of later steps is taken back.
        saved: What `sync` said when it stood there.
    """

    def __init__(
        self,
        folder: Path,
        config: LoggerSettings,
        env_steps: int = 0,
        saved: Mapping[str, Any] = NOTHING,
    ) -> None:
        self._path = folder / FILE
        self._columns = _take_up(self._path, env_steps, saved)
        self._file = self._path.open("a", newline="", encoding="utf-8")
        self._loggers = configured_loggers(folder, config, env_steps)

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Add one row.

        Args:
            env_steps: Environment steps behind it, TensorBoard's horizontal axis.
            metrics: Values by name, the same names in every call.
        """
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise OSError(errno.ENOENT, "removed while the run went on", str(self._path))
        self._add_columns([name for name in (STEPS, *metrics) if name not in self._columns])
        known = {name: value for name, value in metrics.items() if not math.isnan(value)}
        csv.DictWriter(self._file, self._columns).writerow({STEPS: env_steps, **known})
        self._file.flush()
        for logger in self._loggers:
            logger.write(env_steps, known)

    def show(self, env_steps: int, media: Media) -> None:
        """Add pictures and texts, which have no place in the CSV."""
        for logger in self._loggers:
            logger.show(env_steps, media)

    def sync(self) -> dict[str, Any]:
        """Bring everything written onto the disk, and describe metrics.csv as it is now."""
        os.fsync(self._file.fileno())
        for logger in self._loggers:
            logger.sync()
        n_bytes = self._path.stat().st_size
        return {"n_bytes": n_bytes, "sha256": checksum(self._path, n_bytes).hexdigest()}

    def _add_columns(self, names: list[str]) -> None:
        """Write the heading, or widen the table where a new version of the program logs more."""
        if not names:
            return
        self._columns += names
        rows = self._path.read_bytes().splitlines()[1:]
        with written_whole(self._path) as file:
            lines = [",".join(self._columns).encode(), *(row + b"," * len(names) for row in rows)]
            file.writelines(line + LINE_END for line in lines)
        self._file.close()
        self._file = self._path.open("a", newline="", encoding="utf-8")

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with ExitStack() as all_of_them:
            for logger in self._loggers:
                all_of_them.callback(logger.close, finished=kind is None)
            self._file.close()


def last_step(folder: Path) -> int:
    """Return the environment steps of the last row of a run's metrics, 0 where there is none."""
    path = folder / FILE
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return max((step for line in lines if (step := _step(line)) is not None), default=0)


def are_as_saved(folder: Path, saved: Mapping[str, Any]) -> bool:
    """Return whether metrics.csv begins as it was when `MetricsWriter.sync` described it.

    Raises:
        UserError: something else than a file stands there.
    """
    path = folder / FILE
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a file. Remove it, or restore the run's")
    try:
        return checksum(path, saved["n_bytes"]).hexdigest() == saved["sha256"]
    except FileNotFoundError:
        return not saved["n_bytes"]
    except ValueError:
        return False


def _take_up(path: Path, env_steps: int, saved: Mapping[str, Any]) -> list[str]:
    """Cut a CSV file behind what was saved of it and return its columns.

    Where that is not as it was, a line says so, the file is kept beside itself, and rows that can
    be read stay.

    Raises:
        UserError: as `are_as_saved`.
    """
    as_saved = are_as_saved(path.parent, saved)
    content = path.read_bytes() if path.exists() else b""
    cut = content[: saved["n_bytes"]]
    if not as_saved:
        heading, *rows = content[: content.rfind(b"\n") + 1].splitlines() or [b""]
        n_cells = heading.count(b",")
        whole = ((_step(row), row) for row in rows if row.count(b",") == n_cells)
        known = {step: row for step, row in whole if step is not None and step <= env_steps}
        kept = [known[step] for step in sorted(known)]
        if not heading.startswith(STEPS.encode()):
            kept = []
        cut = b"".join(line + LINE_END for line in [heading, *kept]) if kept else b""
        copy = f"; the file as it was is {keep_copy(path)}" if content else ""
        log.warning(
            f"{path}: {CHANGED}, {len(kept)} rows up to step {env_steps:,} can be read{copy}"
        )
    if cut != content:
        with written_whole(path) as file:
            file.write(cut)
    return cut.partition(LINE_END)[0].decode(errors="replace").split(",") if cut else []


def _step(line: bytes) -> int | None:
    """Return the step of a row, None for what is no row."""
    return int(line.partition(b",")[0]) if re.match(rb"\d{1,18},", line) else None
