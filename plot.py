"""Draw the learning curves of run folders as a PNG, one line an agent, its seeds averaged."""

import argparse
import csv
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from utils.command_line import Parser, run_program
from utils.errors import UserError
from utils.folders import check_writable
from utils.metrics import FILE

METRIC = "rollout/return_mean"
PICTURES = (".png", ".pdf", ".svg", ".jpg")


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what the command line names and return the exit status."""
    return run_program(plot, argv)


def plot(argv: Sequence[str] | None) -> None:
    """Read the runs, group them by agent, draw and write the picture."""
    arguments = parse_arguments(argv)
    check_picture(arguments.output)
    curves: dict[str, list[np.ndarray]] = {}
    for folder in arguments.runs:
        curves.setdefault(agent_of(folder), []).append(read_curve(folder, arguments.metric))
    draw(curves, arguments.metric, arguments.output)
    for agent, runs in sorted(curves.items()):
        finals = [run[-1, 1] for run in runs]
        print(f"{agent:12s} {len(runs)} runs, last value {np.mean(finals):.3f}")
    print(f"written to {arguments.output}")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(prog="plot.py", description=__doc__)
    parser.add_argument("runs", metavar="RUN_FOLDER", nargs="+", type=Path)
    parser.add_argument("--metric", default=METRIC, help=f"a column of metrics.csv ({METRIC})")
    parser.add_argument("--output", metavar="FILE", type=Path, default=Path("curves.png"))
    return parser.parse_args(argv)


def check_picture(path: Path) -> None:
    """Raise UserError unless a picture can be written there."""
    if path.suffix.lower() not in PICTURES or os.path.isdir(path):
        raise UserError(f"--output {path}: name a file ending in {', '.join(PICTURES)}")
    if not os.path.isdir(path.parent):
        raise UserError(f"--output {path}: there is no folder {path.parent}")
    check_writable(path.parent, "--output")


def agent_of(folder: Path) -> str:
    """Return the name of the agent a run trained."""
    try:
        return str(json.loads((folder / "config.json").read_text(encoding="utf-8"))["model"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{folder}: not a run folder, it has no config.json with a model") from None


def read_curve(folder: Path, metric: str) -> np.ndarray:
    """Return environment steps and values of one run.  [rows, 2]"""
    try:
        with (folder / FILE).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        raise UserError(f"{folder / FILE} is missing. Name folders that main.py wrote") from None
    except (ValueError, csv.Error) as error:
        raise UserError(f"{folder / FILE}: not a table of main.py ({error})") from None
    if not rows:
        raise UserError(f"{folder / FILE} has no rows yet")
    if any(None in row for row in rows):  # where DictReader puts what is beyond the last column
        raise UserError(f"{folder / FILE}: not a table of main.py (a row is too long)")
    if metric not in rows[0]:
        raise UserError(f"--metric {metric}: not a column of {folder / FILE}: {', '.join(rows[0])}")
    try:
        return np.array([[float(row["env_steps"]), float(row[metric])] for row in rows])
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{folder / FILE}: env_steps and {metric} are not numbers in every row"
        ) from None


def draw(curves: dict[str, list[np.ndarray]], metric: str, output: Path) -> None:
    """Draw each agent's mean over its runs, and the runs themselves where there are several."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["text.parse_math"] = False  # names are shown as they are
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for colour, (agent, runs) in enumerate(sorted(curves.items())):
        n_rows = min(len(run) for run in runs)
        steps = runs[0][:n_rows, 0]
        mean = np.mean([run[:n_rows, 1] for run in runs], axis=0)
        if len(runs) > 1:
            for run in runs:
                axes.plot(run[:, 0], run[:, 1], color=f"C{colour}", alpha=0.25, linewidth=0.8)
        axes.plot(steps, mean, color=f"C{colour}", label=f"{agent} ({len(runs)})")
    axes.set_xlabel("environment steps")
    axes.set_ylabel(metric)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
    axes.grid(alpha=0.3)
    axes.legend(title="agent (runs)", frameon=False)
    figure.savefig(output, dpi=150)


if __name__ == "__main__":
    sys.exit(main())
