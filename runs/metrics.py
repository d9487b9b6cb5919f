"""Where numbers of a run go: one CSV row, and every logger under the same names."""

import csv
import errno
import logging
import math
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from runs.loggers import LoggerSettings, Media, configured_loggers
from utils.errors import UserError
from utils.files import keep_copy, written_whole

FILE = "metrics.csv"
LINE_END = b"\r\n"
STEPS = "env_steps"

log = logging.getLogger(__name__)


class MetricsWriter:
    """Writes metrics.csv and TensorBoard events into a run folder, and what else is configured.

    The columns of the CSV are those of the first row, and behind them what later versions of the
    program add; every row is flushed when written. NaN stands for what there is nothing to say of:
    it leaves its cell empty and is no point of a curve elsewhere.

    Args:
        folder: The run's.
        config: The settings of the run.
        env_steps: Of the last row that was written where the run goes on; what the folder says of
            later steps is taken back.
        per_row: Environment steps from one row to the next; None where they differ.
    """

    def __init__(
        self,
        folder: Path,
        config: LoggerSettings,
        env_steps: int = 0,
        per_row: int | None = 1,
    ) -> None:
        self._path = folder / FILE
        self._columns = _take_up(self._path, env_steps, per_row)
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

    def sync(self) -> None:
        """Bring everything written onto the disk."""
        os.fsync(self._file.fileno())
        for logger in self._loggers:
            logger.sync()

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


class _Found(NamedTuple):
    """What a CSV file holds of the rows that should be in it.

    Attributes:
        columns: Their names, none where the heading is missing or damaged.
        rows: The rows by their step, without line ends.
        is_whole: Whether no row is missing and nothing else is in the way, apart from what a crash
            leaves behind: rows of later steps, and an unfinished line at the end.
        of_how_many: For a message: how many rows there should be, if that is known.
    """

    columns: list[str]
    rows: dict[int, bytes]
    is_whole: bool
    of_how_many: str


def _take_up(path: Path, env_steps: int, per_row: int | None) -> list[str]:
    """Cut a CSV file behind the last of the expected rows and return its columns.

    Where rows are missing or damaged a line says so, and the file as it was is kept beside it.

    Raises:
        UserError: something else than a file stands there.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: not a file. Remove it, or restore the run's")
    content = path.read_bytes() if path.exists() else b""
    found = _read_rows(content, env_steps, per_row)
    if not found.is_whole:
        kept = f"; the file as it was is {keep_copy(path)}" if content else ""
        log.warning(
            f"{path}: damaged, {len(found.rows)}{found.of_how_many} rows up to step "
            f"{env_steps:,} are left{kept}"
        )
    lines = [",".join(found.columns).encode(), *found.rows.values()] if found.rows else []
    cut = b"".join(line + LINE_END for line in lines)
    if cut != content:
        with written_whole(path) as file:
            file.write(cut)
    return found.columns if found.rows else []


def _read_rows(content: bytes, env_steps: int, per_row: int | None) -> _Found:
    """Return what there is of the rows up to a step, `per_row` steps apart if that is known."""
    lines = content.splitlines(keepends=True)
    if lines and not lines[-1].endswith((b"\r", b"\n")):
        del lines[-1]
    heading, *others = [line.rstrip(b"\r\n") for line in lines] or [b""]
    columns = heading.decode(errors="replace").split(",")
    expected = [] if per_row is None else list(range(per_row, env_steps + 1, per_row))
    of_how_many = "" if per_row is None else f" of the {len(expected)}"
    if columns[0] != STEPS or len(set(columns)) < len(columns):
        missing = bool(expected or lines or (per_row is None and env_steps))
        return _Found([], {}, not missing, of_how_many)
    read = [(_step(line, len(columns)), line) for line in others]
    steps = [step for step, _ in read if step is None or step <= env_steps]
    if per_row is None:
        expected = sorted({step for step in steps if step is not None})
    wanted = set(expected)
    rows = {step: line for step, line in read if step is not None and step in wanted}
    return _Found(columns, dict(sorted(rows.items())), steps == expected, of_how_many)


def _step(line: bytes, n_columns: int) -> int | None:
    """Return the step of a row, None for what is no row."""
    is_row = re.match(rb"\d{1,18},", line) and line.count(b",") == n_columns - 1
    return int(line.partition(b",")[0]) if is_row else None
