"""Train the tile reader, which reads CrafterText's captions from pixels, and print its accuracy."""

import utils.starting  # noqa: F401

# isort: split
import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from envs.crafter.captions import Accuracy, TiledFrameBatches, accuracy
from envs.crafter.sentences import N_KINDS
from envs.crafter.tile_reader import FILE, TileReader, load_tile_reader, train_tile_reader
from utils.command_line import Parser, run_program, whole_number
from utils.files import DATA_FOLDER, check_writable, file_lock

SEED = 0  # of the training pictures and the initial weights
N_BATCHES = 1200  # of 64 pictures


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(run, argv)


def run(argv: Sequence[str] | None) -> None:
    arguments = parse_arguments(argv)
    folder = arguments.data_folder
    check_writable(folder, "--data-folder")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    with file_lock(path):  # two calls at once train it once
        is_new = not path.is_file()
        if is_new:
            batches = TiledFrameBatches(SEED, arguments.n_batches)
            reader = train_tile_reader(batches, N_KINDS, SEED)
            # The file keeps the accuracy on unseen pictures beside the weights.
            TileReader(reader.network, {"accuracy": accuracy(reader)._asdict()}).save(folder)
    print(table(Accuracy(**load_tile_reader(folder).about["accuracy"])))
    print(f"{path} is written" if is_new else f"{path} is up to date, nothing to be done")


def table(figures: Accuracy) -> str:
    columns = list(figures.shares["all"])
    lines = [" " * 10 + "".join(f"{column:>11}" for column in columns)]
    for when, shares in figures.shares.items():
        cells = [_share(shares.get(column, math.nan)) for column in columns]
        lines.append(f"{when:10}" + "".join(cells))
    lines.append(f"\n{'in view':10}{'pictures':>11}{'found':>11}{'right':>11}")
    for name, of_name in figures.names.items():
        lines.append(f"{name:10}" + "".join(map(_share, of_name)))
    return "\n".join(lines)


def _share(share: float) -> str:
    return f"{'-':>11}" if math.isnan(share) else f"{share:11.2%}"


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="prepare_captions.py",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add, number = parser.add_argument, whole_number(1, 1_000_000)
    batches = "training batches of 64 pictures"
    add("--n-batches", metavar="N", type=number, default=N_BATCHES, help=batches)
    where = "folder of the file"
    add("--data-folder", metavar="FOLDER", type=Path, default=DATA_FOLDER, help=where)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
