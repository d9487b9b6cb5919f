"""Train grid-clip and see which words it finds in new views: python -m benchmarks.grid_clip.

Views with exactly one object count, if their image was not among those trained on: of layouts
drawn from other seeds, and of tasks never played in training. Words are chosen by cosine from the
whole vocabulary. Nothing is saved.
"""

import argparse
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
from envs import minigrid_captions
from envs.minigrid import draw
from envs.minigrid_captions import HELD_OUT_TASKS, NAMED, CaptionBatches, caption, only_object
from models.caching import to_float01
from models.grid_clip import GridClip, train_grid_clip, word_shares

HELD_OUT_SEED = 10**6
TOP = 4
WRONG_SHOWN = 6


def new_views(views: Iterator[np.ndarray], seen: set[int], n: int) -> np.ndarray:
    """Return those of n views that show one object in a new image, each once.  [P, 7, 7, 3]"""
    with_one = (view for view in islice(views, n) if only_object(view))
    different = {hash(draw(view[None]).tobytes()): view for view in with_one}
    return np.stack([view for image, view in different.items() if image not in seen])


def nearest_words(encoder: GridClip, words: Tensor, views: np.ndarray) -> list[list[str]]:
    """Return the words nearest to each view, given unit vectors [V, W].  [P][TOP]"""
    features = encoder(to_float01(torch.from_numpy(draw(views))))
    numbers = (F.normalize(features, dim=-1) @ words.T).topk(TOP).indices
    return [[encoder.vocabulary[number] for number in row] for row in numbers.tolist()]


def report(title: str, views: np.ndarray, nearest: list[list[str]]) -> None:
    print(f"\n{title}")
    columns = {"object": "<8", "views": ">7", "top_1": ">8.1%", f"top_{TOP}": ">8.1%"}
    table = Table(**columns, **{f"wrong_in_top_{TOP}": "<1"})
    pairs = zip(views, nearest, strict=True)
    rows = [(only_object(view), word_shares(caption(view)), words) for view, words in pairs]
    for noun in (*NAMED, None):
        found = [row for row in rows if noun in (row[0], None)]
        if found:
            tops = (np.mean([of in words[:k] for of, _, words in found]) for k in (1, TOP))
            wrong = Counter(
                word for _, right, words in found for word in words if word not in right
            )
            shown = ", ".join(f"{word} {count}" for word, count in wrong.most_common(WRONG_SHOWN))
            table.row(noun or "all", len(found), *map(float, tops), shown)


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
    seen = {hash(image.tobytes()) for images, _ in batches for image in images}
    words = F.normalize(encoder.embed_texts(encoder.vocabulary), dim=-1)
    tests = {
        "held-out layouts": minigrid_captions.mixed_views(HELD_OUT_SEED),
        "held-out tasks": minigrid_captions.played_views(HELD_OUT_TASKS, HELD_OUT_SEED),
    }
    for title, all_views in tests.items():
        views = new_views(all_views, seen, arguments.views)
        report(title, views, nearest_words(encoder, words, views))
    print(f"\n{len(words)} words; trained in {seconds:.0f} s ({cpu:.0f} s of processor time)")
    print(in_words(this_machine()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
