"""A step of the MiniLM memory beside reading the whole episode anew."""

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from benchmarks import reading
from benchmarks.comparing import Pair, Work
from benchmarks.plain_bert import PlainBert
from benchmarks.random_models import MINILM
from benchmarks.reading import Store
from models.language import load_language_model
from models.language.model_files import find_model

MEM_LEN = 511


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare with the store nearly full, its positions being 512, and with episodes of 100."""
    n_envs, n_tokens, episode = (2, 7, 6) if quick else (16, 500, 100)
    for store in (Store.full(n_envs, n_tokens), Store.staggered(n_envs, episode)):
        yield Pair(
            f"MiniLM step, {store.name}",
            partial(plain, store),
            partial(reading.ours, partial(load_language_model, MINILM, MEM_LEN), store),
            note=f"6 layers, mem_len {MEM_LEN}, {n_envs} environments",
        )


def plain(store: Store) -> Iterator[Work]:
    """Step the plain version through a store."""
    model = PlainBert(find_model(MINILM))
    width = model.config["hidden_size"]
    history = zip(store.history(width), store.ages, strict=True)
    episodes = [tokens[-age:] for tokens, age in history]

    def read(tokens: Tensor, starts: Tensor) -> Tensor:
        nonlocal episodes
        hidden, episodes = model.step(tokens, episodes, starts)
        return hidden

    for tokens, starts in store.stream(width):
        yield partial(read, tokens, starts)
