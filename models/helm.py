"""HELM: history compression via language models (Paischer et al. 2022, arXiv:2205.12258).

Trained: the query encoder and the two heads.
Frozen: the random projection, the token embeddings, the language model.

1. An image, or a vector, becomes a token by a Hopfield retrieval among the language model's
   embeddings.
2. The language model reads one token a step; its last hidden state is the summary of the episode.
3. Actor and critic see that summary beside the query encoder's view of the present.
4. The summary needs no gradient, so the rollout stores it and the update never runs the model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete, Space
from torch import Tensor, nn

from models.agent import ActorCriticAgent, Batch, Evaluation, Memory, Step
from models.encoders import EncoderSettings, build_encoder
from models.frozen_hopfield import FrozenHopfield, VectorHopfield, random_projection
from models.heads import ActorCritic
from models.language import (
    LanguageModelSettings,
    configured_language_model,
    describe_language_model,
)
from models.language_memory import LanguageMemory
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


class LanguageMemoryAgent(ActorCriticAgent):
    """What the HELM family shares: a language model that reads, beside a trained encoder.

    Args:
        config: The settings of the run.
        observation_space: What the encoder and the memory see.
        action_space: A discrete actions.

    Attributes:
        language_class: The frozen memory, to be built from (config, observation_space).
    """

    language_class: ClassVar[Callable[..., LanguageMemory]]

    def __init__(
        self, config: LanguageMemorySettings, observation_space: Space, action_space: Discrete
    ) -> None:
        super().__init__()
        self.reader = ObservationReader(observation_space)
        language = self.language_class(config, observation_space)  # it draws before the encoder
        width, cache_mb = language.width, config.observation_cache_mb
        self.query_encoder = build_encoder(self.reader, width, cache_mb=cache_mb)
        self.heads = ActorCritic(2 * width, int(action_space.n))
        self.language = language
        self.register_load_state_dict_pre_hook(_rename_earlier)

    def initial_memory(self, n_envs: int) -> Memory:
        """Return the language model's empty memory."""
        return self.language.initial(n_envs)

    @torch.no_grad()
    def act(self, percept: Percept, memory: Memory, deterministic: bool = False) -> Step:
        """Let the language model read what is seen, then choose actions."""
        hidden = self.language.step(percept, memory)
        return self.heads.step(self._features(hidden, percept), hidden, deterministic)

    @torch.no_grad()
    def peek_values(self, percept: Percept, memory: Memory) -> Tensor:
        """Return the values [N] of what is seen, the memory staying as it is."""
        hidden = self.language.peek(percept, memory)
        return self.heads.values(self._features(hidden, percept))

    def evaluate(self, batch: Batch) -> Evaluation:
        """Run encoder and heads on a batch; the stored hidden states stand for the memory."""
        queries = self.query_encoder.learn(batch.observations)
        return self.heads.evaluate_beside(batch.context, queries, batch.actions)

    def explain(self, percept: Percept) -> dict[str, np.ndarray]:
        """Return what the memory has to say of what is seen."""
        return self.language.explain(percept)

    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return what takes the memory longer to say."""
        return self.language.inspect(percept, memory)

    def metrics(self) -> dict[str, float]:
        """Return what the memory has to log."""
        return self.language.metrics()

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of every pretrained part."""
        return self.language.fingerprints()

    def share_statistics(self, all_gather: Callable[[Tensor], Tensor]) -> None:
        """Let running statistics take in the rows of all ranks, [n, ...] -> [N, ...]."""
        self.language.share_statistics(all_gather)

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


class HelmLanguage(LanguageMemory):
    """HELM's frozen part, with the settings of a run."""

    def __init__(self, config: HelmSettings, observation_space: Space) -> None:
        language_model = configured_language_model(config)
        reader = ObservationReader(observation_space)
        kind: type[FrozenHopfield] = VectorHopfield
        n_read = reader.n_numbers
        if reader.image_shape is not None:
            kind, n_read = FrozenHopfield, math.prod(reader.image_shape[1:])
        projection = random_projection(language_model.width, n_read)
        retrieval = kind(projection, language_model.embeddings, config.beta)
        super().__init__(retrieval, language_model, config.observation_cache_mb)

    @torch.no_grad()
    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return besides the nearest token, its cosine [N, 1], and the retrieval's entropy [N].

        The nearest token is what the retrieval returns as beta goes to infinity.
        """
        retrieval = cast(FrozenHopfield, self.to_language)
        seen = retrieval.seen(percept.observations)
        similarities = retrieval.similarities(retrieval.prepared(seen))
        nearest = similarities.max(-1, keepdim=True)
        vocabulary = self.language_model.vocabulary
        return {
            **super().inspect(percept, memory),
            "words": np.array([[vocabulary[token]] for (token,) in nearest.indices.tolist()]),
            "similarities": nearest.values.cpu().numpy(),
            "entropy": torch.special.entr(retrieval.weights(similarities)).sum(-1).cpu().numpy(),
        }


class Helm(LanguageMemoryAgent):
    """HELM with the settings of a run."""

    reads = (HelmSettings,)
    language_class = HelmLanguage


def check_images(model: str, space: Space) -> None:
    """Raise UserError where an environment shows no image in colour or in grey, as CLIP reads."""
    shape = ObservationReader(space).image_shape
    if shape is None or shape[0] not in (1, 3):
        raise UserError(
            f"model: {model} reads images in colour or grey, and the environment shows {space}. "
            "Choose model=CNN, LSTM, GPT or HELM"
        )


def _rename_earlier(agent: nn.Module, state: dict[str, Any], *_: object) -> None:
    """Take checkpoints in which the map to language stood beside encoder and heads."""
    for name in [name for name in state if name.startswith("to_language.")]:
        state[f"language.{name}"] = state.pop(name)
