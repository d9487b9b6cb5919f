"""Compare runs: learning curves, final scores, steps to a threshold, probability of improvement.

Runs that differ only in their seed are averaged, with 95 % bootstrap intervals; each environment
gets its own panel. A picture (PNG and SVG, or --format pdf,tex) and its numbers (CSV and Markdown)
are written. Agents that were all run in several environments are compared over these by normalised
scores: interquartile means and performance profiles (Agarwal et al. 2021, arXiv:2108.13264).
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
from analysis.figures import Labels, draw, draw_aggregates, pgfplots, save_figure, short_number
from analysis.statistics import (
    NAMES,
    aggregate,
    aggregates_table,
    compare,
    comparisons_table,
    profiles_table,
    results_table,
    summarize,
)
from utils.command_line import Parser, finite_number, run_program
from utils.errors import UserError
from utils.files import check_writable, write_text

METRIC = "rollout/return_mean"
PICTURES, TEX = (".png", ".svg", ".pdf"), ".tex"
USUAL = Labels(METRIC, "steps", "iqm")


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(plot, argv)


def plot(argv: Sequence[str] | None) -> None:
    arguments = parse_arguments(argv)
    check_picture(arguments.output)
    how = arguments.axis, arguments.statistic, arguments.threshold
    groups = arguments.by.split(","), arguments.panels.split(",")
    metrics = dict.fromkeys(arguments.metric.split(","))
    for metric in metrics:
        place = arguments.output
        if len(metrics) > 1:
            place = place.with_stem(f"{place.stem}_{metric.replace('/', '_')}")
        draw_runs(arguments.runs, place, *groups, Labels(metric, *how), arguments.format)


def draw_runs(
    folders: Sequence[Path],
    picture: Path,
    by: Sequence[str] = ("model",),
    panels: Sequence[str] = ("env",),
    labels: Labels = USUAL,
    endings: Sequence[str] = PICTURES[:2],
) -> None:
    """Group and compare runs, print the tables and write picture and numbers.

    Args:
        folders: Run folders, or folders of them.
        picture: The files' common name.
        by: Settings that tell agents apart.
        panels: Settings with one panel per value.
        endings: Of the files beside the numbers.
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
    if aggregates := aggregate(results):
        tables.append(aggregates_table(aggregates))
    print("\n\n".join([*notes, *map(run_data.aligned, tables)]))

    def beside(addition: str, ending: str) -> Path:
        return output.with_name(f"{output.name}{addition}{ending}")

    endings = list(dict.fromkeys([*endings, picture.suffix]))
    pictures = [ending for ending in endings if ending in PICTURES]
    save_figure(draw(results, comparisons, labels), *(beside("", each) for each in pictures))
    if TEX in endings:
        write_text(beside("", TEX), pgfplots(results, labels))
    if aggregates:
        every = draw_aggregates(aggregates)
        save_figure(every, *(beside("_aggregate", each) for each in pictures))
        run_data.write_csv(beside("_aggregate", ".csv"), aggregates_table(aggregates, precise=True))
        run_data.write_csv(beside("_profile", ".csv"), profiles_table(aggregates))
    write_text(output.with_suffix(".md"), "\n".join(map(run_data.markdown, tables)))
    run_data.write_csv(
        output.with_suffix(".csv"), results_table(results, axis, threshold, precise=True)
    )
    if comparisons:
        pairs = comparisons_table(comparisons, precise=True)
        run_data.write_csv(beside("_improvement", ".csv"), pairs)
    print(f"\nwritten to {output}{', '.join([*endings, '.csv', '.md'])}")


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
    columns = f"columns of metrics.csv, a picture for each ({METRIC})"
    add("--metric", metavar="NAME,NAME", default=METRIC, help=columns)
    add("--axis", choices=run_data.AXES, default="steps", help="horizontal axis (steps)")
    add("--statistic", choices=NAMES, default="iqm", help="interquartile mean (iqm) or mean")
    score, there = finite_number(-math.inf), "also print when the curves reach this score"
    add("--threshold", metavar="SCORE", type=score, help=there)
    add("--output", metavar="FILE", type=Path, default=Path("curves.png"), help="(curves.png)")
    kinds = "png, svg, pdf, and tex for pgfplots (png,svg)"
    add("--format", metavar="KIND,KIND", type=formats, default=PICTURES[:2], help=kinds)
    return parser.parse_args(argv)


def formats(text: str) -> list[str]:
    endings = [f".{kind}" for kind in text.split(",")]
    allowed = (*PICTURES, TEX)
    if wrong := [ending for ending in endings if ending not in allowed]:
        known = ", ".join(each[1:] for each in allowed)
        raise argparse.ArgumentTypeError(f"'{wrong[0][1:]}' is none of {known}")
    return endings


def check_picture(path: Path) -> None:
    if path.suffix not in (*PICTURES, TEX) or os.path.isdir(path):
        raise UserError(f"--output {path}: name a file ending in {', '.join(PICTURES)} or {TEX}")
    if not os.path.isdir(path.parent):
        raise UserError(f"--output {path}: there is no folder {path.parent}")
    check_writable(path.parent, "--output")


if __name__ == "__main__":
    sys.exit(main())
