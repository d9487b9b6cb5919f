"""A step of the Transformer-XL memory beside recomputing every slot: the published size.

18 layers, D=1024, 16 heads, M=511, 16 environments, one token a step; the weights are random and
the vocabulary is tiny, since a step never touches it.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks import reading
from benchmarks.comparing import Pair, Work
from benchmarks.plain_transformer_xl import PlainTransformerXL
from benchmarks.random_models import TINY, WITHOUT_VOCABULARY, RandomTransformerXL, Size
from benchmarks.reading import Store
from models.language.transformer_xl import TransformerXL


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare with the store full, and with episodes of 100 steps."""
    size, mem_len = (TINY, 12) if quick else (WITHOUT_VOCABULARY, 511)
    n_envs, episode = (3, 6) if quick else (16, 100)
    for store in (Store.full(n_envs, mem_len), Store.staggered(n_envs, episode)):
        yield Pair(
            f"Transformer-XL step, {store.name}",
            partial(plain, size, mem_len, store),
            partial(reading.ours, partial(random_model, size, mem_len), store),
            note=f"{size.n_layer} layers, mem_len {mem_len}, {n_envs} environments",
        )


def random_model(
    size: Size, mem_len: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> TransformerXL:
    """Return our version."""
    return TransformerXL(RandomTransformerXL(size), mem_len).to(device).pack(dtype)


def plain(size: Size, mem_len: int, store: Store) -> Iterator[Work]:
    """Step the plain version through a store."""
    model = PlainTransformerXL(RandomTransformerXL(size), mem_len)
    episodes = zip(store.history(size.width), store.ages, strict=True)
    slots = torch.cat([_slots_after(model, tokens[-age:]) for tokens, age in episodes], dim=1)

    def read(tokens: Tensor, starts: Tensor) -> Tensor:
        nonlocal slots
        hidden, slots = model.step(tokens, slots, starts)
        return hidden

    for tokens, starts in store.stream(size.width):
        yield partial(read, tokens, starts)


def _slots_after(model: PlainTransformerXL, tokens: Tensor) -> Tensor:
    """Return the slots of one episode that has had some tokens [A, D].  [L, 1, M, D]"""
    slots = model.initial_memory(1)
    return model.step(tokens[None], slots, torch.ones(1, dtype=torch.bool))[1]
