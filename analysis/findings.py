"""What an analysis comes to: a picture, its numbers, and what to print."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from plots.style import save_figure
from plots.table import Table, aligned, write_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Findings(NamedTuple):
    """The result of an analysis.

    Attributes:
        figure: The picture.
        summary: The few numbers to print, a heading first.
        numbers: All numbers of the picture, a heading first.
        tables: More to print, by title.
    """

    figure: "Figure"
    summary: Table
    numbers: Table
    tables: Mapping[str, Table] = MappingProxyType({})

    def save(self, folder: Path, name: str) -> list[Path]:
        """Print the summary, write picture and numbers, and return the files."""
        print(aligned(self.summary))
        for title, table in self.tables.items():
            print(f"\n{title}\n{aligned(table)}")
        picture, numbers, summary = (
            folder / f"{name}{ending}" for ending in (".png", ".csv", "_summary.csv")
        )
        save_figure(self.figure, picture)
        write_csv(numbers, self.numbers)
        write_csv(summary, self.summary)
        return [picture, numbers, summary]
