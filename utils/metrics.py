"""Where numbers of a run go: one CSV row, and every logger under the same names."""

import csv
import errno
import math
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from utils.files import written_whole
from utils.loggers import LoggerSettings, Media, configured_loggers

FILE = "metrics.csv"
LINE_END = b"\r\n"


class MetricsWriter:
    """Writes metrics.csv and TensorBoard events into a run folder, and what else is configured.

    The columns of the CSV are those of the first row, also where a run of an earlier version goes
    on; every row is flushed when written. NaN stands for what there is nothing to say of: it leaves
    its cell empty and is no point of a curve elsewhere.

    Args:
        folder: The run's.
        config: The settings of the run.
        env_steps: Where the run goes on; what the folder says of later steps is taken back.
    """

    def __init__(self, folder: Path, config: LoggerSettings, env_steps: int = 0) -> None:
        self._path = folder / FILE
        columns = _keep_rows(self._path, env_steps)
        self._file = self._path.open("a", newline="", encoding="utf-8")
        self._csv = self._table(columns) if columns else None
        self._loggers = configured_loggers(folder, config, env_steps)

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Add one row.

        Args:
            env_steps: Environment steps behind it, TensorBoard's horizontal axis.
            metrics: Values by name, the same names in every call.
        """
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise OSError(errno.ENOENT, "removed while the run went on", str(self._path))
        if self._csv is None:
            self._csv = self._table(["env_steps", *metrics])
            self._csv.writeheader()
        known = {name: value for name, value in metrics.items() if not math.isnan(value)}
        self._csv.writerow({"env_steps": env_steps, **known})
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

    def _table(self, columns: list[str]) -> csv.DictWriter:
        return csv.DictWriter(self._file, columns, extrasaction="ignore")


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
