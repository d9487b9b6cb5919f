"""Fill a replay of frames on the disk, then measure its cost and that of a batch from it.

Run: python -m benchmarks.frame_replay [--rows 1000000] [--folder FOLDER]

Frames are of 84 x 84 random bytes, 16 environments, episodes of 200 steps, like the replay of
EllmDQN on CrafterText. A million of them take 7.1 GB of the folder, which is emptied afterwards.
"""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.measuring import in_words, measure, peak_megabytes, this_machine
from models.observations import Observations
from trainers import parts  # noqa: F401  settings know no part before
from trainers.frame_replay import FrameReplay
from utils.command_line import Parser, run_program, whole_number
from utils.given_settings import load_config

N_ENVS, LENGTH, BATCH, N_BATCHES = 16, 200, 64, 200
SIDE, N_ACTIONS, FRAME_STACK = 84, 139, 4
MOST_ROWS = 10**9


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(run, argv)


def run(argv: Sequence[str] | None) -> None:
    parser = Parser(prog="python -m benchmarks.frame_replay", description=__doc__)
    n_rows, told = whole_number(N_ENVS * (LENGTH + 1), MOST_ROWS), "rows to keep, else a million"
    parser.add_argument("--rows", metavar="N", type=n_rows, default=10**6, help=told)
    parser.add_argument("--folder", type=Path, help="a folder on the disk that is meant")
    arguments = parser.parse_args(argv)
    print(in_words(this_machine()))
    with TemporaryDirectory(dir=arguments.folder) as folder:
        for name, figure in measured(Path(folder), arguments.rows):
            print(f"{name:34}  {figure:>30}", flush=True)


def measured(folder: Path, n_rows: int) -> Iterator[tuple[str, str]]:
    settings = {"model": "ELLM", "algorithm": "EllmDQN", "replay_capacity": n_rows}
    config: Any = load_config(values=settings)
    shown = _shown()
    replay = FrameReplay(config, FRAME_STACK, folder, next(shown))
    before, begun = peak_megabytes(), time.perf_counter()
    _fill(replay, shown, n_rows)
    replay.state_dict()
    seconds = time.perf_counter() - begun
    yield "rows", f"{replay.n_rows:,}"
    yield "written, rows/s", f"{replay.n_rows / seconds:,.0f}"
    on_disk = sum(file.stat().st_size for file in folder.iterdir())
    yield "on the disk", f"{on_disk / 1e9:.2f} GB"
    yield "a checkpoint of it", _ms(replay.state_dict, 1)
    draw = partial(replay.sample, BATCH)
    # First from files that the system may still hold in its memory, then as on a machine with
    # little memory to spare.
    yield f"a batch of {BATCH}", _ms(draw, N_BATCHES)
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    yield "a batch, first time from the disk", _ms(draw, N_BATCHES)
    after = peak_megabytes()
    yield "most memory of the process", f"{after:,.0f} MB, {after - before:,.0f} of them since"


def _fill(replay: FrameReplay, shown: Iterator[Observations], n_rows: int) -> None:
    actions = torch.arange(N_ENVS) % N_ACTIONS
    rewards, ended = torch.zeros(N_ENVS), torch.zeros(N_ENVS, dtype=torch.bool)
    n_rounds = n_rows // (N_ENVS * (LENGTH + 1))
    for _ in tqdm(range(n_rounds), unit=" rounds of episodes", disable=n_rounds < 50):
        for step in range(1, LENGTH + 1):
            replay.add(next(shown), actions, rewards, ended | (step == LENGTH))
        for env in range(N_ENVS):
            replay.end(env, next(shown))


def _shown() -> Iterator[Observations]:
    numbers = np.random.default_rng(0)
    while True:
        frames = numbers.integers(0, 256, (N_ENVS, 1, SIDE, SIDE), dtype=np.uint8)
        sentences = numbers.integers(0, 1000, (N_ENVS, 1))
        yield Observations(images=torch.from_numpy(frames), text=torch.from_numpy(sentences))


def _ms(work: Callable[[], Any], rounds: int) -> str:
    return f"{measure(lambda: itertools.repeat(work), rounds).ms:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
