"""SHELM: semantic HELM, a memory one can read (Paischer et al. 2023, arXiv:2306.09312).

Trained: the query encoder and the two heads.
Frozen: the image encoder, the text embeddings of its words, the language model.

1. An image becomes the K words of the shared vocabulary that describe it best.
2. The language model reads K tokens a step, the best one first.
3. All else is HELM.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from models.clip_encoder import check_encoder, configured_encoder
from models.helm import LanguageMemoryAgent, LanguageMemorySettings, check_images
from models.language import configured_language_model, describe_language_model
from models.language_memory import LanguageMemory, configured_text
from models.observations import ObservationReader, Percept
from models.token_retrieval import Retrieval, TokenRetrieval, retrieved
from models.word_embeddings import (
    EmbeddingsSettings,
    check_sizes,
    check_weights,
    configured_embeddings,
    configured_file,
)
from settings import setting
from utils.errors import UserError, raise_all


@dataclass(frozen=True)
class ShelmSettings(EmbeddingsSettings, LanguageMemorySettings):
    """What SHELM reads."""

    title = "SHELM"

    topk: int = setting(
        "tokens that are retrieved and read at a step", low=1, high=16_384, default=1
    )


class ShelmLanguage(LanguageMemory):
    """SHELM's frozen part, with the settings of a run."""

    def __init__(self, config: ShelmSettings, reader: ObservationReader) -> None:
        check_images("SHELM", reader)
        found = configured_embeddings(config)
        encoder = configured_encoder(config)
        check_weights(config, found.encoder_fingerprint, encoder.fingerprint, encoder.name)
        language_model = configured_language_model(config)
        check_weights(
            config,
            found.language_model_fingerprint,
            language_model.fingerprint,
            language_model.name,
        )
        check_sizes(config, found, encoder.width, language_model.embeddings.n_tokens)
        ids = torch.from_numpy(found.ids).to(config.device)
        to_language = TokenRetrieval(
            encoder,
            torch.from_numpy(found.embeddings),
            language_model.embed(ids),
            found.tokens.tolist(),
            config.topk,
        )
        text = configured_text(config, reader, language_model)
        super().__init__(to_language, language_model, config.observation_cache_mb, *text)

    @property
    def words(self) -> list[str]:
        """Return the words there are to retrieve."""
        return cast(TokenRetrieval, self.to_language).words

    @torch.no_grad()
    def retrieve(self, images: Tensor) -> Retrieval:
        """Return the words of images [N, C, H, W] uint8, the same ones `step` reads."""
        return retrieved(self.cache(images))

    def explain(self, percept: Percept) -> dict[str, np.ndarray]:
        """Return the words of each observation and their similarities.  [N, K] each"""
        indices, similarities = self.retrieve(cast(Tensor, percept.observations.images))
        words = np.array(self.words)[indices.cpu().numpy()]
        return {"words": words, "similarities": similarities.cpu().numpy()}


class Shelm(LanguageMemoryAgent):
    """SHELM with the settings of a run."""

    reads = (ShelmSettings,)
    language_class = ShelmLanguage

    @classmethod
    def check(cls, config: ShelmSettings) -> None:
        """Raise UserError where a model or the file of embeddings is missing."""
        raise_all(
            lambda: super(Shelm, cls).check(config),
            lambda: _check_memory(config),
            lambda: _check_retrieval(config),
        )


def _check_memory(config: ShelmSettings) -> None:
    if config.mem_len < config.topk:
        raise UserError(
            f"mem_len: {config.mem_len} is below the {config.topk} tokens of a step (topk)"
        )
    n_positions = describe_language_model(config.language_model).n_positions
    if n_positions is not None and config.topk > n_positions:
        raise UserError(
            f"topk: {config.topk} is more than the {n_positions} positions of "
            f"{config.language_model}, which a step's tokens share. Choose 1 to {n_positions}"
        )


def _check_retrieval(config: ShelmSettings) -> None:
    check_encoder(config)
    n_words = len(configured_embeddings(config).tokens)
    if config.topk > n_words:
        raise UserError(
            f"topk: {config.topk} is more than the {n_words} words in {configured_file(config)}"
        )
