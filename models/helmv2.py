"""HELMv2: images reach the language model by way of CLIP (Paischer et al., OpenReview KmxQ3v7nMmd).

Trained: the query encoder and the two heads.
Frozen: the image encoder, the projection where there is one, the language model.
Followed while training: mean and deviation of the encoder's features.

1. An image becomes a token by matching the distribution of its features to the embeddings'.
2. All else is HELM.
"""

from dataclasses import dataclass

from models.clip_encoder import ClipSettings, check_encoder, configured_encoder
from models.clip_projection import ClipProjection
from models.helm import LanguageMemoryAgent, LanguageMemorySettings, check_images
from models.language import configured_language_model
from models.language_memory import LanguageMemory, configured_text
from models.observations import ObservationReader
from utils.errors import raise_all


@dataclass(frozen=True)
class HelmV2Settings(ClipSettings, LanguageMemorySettings):
    """What HELMv2 reads."""


class HelmV2Language(LanguageMemory):
    """HELMv2's frozen part, with the settings of a run."""

    def __init__(self, config: HelmV2Settings, reader: ObservationReader) -> None:
        check_images("HELMv2", reader)
        encoder = configured_encoder(config)
        language_model = configured_language_model(config)
        projection = ClipProjection(encoder, language_model.embeddings)
        text = configured_text(config, reader, language_model)
        super().__init__(projection, language_model, config.observation_cache_mb, *text)


class HelmV2(LanguageMemoryAgent):
    """HELMv2 with the settings of a run."""

    reads = (HelmV2Settings,)
    language_class = HelmV2Language

    @classmethod
    def check(cls, config: HelmV2Settings) -> None:
        """Raise UserError where the language model or the encoder is missing."""
        raise_all(
            lambda: super(HelmV2, cls).check(config),
            lambda: check_encoder(config),
        )
