"""From observations to language: retrieval through thin tables, and images seen before.

FrozenHopfield through the tables of an adaptive embedding stands beside products with all of E,
HELM's observation cache beside computing every image.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from benchmarks.environments import N_ENVS, seen_images
from benchmarks.measuring import Pair, Work
from benchmarks.random_models import MINILM, PUBLISHED, TINY, Size
from models.caching import ObservationCache, to_float01
from models.language.layers import AdaptiveEmbeddings
from models.language.load import load_language_model
from models.observation_to_language import FrozenHopfield, random_projection

N_IMAGES = 16
SIDE = 56
BETA = 100.0
MEGABYTES = 256
STEPS = 16  # a single one is over too soon to be timed


def hopfield(quick: bool) -> Iterator[Pair]:
    size = TINY if quick else PUBLISHED
    tables = sum(tensor.nbytes for tensor in random_embeddings(size).state_dict().values())
    whole = 4e-6 * size.n_tokens * size.width
    yield Pair(
        f"FrozenHopfield, {size.n_tokens:,} tokens",
        partial(retrieving, size, plain=True),
        partial(retrieving, size, plain=False),
        note=f"{N_IMAGES} images; our tables {tables / 1e6:.0f} MB, E {whole:.0f} MB",
    )


def cache(quick: bool) -> Iterator[Pair]:
    n_before = 16 if quick else 1000
    yield Pair(
        "observation cache, HELM with MiniLM",
        partial(reading, n_before, False),
        partial(reading, n_before, True),
        steps=STEPS,
        note=f"KeyCorridor played at random, {N_ENVS} environments, {n_before} steps before",
    )


def random_embeddings(size: Size) -> AdaptiveEmbeddings:
    generator = torch.Generator().manual_seed(0)
    scale = math.sqrt(size.width)
    tables, projections = [], []
    for n_tokens, thin in size.clusters:
        tables.append(torch.randn(n_tokens, thin, generator=generator) / scale)
        projections.append(torch.randn(size.width, thin, generator=generator) / math.sqrt(thin))
    return AdaptiveEmbeddings(tables, projections, scale)


def retrieving(size: Size, plain: bool) -> Iterator[Work]:
    torch.manual_seed(0)
    projection, embeddings = random_projection(size.width, SIDE * SIDE), random_embeddings(size)
    if plain:
        retrieve = plain_hopfield(projection, embeddings.lookup(torch.arange(size.n_tokens)))
    else:
        retrieve = FrozenHopfield(projection, embeddings, BETA)
    generator = torch.Generator().manual_seed(1)
    while True:
        images = torch.rand(N_IMAGES, 3, SIDE, SIDE, generator=generator)
        yield partial(torch.no_grad()(retrieve), images)


def reading(n_before: int, cached: bool) -> Iterator[Work]:
    torch.manual_seed(0)
    embeddings = load_language_model(MINILM).embeddings
    retrieve = FrozenHopfield(random_projection(embeddings.width, SIDE * SIDE), embeddings, BETA)

    def compute(images: Tensor) -> Tensor:
        return retrieve(to_float01(images))

    to_language = ObservationCache(compute, MEGABYTES, retrieve.block_size) if cached else compute
    stream = seen_images()
    for images in islice(stream, n_before):
        to_language(images)
    while True:
        yield partial(_read, to_language, list(islice(stream, STEPS)))


@torch.no_grad()
def _read(to_language: Callable[[Tensor], Tensor], steps: list[Tensor]) -> Tensor:
    return torch.cat([to_language(images) for images in steps])


def plain_hopfield(projection: Tensor, embeddings: Tensor) -> Callable[[Tensor], Tensor]:
    """Return retrieval by products with P [D, H*W] and E [V, D] (HELM, arXiv:2205.12258, 3).

    y = softmax(beta cos(E, P x)) E
    """
    norms = embeddings.norm(dim=1)

    def retrieve(images: Tensor) -> Tensor:
        """Map images in [0, 1], [N, C, H, W], to tokens [N, 1, D]."""
        state = images.mean(1).flatten(1) @ projection.T  # [N, D]
        lengths = state.norm(dim=-1, keepdim=True) * norms
        similarities = state @ embeddings.T / (lengths + 1e-8)  # [N, V]
        return ((BETA * similarities).softmax(-1) @ embeddings)[:, None]

    return retrieve
