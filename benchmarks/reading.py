"""What language memories read in comparisons: N episodes under way, fed the same random tokens."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.comparing import Work
from models.language import LanguageModel

CHUNK = 64  # tokens read at a time before the clock starts


class Store(NamedTuple):
    """How far each of N episodes is when the clock starts.

    Attributes:
        name: What to call it.
        ages: Tokens each episode has had.  [N]
        episode: After how many tokens an episode ends; None for never.
    """

    name: str
    ages: tuple[int, ...]
    episode: int | None = None

    @classmethod
    def full(cls, n_envs: int, n_tokens: int) -> "Store":
        """Return episodes of the same age that do not end."""
        return cls(f"{n_tokens} tokens", (n_tokens,) * n_envs)

    @classmethod
    def staggered(cls, n_envs: int, episode: int) -> "Store":
        """Return episodes that end one after the other."""
        ages = (n * episode // n_envs + min(5, episode // 2) for n in range(n_envs))
        return cls(f"episodes of {episode}", tuple(ages), episode)

    def history(self, width: int) -> Tensor:
        """Return what came before the clock starts, the latest last.  [N, max(ages), width]"""
        shape = (len(self.ages), max(self.ages), width)
        return torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def stream(self, width: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield tokens [N, 1, width] and which episodes begin with them [N]."""
        generator = torch.Generator().manual_seed(2)
        ages = torch.tensor(self.ages)
        while True:
            starts = ages == (self.episode or -1)
            ages = ages.masked_fill(starts, 0) + 1
            yield torch.randn(len(ages), 1, width, generator=generator), starts


def ours(load: Callable[[], LanguageModel], store: Store) -> Iterator[Work]:
    """Step a language model through a store."""
    model = load()
    memory = model.initial_memory(len(store.ages))
    history = store.history(model.width)
    n_tokens = history.shape[1]
    begins = torch.tensor([n_tokens - age for age in store.ages])
    for first, end in pairwise(sorted({*begins.tolist(), *range(0, n_tokens, CHUNK), n_tokens})):
        model.step(history[:, first:end], memory, begins == first)
    for tokens, starts in store.stream(model.width):
        yield partial(model.step, tokens, memory, starts)
