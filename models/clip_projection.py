"""How HELMv2 leads from images to language: CLIP's features, scaled and shifted like tokens."""

import torch
from torch import Tensor, nn

from models.clip_encoder import ImageTextEncoder
from models.frozen_hopfield import random_projection
from models.image_to_language import Frozen, ImageToLanguage
from models.language import TokenEmbeddings
from utils.running_statistics import Moments

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
        """Take in rows [N, W]."""
        rows = features.double()
        mean = rows.mean(0)
        new = Moments(len(rows), mean, (rows - mean).square().sum(0))
        after = Moments(self.count, self.mean, self.squares).merged(new)
        for buffer, value in zip((self.count, self.mean, self.squares), after, strict=True):
            buffer.copy_(value)

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
        self.standardize = RunningStandardization(width)
        self.register_buffer("scale", embeddings.std.clone(), persistent=False)
        self.register_buffer("shift", embeddings.mean.clone(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [N, 3, H, W], to features of the embeddings' width [N, D]."""
        features = self._encoder.module(images)
        return features if self.projection is None else features @ self.projection.T

    def tokens(self, encoded: Tensor) -> Tensor:
        """Return the tokens of features [N, D].  [N, 1, D]"""
        return (self.standardize(encoded) * self.scale + self.shift)[:, None]

    def observe(self, encoded: Tensor) -> None:
        """Count features [N, D] in."""
        self.standardize.update(encoded)

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the encoder's weights."""
        return {"clip_encoder": self._encoder.module.fingerprint}
