"""What an analysis comes to: a picture, its numbers, and what to print."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from plots.style import save_figure
from plots.table import Table, aligned, write_csv, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Findings(NamedTuple):
    """The result of an analysis.

    Attributes:
        figure: The picture.
        summary: The few numbers to print, a heading first.
        numbers: All numbers of the picture, a heading first.
        tables: More to print, by title.
        page: Markdown to print in the place of the summary, and to write beside it.
    """

    figure: "Figure"
    summary: Table
    numbers: Table
    tables: Mapping[str, Table] = MappingProxyType({})
    page: str = ""

    def save(self, folder: Path, name: str) -> list[Path]:
        """Print the summary, write picture and numbers, and return the files."""
        print(self.page or aligned(self.summary))
        for title, table in self.tables.items():
            print(f"\n{title}\n{aligned(table)}")
        picture, numbers, summary = (
            folder / f"{name}{ending}" for ending in (".png", ".csv", "_summary.csv")
        )
        save_figure(self.figure, picture)
        write_csv(numbers, self.numbers)
        write_csv(summary, self.summary)
        page = [folder / f"{name}.md"] if self.page else []
        for path in page:
            write_text(path, self.page)
        return [picture, numbers, summary, *page]
