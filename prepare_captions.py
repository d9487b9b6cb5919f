"""Prepare what reads CrafterText's captions from pixels: train it, say how good it is."""

import utils.starting  # noqa: F401

# isort: split
import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from envs.crafter.captions import Accuracy, TiledFrameBatches, accuracy
from envs.crafter.sentences import N_KINDS
from models.clip import DATA_FOLDER
from models.tile_reader import FILE, TileReader, load_tile_reader, train_tile_reader
from utils.command_line import Parser, run_program, whole_number
from utils.files import alone_with, check_writable

SEED = 0  # of the pictures it learns from, and of its first weights
N_BATCHES = 1200  # of 64 pictures


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare as the command line says and return the exit status."""
    return run_program(run, argv)


def run(argv: Sequence[str] | None) -> None:
    """Train the reader if there is none yet, and print how often it is right."""
    arguments = parse_arguments(argv)
    folder = arguments.data_folder
    check_writable(folder, "--data-folder")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    with alone_with(path):
        is_new = not path.is_file()
        if is_new:
            trained(arguments.n_batches).save(folder)
    print(table(Accuracy(**load_tile_reader(folder).about["accuracy"])))
    print(f"{path} is written" if is_new else f"{path} is up to date, nothing to be done")


def trained(n_batches: int) -> TileReader:
    """Return a reader that has seen so many batches, and how often it is right."""
    reader = train_tile_reader(TiledFrameBatches(SEED, n_batches), N_KINDS, SEED)
    return TileReader(reader.network, {"accuracy": accuracy(reader)._asdict()})


def table(figures: Accuracy) -> str:
    """Return how often a reader is right, as lines of text."""
    whats = list(figures.shares["all"])
    lines = [" " * 10 + "".join(f"{what:>11}" for what in whats)]
    for when, shares in figures.shares.items():
        lines.append(f"{when:10}" + "".join(_share(shares.get(what, math.nan)) for what in whats))
    lines.append(f"\n{'in view':10}{'pictures':>11}{'found':>11}{'right':>11}")
    for name, of_name in figures.names.items():
        lines.append(f"{name:10}" + "".join(map(_share, of_name)))
    return "\n".join(lines)


def _share(share: float) -> str:
    return f"{'-':>11}" if math.isnan(share) else f"{share:11.2%}"


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(
        prog="prepare_captions.py",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add, number = parser.add_argument, whole_number(1, 1_000_000)
    batches = "batches of 64 pictures to learn from"
    add("--n-batches", metavar="N", type=number, default=N_BATCHES, help=batches)
    where = "where the file is"
    add("--data-folder", metavar="FOLDER", type=Path, default=DATA_FOLDER, help=where)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
