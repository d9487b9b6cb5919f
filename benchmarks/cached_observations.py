"""HELM's observation → language behind the observation cache, beside computing every image."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from benchmarks import played
from benchmarks.comparing import Pair, Work
from benchmarks.random_models import MINILM
from models.frozen_hopfield import FrozenHopfield, random_projection
from models.images import unit_images
from models.language import load_language_model
from models.observation_cache import ObservationCache

MEGABYTES = 256
STEPS = 16  # a single one is over too soon to be timed


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare with the cache holding what was seen before, new images still coming."""
    n_before = 16 if quick else 1000
    yield Pair(
        "observation cache, HELM with MiniLM",
        partial(plain, n_before),
        partial(ours, n_before),
        rounds=2 if quick else 20,
        repeats=1,
        steps=STEPS,
        note=f"KeyCorridor played at random, {played.N_ENVS} environments, {n_before} steps before",
    )


def ours(n_before: int) -> Iterator[Work]:
    """Look images up, computing those never seen."""
    hopfield = _hopfield()
    cache = ObservationCache(
        lambda images: hopfield(unit_images(images)), MEGABYTES, hopfield.block_size
    )
    stream = played.images()
    for images in islice(stream, n_before):
        cache(images)
    while True:
        yield partial(_read, cache, list(islice(stream, STEPS)))


def plain(n_before: int) -> Iterator[Work]:
    """Compute every image."""
    hopfield = _hopfield()
    stream = played.images()
    list(islice(stream, n_before))
    while True:
        yield partial(
            _read, lambda images: hopfield(unit_images(images)), list(islice(stream, STEPS))
        )


@torch.no_grad()
def _read(to_language: Callable[[Tensor], Tensor], steps: list[Tensor]) -> Tensor:
    return torch.cat([to_language(images) for images in steps])


def _hopfield() -> FrozenHopfield:
    torch.manual_seed(0)
    embeddings = load_language_model(MINILM).embeddings
    side = 56
    return FrozenHopfield(random_projection(embeddings.width, side * side), embeddings, 100.0)
