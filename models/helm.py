"""HELM: history compression via language models (Paischer et al. 2022, arXiv:2205.12258).

Trained: the query encoder and the two heads.
Frozen: the random projection, the token embeddings, the language model.

1. An image, or a vector, becomes a token by a Hopfield retrieval among the language model's
   embeddings. Texts may be read as well, or alone, as the language model's own tokens.
2. The language model reads one token a step; its last hidden state is the summary of the episode.
3. Actor and critic see that summary beside the query encoder's view of the present.
4. The summary needs no gradient, so the rollout stores it and the update never runs the model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Discrete, Space
from torch import Tensor

from models.agent import ActorCriticAgent, Batch, Evaluation, Memory, Step
from models.encoders import EncoderSettings, build_encoder
from models.frozen_hopfield import (
    ColourHopfield,
    FrozenHopfield,
    VectorHopfield,
    random_projection,
)
from models.heads import ActorCritic
from models.image_to_language import ImageToLanguage, NothingToLanguage
from models.language import (
    LanguageModel,
    LanguageModelSettings,
    configured_language_model,
    describe_language_model,
)
from models.language_memory import LanguageMemory, TextSettings, configured_text, told_beside
from models.observations import ObservationBatch, ObservationReader, Percept
from settings import setting
from utils.errors import UserError


@dataclass(frozen=True)
class LanguageMemorySettings(LanguageModelSettings, TextSettings, EncoderSettings):
    """What the HELM family shares."""


@dataclass(frozen=True)
class HelmSettings(LanguageMemorySettings):
    """What HELM reads."""

    title = "HELM"

    beta: float = setting(
        "inverse temperature of HELM's token retrieval", low=0, high=1e6, default=100.0
    )
    retrieval_colours: str = setting(
        "what HELM's token retrieval reads of a pixel: the mean of its colours, as published; or "
        "each of them, where red, green and blue must be told apart",
        choices=("mean", "each"),
        default="mean",
    )


class LanguageMemoryAgent(ActorCriticAgent):
    """What the HELM family shares: a language model that reads, beside a trained encoder.

    Args:
        config: The settings of the run.
        observation_space: What the encoder and the memory see.
        action_space: A discrete actions.

    Attributes:
        language_class: The frozen memory, to be built from (config, reader).
    """

    language_class: ClassVar[Callable[..., LanguageMemory]]

    def __init__(
        self, config: LanguageMemorySettings, observation_space: Space, action_space: Discrete
    ) -> None:
        super().__init__()
        self.reader = ObservationReader(observation_space)
        language = self.language_class(config, self.reader)  # it draws before the encoder
        self.query_encoder = build_encoder(
            told_beside(config, self.reader),
            language.width,
            cache_mb=config.observation_cache_mb,
            sentence_encoder=config.sentence_encoder,
        )
        n_features = language.width + self.query_encoder.n_features
        self.heads = ActorCritic(n_features, int(action_space.n))
        self.language = language

    def initial_memory(self, n_envs: int) -> Memory:
        """Return the language model's empty memory."""
        return self.language.initial(n_envs)

    @torch.no_grad()
    def act(
        self, percept: Percept, memory: Memory, deterministic: bool = False, advance: bool = True
    ) -> Step:
        """Let the language model read what is seen, then choose actions."""
        hidden = self.language.step(percept, memory, advance)
        features = torch.cat((hidden, self.query_encoder(percept.observations)), dim=-1)
        step = self.heads.step(features, hidden, deterministic)
        return step._replace(remembered=hidden)

    def evaluate(self, batch: Batch) -> Evaluation:
        """Run encoder and heads on a batch; the stored hidden states stand for the memory."""
        queries = self.query_encoder.learn(batch.observations)
        return self.heads.evaluate(torch.cat((batch.context, queries), dim=-1), batch.actions)

    def curiosity_features(self, observations: ObservationBatch) -> dict[str, Tensor] | None:
        """Return what the encoder beside the language model makes of observations."""
        return self.query_encoder.by_kind(observations)

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
        return self.language.fingerprints() | self.query_encoder.fingerprints()

    @classmethod
    def check(cls, config: Any) -> None:
        """Raise UserError if the language model has fewer layers than asked for."""
        facts = describe_language_model(config.language_model)
        if config.n_layer is not None and config.n_layer > facts.n_layer:
            raise UserError(
                f"n_layer: {config.n_layer} is more than the {facts.n_layer} layers of "
                f"{config.language_model}. Choose 1 to {facts.n_layer}, or null for all"
            )


class HelmLanguage(LanguageMemory):
    """HELM's frozen part, with the settings of a run."""

    def __init__(self, config: HelmSettings, reader: ObservationReader) -> None:
        language_model = configured_language_model(config)
        text = configured_text(config, reader, language_model)
        to_language = _retrieval(config, reader, language_model)
        super().__init__(to_language, language_model, config.observation_cache_mb, *text)

    @torch.no_grad()
    def inspect(self, percept: Percept, memory: Memory) -> dict[str, np.ndarray]:
        """Return besides the nearest token, its cosine [N, 1], and the retrieval's entropy [N].

        The nearest token is what the retrieval returns as beta goes to infinity. Where text alone
        is shown nothing is retrieved.
        """
        retrieval = self.to_language
        if not isinstance(retrieval, FrozenHopfield):
            return super().inspect(percept, memory)
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


def _retrieval(
    config: HelmSettings, reader: ObservationReader, language_model: LanguageModel
) -> ImageToLanguage:
    """Return what leads from images or vectors to the language model.

    Raises:
        UserError: text alone is shown, and the language model does not read it; or there are no
            colours to be told apart.
    """
    shape, n_read = reader.image_shape, reader.n_numbers
    kind: type[FrozenHopfield] = VectorHopfield
    if config.retrieval_colours == "each":
        if shape is None or shape[0] == 1:
            raise UserError(
                "retrieval_colours: each tells colours apart, and the environment shows none. "
                "Choose retrieval_colours=mean"
            )
        kind, n_read = ColourHopfield, math.prod(shape)
    elif shape is not None:
        kind, n_read = FrozenHopfield, math.prod(shape[1:])
    if n_read:
        projection = random_projection(language_model.width, n_read)
        return kind(projection, language_model.embeddings, config.beta)
    if config.text_to == "observation":
        raise UserError(
            "text_to: the environment shows text alone, and observation leaves HELM's memory "
            "nothing to read. Choose memory or both"
        )
    return NothingToLanguage(language_model.width)


def check_images(model: str, reader: ObservationReader) -> None:
    """Raise UserError where an environment shows no image in colour or in grey, as CLIP reads."""
    shape = reader.image_shape
    if shape is None or shape[0] not in (1, 3):
        shown = "none" if shape is None else f"{shape[0]} channels"
        raise UserError(
            f"model: {model} reads images in colour or grey, and the environment shows {shown}. "
            "Choose model=CNN, LSTM, GPT or HELM"
        )
