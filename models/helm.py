"""HELM: history compression via language models (Paischer et al. 2022, arXiv:2205.12258).

Trained: the query encoder and the two heads.
Frozen: the random projection, the token embeddings, the language model.

1. An image becomes a token by a Hopfield retrieval among the language model's embeddings.
2. The language model reads one token a step; its last hidden state is the summary of the episode.
3. Actor and critic see that summary beside the query encoder's view of the present.
4. The summary needs no gradient, so the rollout stores it and the update never runs the model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import Tensor
from torch.nn import functional as F

from models.agent import ActorCriticAgent, Batch, Evaluation, Memory, Step
from models.encoders import EncoderSettings, build_encoder
from models.frozen import Frozen
from models.frozen_hopfield import FrozenHopfield, random_projection
from models.heads import ActorCritic
from models.image_to_language import ImageToLanguage
from models.images import unit_images
from models.language import (
    KeyValueMemory,
    LanguageModel,
    LanguageModelSettings,
    configured_language_model,
    describe_language_model,
)
from models.observation_cache import ObservationCache
from models.observations import ObservationReader, Percept
from settings import setting
from utils.errors import UserError


@dataclass(frozen=True)
class LanguageMemorySettings(LanguageModelSettings, EncoderSettings):
    """What the HELM family shares."""


@dataclass(frozen=True)
class HelmSettings(LanguageMemorySettings):
    """What HELM reads."""

    title = "HELM"

    beta: float = setting("inverse temperature of HELM's token retrieval", low=0, high=1e6)


def image_shape(space: Space) -> tuple[int, ...]:
    """Return (C, H, W) of the images that become language.

    Raises:
        UserError: there are none.
    """
    shape = ObservationReader(space).image_shape
    if shape is None:
        raise UserError(
            f"model: HELM, HELMv2 and SHELM read images, and the environment shows {space}. "
            "Choose model=CNN, LSTM or GPT"
        )
    return shape


class LanguageMemoryAgent(ActorCriticAgent):
    """What the HELM family shares: image → tokens → language model, beside a trained encoder.

    Args:
        observation_space: Images (C, H, W).
        action_space: A discrete actions.
        to_language: Frozen map from images to tokens.
        language_model: The frozen memory.
        observation_cache_mb: How much memory the results of `to_language` get, and the query
            encoder's.
    """

    def __init__(
        self,
        observation_space: Box,
        action_space: Discrete,
        to_language: ImageToLanguage,
        language_model: LanguageModel,
        observation_cache_mb: float,
    ) -> None:
        super().__init__()
        width = language_model.width
        self.reader = ObservationReader(observation_space)
        image_shape(observation_space)
        self.query_encoder = build_encoder(self.reader, width, cache_mb=observation_cache_mb)
        self.heads = ActorCritic(2 * width, int(action_space.n))
        self.to_language = to_language.requires_grad_(False)
        self._language_model = Frozen(language_model)
        self.language_cache = ObservationCache(
            lambda images: self.to_language(unit_images(images)),
            observation_cache_mb,
            to_language.block_size,
        )

    @property
    def language_model(self) -> LanguageModel:
        """The frozen memory, which a checkpoint names and does not contain."""
        return self._language_model.module

    def initial_memory(self, n_envs: int) -> Memory:
        """Return the language model's empty memory."""
        return self.language_model.initial_memory(n_envs, self.to_language.n_tokens)

    @torch.no_grad()
    def act(self, percept: Percept, memory: Memory, deterministic: bool = False) -> Step:
        """Let the language model read what is seen, then choose actions."""
        encoded = self.language_cache(_images(percept))
        if self.training:
            self.to_language.observe(encoded)
        tokens = self.to_language.tokens(encoded)
        hidden = self.language_model.step(tokens, cast(KeyValueMemory, memory), percept.starts)
        return self.heads.step(self._features(hidden, percept), hidden, deterministic)

    @torch.no_grad()
    def peek_values(self, percept: Percept, memory: Memory) -> Tensor:
        """Return the values [N] of what is seen, the memory staying as it is."""
        hidden = self.language_model.step(
            self.tokens(percept), cast(KeyValueMemory, memory), percept.starts, advance=False
        )
        return self.heads.values(self._features(hidden, percept))

    def evaluate(self, batch: Batch) -> Evaluation:
        """Run encoder and heads on a batch; the stored hidden states stand for the memory."""
        queries = self.query_encoder.learn(batch.observations)
        return self.heads.evaluate_beside(batch.context, queries, batch.actions)

    def tokens(self, percept: Percept) -> Tensor:
        """Return the tokens that the language model would read now.  [N, K, D]"""
        return self.to_language.tokens(self.language_cache(_images(percept)))

    @torch.no_grad()
    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return which past steps every head of every layer looks at.  [N, L, H, S]"""
        attention = self.language_model.attention(
            self.tokens(percept), cast(KeyValueMemory, memory), percept.starts
        )
        return {"attention": attention_by_step(attention).half().cpu().numpy()}

    def metrics(self) -> dict[str, float]:
        """Return the hit rate of the observation cache in this process; it only saves time."""
        return {"time/cache_hit_rate": self.language_cache.hit_rate}

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the language model's weights and of what leads from images to it."""
        language_model = {"language_model": self.language_model.fingerprint}
        return language_model | self.to_language.fingerprints()

    def share_statistics(self, all_gather: Callable[[Tensor], Tensor]) -> None:
        """Let running statistics take in the rows of all ranks, [n, ...] -> [N, ...]."""
        self.to_language.share_statistics(all_gather)

    @classmethod
    def check(cls, config: Any) -> None:
        """Raise UserError if the language model has fewer layers than asked for."""
        facts = describe_language_model(config.language_model)
        if config.n_layer is not None and config.n_layer > facts.n_layer:
            raise UserError(
                f"n_layer: {config.n_layer} is more than the {facts.n_layer} layers of "
                f"{config.language_model}. Choose 1 to {facts.n_layer}, or null for all"
            )

    def _features(self, hidden: Tensor, percept: Percept) -> Tensor:
        """Return the memory's view and the present's side by side.  [N, 2D]"""
        return torch.cat((hidden, self.query_encoder(percept.observations)), dim=-1)


class Helm(LanguageMemoryAgent):
    """HELM with the settings of a run."""

    reads = (HelmSettings,)

    def __init__(
        self, config: HelmSettings, observation_space: Box, action_space: Discrete
    ) -> None:
        language_model = configured_language_model(config)
        _, height, side = image_shape(observation_space)
        projection = random_projection(language_model.width, height * side)
        to_language = FrozenHopfield(projection, language_model.embeddings, config.beta)
        super().__init__(
            observation_space,
            action_space,
            to_language,
            language_model,
            config.observation_cache_mb,
        )

    @torch.no_grad()
    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return besides the nearest token, its cosine [N, 1], and the retrieval's entropy [N].

        The nearest token is what the retrieval returns as beta goes to infinity.
        """
        retrieval = cast(FrozenHopfield, self.to_language)
        similarities = retrieval.similarities(unit_images(_images(percept)))
        nearest = similarities.max(-1, keepdim=True)
        vocabulary = self.language_model.vocabulary
        return {
            **super().inspect(percept, memory),
            "words": np.array([[vocabulary[token]] for (token,) in nearest.indices.tolist()]),
            "similarities": nearest.values.cpu().numpy(),
            "entropy": torch.special.entr(retrieval.weights(similarities)).sum(-1).cpu().numpy(),
        }


def _images(percept: Percept) -> Tensor:
    """Return the images that the memory reads.  [N, C, H, W] uint8"""
    images = percept.observations.images
    assert images is not None, "an environment without images is refused"
    return images


def attention_by_step(attention: Tensor) -> Tensor:
    """Return attention between tokens [L, N, H, K, M+K] as attention to steps of K tokens.

    The K tokens of the present step count alike.  [N, L, H, S], oldest step first
    """
    n_new = attention.shape[3]
    looked_at = attention.mean(3)  # [L, N, H, M+K]
    # The oldest step may have lost a part of its tokens already.
    whole = F.pad(looked_at, (-looked_at.shape[-1] % n_new, 0))
    return whole.unflatten(-1, (-1, n_new)).sum(-1).transpose(0, 1)
