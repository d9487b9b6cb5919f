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
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.figures import PICTURES, TEX, FigureSize, Labels, check_picture, draw_runs
from analysis.run_data import AXES
from analysis.statistics import NAMES
from utils.command_line import Parser, finite_number, run_program
from utils.loggers import RETURN

MOST_INCHES = 100


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(plot, argv)


def plot(argv: Sequence[str] | None) -> None:
    arguments = parse_arguments(argv)
    check_picture(arguments.output)
    how = arguments.axis, arguments.statistic, arguments.threshold, arguments.size
    groups = arguments.by.split(","), arguments.panels.split(",")
    renaming = dict(arguments.rename)
    metrics = dict.fromkeys(arguments.metric.split(","))
    for metric in metrics:
        place = arguments.output
        if len(metrics) > 1:
            place = place.with_stem(f"{place.stem}_{metric.replace('/', '_')}")
        labels, ignore = Labels(metric, *how), list(filter(None, arguments.ignore.split(",")))
        draw_runs(arguments.runs, place, *groups, labels, arguments.format, ignore, renaming)


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
    all_the_same = "settings or facts that averaged runs may differ in, such as environment"
    add("--ignore", metavar="KEY,KEY", default="", help=all_the_same)
    others = "another name of an agent or an environment, repeatable"
    columns = f"columns of metrics.csv, a picture for each ({RETURN})"
    add("--rename", metavar="OLD=NEW", action="append", default=[], type=renamed, help=others)
    inches = "inches of the picture, and points of its letters (10)"
    add("--size", metavar="WIDTH,HEIGHT[,POINTS]", type=size, help=inches)
    add("--metric", metavar="NAME,NAME", default=RETURN, help=columns)
    add("--axis", choices=AXES, default="steps", help="horizontal axis (steps)")
    add("--statistic", choices=NAMES, default="iqm", help="interquartile mean (iqm) or mean")
    score, there = finite_number(-math.inf), "also print when the curves reach this score"
    add("--threshold", metavar="SCORE", type=score, help=there)
    add("--output", metavar="FILE", type=Path, default=Path("curves.png"), help="(curves.png)")
    kinds = "png, svg, pdf, and tex for pgfplots (png,svg)"
    add("--format", metavar="KIND,KIND", type=formats, default=PICTURES[:2], help=kinds)
    return parser.parse_args(argv)


def renamed(text: str) -> tuple[str, str]:
    # An agent's name may have an equals sign itself: HELM, beta=1.0=ours
    old, _, new = text.rpartition("=")
    if not (old and new):
        raise argparse.ArgumentTypeError(f"'{text}' is not OLD=NEW")
    return old, new


def size(text: str) -> FigureSize:
    numbers = text.split(",")
    if len(numbers) not in (2, 3):
        raise argparse.ArgumentTypeError(f"'{text}' is not WIDTH,HEIGHT or WIDTH,HEIGHT,POINTS")
    return FigureSize(*map(finite_number(1, MOST_INCHES), numbers))


def formats(text: str) -> list[str]:
    endings = [f".{kind}" for kind in text.split(",")]
    allowed = (*PICTURES, TEX)
    if wrong := [ending for ending in endings if ending not in allowed]:
        known = ", ".join(each[1:] for each in allowed)
        raise argparse.ArgumentTypeError(f"'{wrong[0][1:]}' is none of {known}")
    return endings


if __name__ == "__main__":
    sys.exit(main())
