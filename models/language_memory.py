"""The frozen memory of the HELM family: observation → tokens → language model → hidden state."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Memory
from models.image_to_language import Frozen, ImageToLanguage
from models.language import KeyValueMemory, LanguageModel
from models.observation_cache import ObservationCache
from models.observations import ObservationReader, Observations, Percept
from models.sentences import SentenceTable, SentenceVectors
from settings import Part, setting
from utils.errors import UserError


@dataclass(frozen=True)
class TextSettings(Part):
    """Who is told the texts of an observation."""

    title = "language model"

    text_to: str = setting(
        "who reads texts: the trained networks (observation), the language model (memory), or both",
        choices=("observation", "memory", "both"),
        default="observation",
    )
    text_tokens: int = setting(
        "tokens that a sentence becomes where the language model reads it",
        low=1,
        high=512,
        default=1,
    )


class SentenceTokens(SentenceVectors):
    """Sentences as a language model's own tokens, brought to one length.

        tokens_j = mean of E[v_i] over i from floor(j n / K) to ceil((j + 1) n / K) - 1

    v are the n tokens of the sentence, E their embeddings: adaptive average pooling. One token is
    the mean of all, a mixture of embeddings as HELM's retrieval is one; n tokens are the sentence's
    own. A sentence without tokens is zeros.

    Args:
        sentences: Those there are.
        language_model: Whose tokens.
        n_tokens: K.
    """

    def __init__(
        self, sentences: SentenceTable, language_model: LanguageModel, n_tokens: int
    ) -> None:
        super().__init__(sentences, self._tokens_of)
        self.language_model, self.n_tokens = language_model, n_tokens

    def _tokens_of(self, text: str) -> Tensor:
        tokens = self.language_model.read_text(text)  # [n, D]
        if not len(tokens):
            return tokens.new_zeros(self.n_tokens, tokens.shape[1])
        return F.adaptive_avg_pool1d(tokens.T[None], self.n_tokens)[0].T


class LanguageMemory(nn.Module):
    """A language model that reads what an agent sees, and is never trained.

    Args:
        to_language: Frozen map from images to tokens.
        language_model: The frozen memory.
        observation_cache_mb: How much memory the results of `to_language` get.
        text: Sentences to tokens, where the language model reads texts: before all else of a step.
        n_texts: How many an observation has.

    Attributes:
        n_tokens: What a step becomes.

    Raises:
        UserError: a step becomes more tokens than the language model can see.
    """

    def __init__(
        self,
        to_language: ImageToLanguage,
        language_model: LanguageModel,
        observation_cache_mb: float,
        text: SentenceTokens | None = None,
        n_texts: int = 0,
    ) -> None:
        super().__init__()
        self.text, self.n_tokens = text, to_language.n_tokens
        if text is not None:
            self.n_tokens += n_texts * text.n_tokens
            _check_length(self.n_tokens, language_model)
        self.to_language = to_language.requires_grad_(False)
        self._language_model = Frozen(language_model)
        self.width = language_model.width
        self.cache = ObservationCache(
            lambda seen: self.to_language(to_language.prepared(seen)),
            observation_cache_mb,
            to_language.block_size,
            to_language.larger_blocks,
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
        return self.language_model.initial_memory(n_envs, self.n_tokens)

    @torch.no_grad()
    def step(self, percept: Percept, memory: Memory, advance: bool = True) -> Tensor:
        """Read what is seen and return the hidden state.  [N, D]

        While its owner trains, statistics of what is seen are followed. Without `advance` the
        memory and they stay as they are.
        """
        encoded = self._encoded(percept)
        if self.training and advance:
            self.to_language.observe(encoded)
        tokens = self.with_text(self.to_language.tokens(encoded), percept.observations)
        keys_and_values = cast(KeyValueMemory, memory)
        return self.language_model.step(tokens, keys_and_values, percept.starts, advance=advance)

    def tokens(self, percept: Percept) -> Tensor:
        """Return the tokens that the language model would read now.  [N, K, D]"""
        tokens = self.to_language.tokens(self._encoded(percept))
        return self.with_text(tokens, percept.observations)

    def with_text(self, tokens: Tensor, observations: Observations) -> Tensor:
        """Return the tokens of what is seen behind those of texts, where these are read.

        [N, k, D] -> [N, K, D]
        """
        if self.text is None:
            return tokens
        sentences = self.text(cast(Tensor, observations.text))  # [N, n_texts, text_tokens, D]
        return torch.cat((sentences.flatten(1, 2), tokens), dim=1)

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

    def _encoded(self, percept: Percept) -> Tensor:
        return self.cache(self.to_language.seen(percept.observations))


def configured_text(
    config: TextSettings, reader: ObservationReader, language_model: LanguageModel
) -> tuple[SentenceTokens | None, int]:
    """Return what a memory reads texts by, None if it does not, and how many there are.

    Raises:
        UserError: there are none to read, so that the setting has no effect.
    """
    if config.text_to == "observation":
        return None, 0
    if not reader.n_texts:
        raise UserError(
            f"text_to: {config.text_to} has the language model read texts, and the environment "
            "shows none. Choose text_to=observation"
        )
    tokens = SentenceTokens(reader.sentences, language_model, config.text_tokens)
    tokens.language_model.read_text("")  # without a tokenizer it fails here
    return tokens, reader.n_texts


def told_beside(config: TextSettings, reader: ObservationReader) -> ObservationReader:
    """Return a reader of what the trained networks beside a memory are told."""
    return reader.without_text() if config.text_to == "memory" else reader


def _check_length(n_tokens: int, language_model: LanguageModel) -> None:
    positions = getattr(language_model, "n_positions", None) or n_tokens
    most = min(language_model.mem_len, positions)
    if n_tokens > most:
        raise UserError(
            f"text_tokens: with the texts a step has {n_tokens} tokens, and {most} can be seen "
            f"(mem_len, or the positions of {language_model.name}). Choose fewer"
        )


def attention_by_step(attention: Tensor) -> Tensor:
    """Return attention between tokens [L, N, H, K, M+K] as attention to steps of K tokens.

    The K tokens of the present step count alike.  [N, L, H, S], oldest step first
    """
    n_new = attention.shape[3]
    looked_at = attention.mean(3)  # [L, N, H, M+K]
    # The oldest step may have lost a part of its tokens already.
    whole = F.pad(looked_at, (-looked_at.shape[-1] % n_new, 0))
    return whole.unflatten(-1, (-1, n_new)).sum(-1).transpose(0, 1)
