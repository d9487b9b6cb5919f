"""The frozen memory of the HELM family: observation → tokens → language model → hidden state."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Memory
from models.frozen import Frozen
from models.image_to_language import ImageToLanguage
from models.language import KeyValueMemory, LanguageModel
from models.observation_cache import ObservationCache
from models.observations import Percept


class LanguageMemory(nn.Module):
    """A language model that reads what an agent sees, and is never trained.

    Args:
        to_language: Frozen map from images to tokens.
        language_model: The frozen memory.
        observation_cache_mb: How much memory the results of `to_language` get.
    """

    def __init__(
        self,
        to_language: ImageToLanguage,
        language_model: LanguageModel,
        observation_cache_mb: float,
    ) -> None:
        super().__init__()
        self.to_language = to_language.requires_grad_(False)
        self._language_model = Frozen(language_model)
        self.width = language_model.width
        self.cache = ObservationCache(
            lambda seen: self.to_language(to_language.prepared(seen)),
            observation_cache_mb,
            to_language.block_size,
        )

    def __deepcopy__(self, copied: dict[int, Any]) -> "LanguageMemory":
        """Return this one: a target network shares what is never trained."""
        return self

    @property
    def language_model(self) -> LanguageModel:
        """The frozen memory, which a checkpoint names and does not contain."""
        return self._language_model.module

    def initial(self, n_envs: int) -> Memory:
        """Return the language model's empty memory."""
        return self.language_model.initial_memory(n_envs, self.to_language.n_tokens)

    @torch.no_grad()
    def step(self, percept: Percept, memory: Memory) -> Tensor:
        """Read what is seen and return the hidden state.  [N, D]

        While its owner trains, statistics of what is seen are followed.
        """
        encoded = self._encoded(percept)
        if self.training:
            self.to_language.observe(encoded)
        tokens = self.to_language.tokens(encoded)
        return self.language_model.step(tokens, cast(KeyValueMemory, memory), percept.starts)

    @torch.no_grad()
    def peek(self, percept: Percept, memory: Memory) -> Tensor:
        """Return what `step` would, the memory staying as it is.  [N, D]"""
        return self.language_model.step(
            self.tokens(percept), cast(KeyValueMemory, memory), percept.starts, advance=False
        )

    def tokens(self, percept: Percept) -> Tensor:
        """Return the tokens that the language model would read now.  [N, K, D]"""
        return self.to_language.tokens(self._encoded(percept))

    def explain(self, percept: Percept) -> dict[str, np.ndarray]:
        """Return what `Agent.explain` says of the memory."""
        return {}

    @torch.no_grad()
    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return which past steps every head of every layer looks at.  [N, L, H, S]"""
        attention = self.language_model.attention(
            self.tokens(percept), cast(KeyValueMemory, memory), percept.starts
        )
        return {"attention": attention_by_step(attention).half().cpu().numpy()}

    def metrics(self) -> dict[str, float]:
        """Return the hit rate of the observation cache in this process; it only saves time."""
        return {"time/cache_hit_rate": self.cache.hit_rate}

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the language model's weights and of what leads from images to it."""
        language_model = {"language_model": self.language_model.fingerprint}
        return language_model | self.to_language.fingerprints()

    def share_statistics(self, all_gather: Callable[[Tensor], Tensor]) -> None:
        """Let running statistics take in the rows of all ranks, [n, ...] -> [N, ...]."""
        self.to_language.share_statistics(all_gather)

    def _encoded(self, percept: Percept) -> Tensor:
        return self.cache(self.to_language.seen(percept.observations))


def attention_by_step(attention: Tensor) -> Tensor:
    """Return attention between tokens [L, N, H, K, M+K] as attention to steps of K tokens.

    The K tokens of the present step count alike.  [N, L, H, S], oldest step first
    """
    n_new = attention.shape[3]
    looked_at = attention.mean(3)  # [L, N, H, M+K]
    # The oldest step may have lost a part of its tokens already.
    whole = F.pad(looked_at, (-looked_at.shape[-1] % n_new, 0))
    return whole.unflatten(-1, (-1, n_new)).sum(-1).transpose(0, 1)
