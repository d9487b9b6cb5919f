"""HELMv2: images reach the language model by way of CLIP (Paischer et al., OpenReview KmxQ3v7nMmd).

Trained: the query encoder and the two heads.
Frozen: the image encoder, the projection where there is one, the language model.
Followed while training: mean and deviation of the encoder's features.

1. An image becomes a token by matching the distribution of its features to the embeddings'.
2. All else is HELM.
"""

from collections.abc import Callable

import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from models.clip_encoder import ImageTextEncoder, check_encoder, configured_encoder
from models.frozen_hopfield import random_projection
from models.helm import LanguageMemoryAgent, configured_language_model
from models.image_to_language import ImageToLanguage
from models.language import TokenEmbeddings
from models.networks import Frozen
from utils.config import Config
from utils.errors import raise_all

EPSILON = 1e-8  # added to the deviation that a feature is divided by, as in the original


class RunningStandardization(nn.Module):
    """Standardises features by the mean and deviation of every row seen so far.

    The statistics are part of the state; before the first row they are 0 and 1.
    """

    mean: Tensor
    squares: Tensor
    count: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        # In double precision, since a run adds up millions of rows.
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @property
    def deviation(self) -> Tensor:
        """Return the unbiased standard deviation of every feature, 0 after a single row.  [W]"""
        deviation = (self.squares / (self.count - 1).clamp(min=1)).sqrt()
        return torch.where(self.count > 0, deviation, 1.0)

    def update(self, features: Tensor) -> None:
        """Take in rows [N, W] (Chan, Golub and LeVeque 1979, updating formulas).

        M2 = M2_a + M2_b + (mean_b - mean_a)^2 * n_a * n_b / (n_a + n_b)
        """
        rows = features.double()
        total = self.count + len(rows)
        mean = rows.mean(0)
        difference = mean - self.mean
        self.squares += (rows - mean).square().sum(0)
        self.squares += difference.square() * self.count * len(rows) / total
        self.mean += difference * len(rows) / total
        self.count.copy_(total)

    def forward(self, features: Tensor) -> Tensor:
        """Return features [N, W] with mean 0 and deviation 1 over the rows seen so far."""
        return ((features - self.mean) / (self.deviation + EPSILON)).float()


class ClipProjection(ImageToLanguage):
    """Match the distribution of image features to that of the token embeddings.

        token = (f - mean_f) / (std_f + 1e-8) * std_E + mean_E    per feature; f = encoder(image)

    The original takes mean and deviation of f over the N current observations, so that an
    environment's memory depends on its neighbours and a single environment has none. Here they
    run over all frames of training, are part of the checkpoint and stay fixed in evaluation, as in
    a frozen BatchNorm. Where the encoder's width is not D, a fixed random projection with entries
    from N(0, 1/D) comes first, so that the token has the embeddings' mean and deviation all the
    same.

    Args:
        encoder: Images to features of width W.
        embeddings: E, of width D.
    """

    projection: Tensor | None

    def __init__(self, encoder: ImageTextEncoder, embeddings: TokenEmbeddings) -> None:
        super().__init__()
        self._encoder = Frozen(encoder)
        self.block_size = encoder.images_at_a_time
        width = embeddings.width
        bridge = None if encoder.width == width else random_projection(width, encoder.width)
        self.register_buffer("projection", bridge)
        self._all_rows: Callable[[Tensor], Tensor] = lambda own: own
        self.standardize = RunningStandardization(width)
        self.register_buffer("scale", embeddings.std.clone(), persistent=False)
        self.register_buffer("shift", embeddings.mean.clone(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [N, 3, H, W], to features of the embeddings' width [N, D]."""
        features = self._encoder.module(images)
        return features if self.projection is None else features @ self.projection.T

    def tokens(self, remembered: Tensor) -> Tensor:
        """Return the tokens of features [N, D].  [N, 1, D]"""
        return (self.standardize(remembered) * self.scale + self.shift)[:, None]

    def observe(self, remembered: Tensor) -> None:
        """Count features [N, D] in."""
        self.standardize.update(self._all_rows(remembered))

    def share_statistics(self, rows: Callable[[Tensor], Tensor]) -> None:
        """Count in what all ranks see, [n, D] -> [N, D]."""
        self._all_rows = rows

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the encoder's weights."""
        return {"clip_encoder": self._encoder.module.fingerprint}


class HelmV2(LanguageMemoryAgent):
    """HELMv2 with the settings of a run."""

    def __init__(self, config: Config, observation_space: Box, action_space: Discrete) -> None:
        encoder = configured_encoder(config)
        language_model = configured_language_model(config)
        super().__init__(
            observation_space,
            action_space,
            ClipProjection(encoder, language_model.embeddings),
            language_model,
            config.observation_cache_mb,
        )

    @classmethod
    def check(cls, config: Config) -> None:
        """Raise UserError where the language model or the encoder is not to be had."""
        raise_all(
            lambda: super(HelmV2, cls).check(config),
            lambda: check_encoder(config),
        )
