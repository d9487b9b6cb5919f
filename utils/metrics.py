"""Where numbers of a run go: one CSV row and TensorBoard scalars under the same names."""

import csv
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from torch.utils.tensorboard import SummaryWriter

FILE = "metrics.csv"


class MetricsWriter:
    """Writes metrics.csv and TensorBoard events into a run folder.

    The columns of the CSV are those of the first row; every row is flushed when written.
    """

    def __init__(self, folder: Path) -> None:
        self._file = (folder / FILE).open("w", newline="", encoding="utf-8")
        self._csv: csv.DictWriter[str] | None = None
        self._tensorboard = SummaryWriter(str(folder))

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Add one row.

        Args:
            env_steps: Environment steps behind it, TensorBoard's horizontal axis.
            metrics: Values by name, the same names in every call.
        """
        row = {"env_steps": env_steps, **metrics}
        if self._csv is None:
            self._csv = csv.DictWriter(self._file, list(row))
            self._csv.writeheader()
        self._csv.writerow(row)
        self._file.flush()
        for name, value in metrics.items():
            self._tensorboard.add_scalar(name, value, env_steps)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()
        self._tensorboard.close()
