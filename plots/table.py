"""Tables for the terminal, for a README and for other programs."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from utils.files import written_whole

Table = Sequence[Sequence[object]]  # the first row is the heading


def aligned(table: Table) -> str:
    """Return a table for the terminal, the first column to the left and the others right."""
    rows = [[str(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def markdown(table: Table) -> str:
    """Return a table for a README."""
    heading, *rows = [f"| {' | '.join(map(str, row))} |" for row in table]
    return "\n".join([heading, "|" + "---|" * len(table[0]), *rows]) + "\n"


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write rows, the first being the heading."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write(text.encode(errors="backslashreplace"))
