"""FrozenHopfield through the thin tables of an adaptive embedding, beside products with E."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.comparing import Pair, Work
from benchmarks.plain_hopfield import PlainHopfield
from benchmarks.random_models import PUBLISHED, TINY, Size
from models.frozen_hopfield import FrozenHopfield, random_projection
from models.language import AdaptiveEmbeddings

N_IMAGES = 16
SIDE = 56
BETA = 100.0


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare on 16 images never seen before, the vocabulary being Transformer-XL's."""
    size = TINY if quick else PUBLISHED
    tables = sum(tensor.nbytes for tensor in random_embeddings(size).state_dict().values())
    yield Pair(
        f"FrozenHopfield, {size.n_tokens:,} tokens",
        partial(plain, size),
        partial(ours, size),
        rounds=10,
        note=f"{N_IMAGES} images; our tables {tables / 1e6:.0f} MB, "
        f"E {4e-6 * size.n_tokens * size.width:.0f} MB",
    )


def random_embeddings(size: Size) -> AdaptiveEmbeddings:
    """Return embeddings with entries from about N(0, 1)."""
    generator = torch.Generator().manual_seed(0)
    scale = math.sqrt(size.width)
    tables, projections = [], []
    for n_tokens, thin in size.clusters:
        tables.append(torch.randn(n_tokens, thin, generator=generator) / scale)
        projections.append(torch.randn(size.width, thin, generator=generator) / math.sqrt(thin))
    return AdaptiveEmbeddings(tables, projections, scale)


def ours(size: Size) -> Iterator[Work]:
    """Retrieve through the thin tables."""
    return _retrieving(FrozenHopfield(_projection(size), random_embeddings(size), BETA))


def plain(size: Size) -> Iterator[Work]:
    """Retrieve from E."""
    with torch.no_grad():
        table = random_embeddings(size).lookup(torch.arange(size.n_tokens))
    return _retrieving(PlainHopfield(_projection(size), table, BETA))


def _retrieving(retrieve: Callable[[Tensor], Tensor]) -> Iterator[Work]:
    generator = torch.Generator().manual_seed(1)
    while True:
        images = torch.rand(N_IMAGES, 3, SIDE, SIDE, generator=generator)
        yield partial(torch.no_grad()(retrieve), images)


def _projection(size: Size) -> Tensor:
    torch.manual_seed(0)
    return random_projection(size.width, SIDE * SIDE)
