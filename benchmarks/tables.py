"""The one printer of tables."""

import re

Cell = str | float | None


class Table:
    """Prints its head when made and every row when added, so that slow figures show up early.

    Args:
        columns: A heading and a format for each column, such as plain_ms=">10,.1f"; underscores of
            headings are shown as blanks. A text or a missing number takes the format's width alone.
    """

    def __init__(self, **columns: str) -> None:
        self._formats = list(columns.values())
        self._widths = [re.match(r"[<>]\d+", spec)[0] for spec in self._formats]  # type: ignore[index]
        self.row(*(name.replace("_", " ") for name in columns))

    def row(self, *cells: Cell) -> None:
        """Print a row."""
        columns = zip(cells, self._formats, self._widths, strict=True)
        print(" ".join(_shown(*column) for column in columns).rstrip(), flush=True)


def _shown(cell: Cell, spec: str, width: str) -> str:
    if isinstance(cell, str) or cell is None:
        return format("–" if cell is None else cell, width)
    return format(cell, spec)
