"""The memory's step with bfloat16 weights beside the same step in float32: speed and drift.

Here the plain version is ours in float32, so that the largest difference is the drift.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks import reading
from benchmarks.comparing import Pair
from benchmarks.language_memory import random_model
from benchmarks.random_models import MINILM, TINY, WITHOUT_VOCABULARY
from benchmarks.reading import Store
from models.language import LanguageModel, load_language_model


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare a hundred steps of both language models."""
    size, mem_len, n_envs, episode = (
        (TINY, 12, 3, 6) if quick else (WITHOUT_VOCABULARY, 511, 16, 100)
    )
    store = Store.staggered(n_envs, episode)
    loaders: dict[str, Callable[..., LanguageModel]] = {
        "MiniLM": partial(load_language_model, MINILM, mem_len, None, "cpu"),
        "Transformer-XL": partial(random_model, size, mem_len),
    }
    for name, load in loaders.items():
        yield Pair(
            f"{name} in bfloat16, {store.name}",
            partial(reading.ours, partial(load, torch.float32), store),
            partial(reading.ours, partial(load, torch.bfloat16), store),
            rounds=4 if quick else 100,
            repeats=1,
            note="plain is ours in float32",
        )
