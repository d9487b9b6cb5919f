"""Compare runs: learning curves, final scores, steps to a threshold, probability of improvement.

Runs that differ only in their seed are averaged, with 95 % bootstrap intervals; each environment
gets its own panel. A picture (PNG and SVG) and its numbers (CSV and Markdown) are written.
"""

import utils.starting  # noqa: F401

# isort: split
import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis import run_data
from analysis.figures import Labels, draw, save_figure, short_number
from analysis.statistics import NAMES, compare, comparisons_table, results_table, summarize
from utils.command_line import Parser, finite_number, run_program
from utils.errors import UserError
from utils.files import check_writable, write_text

METRIC = "rollout/return_mean"
PICTURES = (".png", ".svg")
USUAL = Labels(METRIC, "steps", "iqm")


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(plot, argv)


def plot(argv: Sequence[str] | None) -> None:
    arguments = parse_arguments(argv)
    check_picture(arguments.output)
    draw_runs(
        arguments.runs,
        arguments.output,
        arguments.by.split(","),
        arguments.panels.split(","),
        Labels(arguments.metric, arguments.axis, arguments.statistic, arguments.threshold),
    )


def draw_runs(
    folders: Sequence[Path],
    picture: Path,
    by: Sequence[str] = ("model",),
    panels: Sequence[str] = ("env",),
    labels: Labels = USUAL,
) -> None:
    """Group and compare runs, print the tables and write picture and numbers.

    Args:
        folders: Run folders, or folders of them.
        picture: The files' common name; whatever its ending, PNG, SVG and numbers are written.
        by: Settings that tell agents apart.
        panels: Settings with one panel per value.
    """
    axis, threshold, output = labels.axis, labels.threshold, picture.with_suffix("")
    notes: list[str] = []
    runs = run_data.read_runs(folders, labels.metric, axis, notes)
    groups = run_data.group_runs(runs, by, notes, panels)
    for environment, name, own in groups:
        first, last = min(run.x[-1] for run in own), max(run.x[-1] for run in own)
        if first < last:
            notes.append(
                f"{name} on {environment}: the runs end between {short_number(first)} and "
                f"{short_number(last)} {axis}; interpolated, and averaged up to the first end"
            )
    results = [summarize(group, labels.statistic, threshold) for group in groups]
    comparisons = compare(results)
    tables = [results_table(results, axis, threshold)]
    if comparisons:
        tables.append(comparisons_table(comparisons))
    print("\n\n".join([*notes, *map(run_data.aligned, tables)]))

    figure = draw(results, comparisons, labels)
    save_figure(figure, output.with_suffix(".png"), output.with_suffix(".svg"))
    write_text(output.with_suffix(".md"), "\n".join(map(run_data.markdown, tables)))
    run_data.write_csv(
        output.with_suffix(".csv"), results_table(results, axis, threshold, precise=True)
    )
    if comparisons:
        pairs = output.with_name(f"{output.name}_improvement.csv")
        run_data.write_csv(pairs, comparisons_table(comparisons, precise=True))
    print(f"\nwritten to {output}.png, .svg, .csv, .md")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="plot.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("runs", metavar="FOLDER", nargs="+", type=Path, help="run folders, or folders of them")
    by = "settings that tell agents apart (model); pretrained: if a run had --init-from"
    add("--by", metavar="KEY,KEY", default="model", help=by)
    add(
        "--panels", metavar="KEY,KEY", default="env", help="settings with one panel per value (env)"
    )
    add("--metric", metavar="NAME", default=METRIC, help=f"a column of metrics.csv ({METRIC})")
    add("--axis", choices=run_data.AXES, default="steps", help="horizontal axis (steps)")
    add("--statistic", choices=NAMES, default="iqm", help="interquartile mean (iqm) or mean")
    score, there = finite_number(-math.inf), "also print when the curves reach this score"
    add("--threshold", metavar="SCORE", type=score, help=there)
    add("--output", metavar="FILE", type=Path, default=Path("curves.png"), help="(curves.png)")
    return parser.parse_args(argv)


def check_picture(path: Path) -> None:
    if path.suffix not in PICTURES or os.path.isdir(path):
        raise UserError(f"--output {path}: name a file ending in {' or '.join(PICTURES)}")
    if not os.path.isdir(path.parent):
        raise UserError(f"--output {path}: there is no folder {path.parent}")
    check_writable(path.parent, "--output")


if __name__ == "__main__":
    sys.exit(main())
