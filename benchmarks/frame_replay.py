"""Fill a replay of frames on the disk, then measure its cost and that of a batch from it.

Run: python -m benchmarks.frame_replay [--rows 1000000] [--folder FOLDER]

Frames are of 84 x 84 random bytes, a sentence's number beside each, 16 environments, episodes of
200 steps, like the replay of NStepDQN on CrafterText. A million of them take 7.1 GB of the folder,
which is emptied afterwards. Batches of 64 are drawn first from files the system may still hold in
its own memory, then from files it was asked to forget, as where the machine has little to spare.
"""

import itertools
import os
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from analysis.run_data import aligned
from benchmarks.measuring import in_words, measure, peak_megabytes, this_machine
from models.observations import Observations
from trainers import build  # noqa: F401  settings know no part before
from trainers.frame_replay import FrameReplay, FrameReplaySettings
from utils.command_line import Parser, run_program, whole_number
from utils.settings import load_config

N_ENVS, LENGTH, BATCH, N_BATCHES = 16, 200, 64, 200
SIDE, N_ACTIONS, FRAME_STACK = 84, 139, 4
MOST_ROWS = 10**9


def main(argv: Sequence[str] | None = None) -> int:
    """Measure as the command line says and return the exit status."""
    return run_program(run, argv)


def run(argv: Sequence[str] | None) -> None:
    """Fill, draw, and print the figures."""
    parser = Parser(
        prog="python -m benchmarks.frame_replay",
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=ArgumentDefaultsHelpFormatter,
    )
    n_rows = whole_number(N_ENVS * (LENGTH + 1), MOST_ROWS)
    parser.add_argument("--rows", metavar="N", type=n_rows, default=10**6, help="rows to keep")
    parser.add_argument("--folder", type=Path, help="a folder on the disk that is meant")
    arguments = parser.parse_args(argv)
    print(in_words(this_machine()))
    with TemporaryDirectory(dir=arguments.folder) as folder:
        table = [("", ""), *measured(Path(folder), arguments.rows)]
    print(aligned(table))


def measured(folder: Path, n_rows: int) -> Iterator[tuple[str, str]]:
    """Yield names and figures."""
    settings = {"model": "ELLM", "algorithm": "NStepDQN", "replay_capacity": n_rows}
    config = load_config(values=settings)
    assert isinstance(config, FrameReplaySettings)
    shown = _shown(np.random.default_rng(0))
    replay = FrameReplay(config, FRAME_STACK, folder, next(shown))
    before = peak_megabytes()
    begun = time.perf_counter()
    _fill(replay, shown, n_rows)
    replay.state_dict()
    seconds = time.perf_counter() - begun
    yield "rows", f"{replay.n_rows:,}"
    yield "written, rows/s", f"{replay.n_rows / seconds:,.0f}"
    on_disk = sum(file.stat().st_size for file in folder.iterdir())
    yield "on the disk", f"{on_disk / 1e9:.2f} GB"
    yield "a checkpoint of it", _ms(replay.state_dict)
    draw = partial(replay.sample, BATCH)
    yield f"a batch of {BATCH}", _ms(draw, N_BATCHES)
    _forget(folder)
    yield "a batch, first time from the disk", _ms(draw, N_BATCHES)
    after = peak_megabytes()
    yield "most memory of the process", f"{after:,.0f} MB, {after - before:,.0f} of them since"


def _fill(replay: FrameReplay, shown: Iterator[Observations], n_rows: int) -> None:
    """Add whole episodes until the replay is full."""
    actions = torch.arange(N_ENVS) % N_ACTIONS
    rewards, ended = torch.zeros(N_ENVS), torch.zeros(N_ENVS, dtype=torch.bool)
    n_rounds = n_rows // (N_ENVS * (LENGTH + 1))
    for _ in tqdm(range(n_rounds), unit=" rounds of episodes", disable=n_rounds < 50):
        for step in range(1, LENGTH + 1):
            replay.add(next(shown), actions, rewards, ended | (step == LENGTH))
        for env in range(N_ENVS):
            replay.end(env, next(shown))


def _shown(numbers: np.random.Generator) -> Iterator[Observations]:
    """Yield the observations of all environments, no two alike."""
    while True:
        frames = numbers.integers(0, 256, (N_ENVS, 1, SIDE, SIDE), dtype=np.uint8)
        sentences = numbers.integers(0, 1000, (N_ENVS, 1))
        yield Observations(images=torch.from_numpy(frames), text=torch.from_numpy(sentences))


def _ms(work: Callable[[], Any], rounds: int = 1) -> str:
    return f"{measure(lambda: itertools.repeat(work), rounds).ms:.1f} ms"


def _forget(folder: Path) -> None:
    """Ask the system to let go of its copies of files."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    sys.exit(main())
