"""Train grid-clip and see which words it finds where it never was: python -m benchmarks.grid_clip.

Views with exactly one object count, if their image was not among those trained on: of layouts
drawn from other seeds, and of tasks never played in training. Words are chosen by cosine from the
whole vocabulary. Nothing is saved.
"""

import argparse
import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from utils.starting import let_waiting_threads_sleep

if __name__ == "__main__":
    let_waiting_threads_sleep()  # OpenMP asks when PyTorch is imported, below

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measuring import Table, in_words, this_machine
from envs.minigrid import draw
from envs.minigrid_captions import (
    HELD_OUT_TASKS,
    NAMED,
    CaptionBatches,
    caption,
    mixed_views,
    only_object,
    played_views,
)
from models.caching import unit_images
from models.grid_clip import GridClip, train_grid_clip, word_shares

HELD_OUT_SEED = 10**6
TOP = 4
WRONG_SHOWN = 6


def new_views(views: Iterator[np.ndarray], seen: set[bytes], n: int) -> np.ndarray:
    """Return those of n views that show one object and are new as an image, each once.

    Returns:
        [P, 7, 7, 3]
    """
    with_one = (view for view in islice(views, n) if only_object(view))
    different = {_digest(draw(view[None])[0]): view for view in with_one}
    return np.stack([view for digest, view in different.items() if digest not in seen])


def nearest_words(encoder: GridClip, words: Tensor, views: np.ndarray) -> list[list[str]]:
    """Return the words nearest to each view, given unit vectors [V, W].  [P][TOP]"""
    features = encoder(unit_images(torch.from_numpy(draw(views))))
    numbers = (F.normalize(features, dim=-1) @ words.T).topk(TOP).indices
    return [[encoder.vocabulary[number] for number in row] for row in numbers.tolist()]


def report(title: str, views: np.ndarray, nearest: list[list[str]]) -> None:
    """Print a line for every object and one for all of them."""
    print(f"\n{title}")
    columns = {"object": "<8", "views": ">7", "top_1": ">8.1%", f"top_{TOP}": ">8.1%"}
    table = Table(**columns, **{f"wrong_in_top_{TOP}": "<1"})
    pairs = zip(views, nearest, strict=True)
    rows = [(only_object(view), caption(view), words) for view, words in pairs]
    for noun in (*NAMED, None):
        found = [row for row in rows if noun in (row[0], None)]
        if not found:
            continue
        first, among = (
            sum(of in words[:k] for of, _, words in found) / len(found) for k in (1, TOP)
        )
        wrong = Counter(
            word for _, text, words in found for word in words if word not in word_shares(text)
        )
        shown = ", ".join(f"{word} {count}" for word, count in wrong.most_common(WRONG_SHOWN))
        table.row(noun or "all", len(found), first, among, shown)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train and try grid-clip.")
    parser.add_argument("--seed", type=int, default=0, help="of images and initial weights")
    parser.add_argument("--views", type=int, default=15_000, help="looked through in either test")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    batches = CaptionBatches(arguments.seed)
    begun, begun_cpu = time.perf_counter(), time.process_time()
    encoder = train_grid_clip(batches, arguments.seed)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
    seen = {_digest(image) for images, _ in batches for image in images}
    words = F.normalize(encoder.embed_texts(encoder.vocabulary), dim=-1)
    tests = {
        "held-out layouts": mixed_views(HELD_OUT_SEED),
        "held-out tasks": played_views(HELD_OUT_TASKS, HELD_OUT_SEED),
    }
    for title, all_views in tests.items():
        views = new_views(all_views, seen, arguments.views)
        report(title, views, nearest_words(encoder, words, views))
    print(f"\n{len(words)} words; trained in {seconds:.0f} s ({cpu:.0f} s of processor time)")
    print(in_words(this_machine()))
    return 0


def _digest(image: np.ndarray) -> bytes:
    return hashlib.sha256(image.tobytes()).digest()


if __name__ == "__main__":
    raise SystemExit(main())
