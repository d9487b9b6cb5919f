"""SHELM's observation → language: the words whose text embeddings an image comes nearest to."""

import hashlib
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from models.clip_encoder import ImageTextEncoder
from models.image_to_language import Frozen, ImageToLanguage

DECIMALS = 6  # to which similarities are compared, so that no rounding error decides a tie


class Retrieval(NamedTuple):
    """The K words nearest to each of N images, most similar first.

    Attributes:
        indices: Their numbers in `TokenRetrieval.words`.  [N, K] int64
        similarities: Their cosines with the image.  [N, K]
    """

    indices: Tensor
    similarities: Tensor


class TokenRetrieval(ImageToLanguage):
    """Map an image to the tokens that describe it best (SHELM, arXiv:2306.09312, section 3).

        tokens = E[top-K of cosine(encoder(image), e_s) over all words s]

    Of equally similar words the one with the lower number comes first. An image becomes
    the numbers and similarities of its words, [N, K, 2]; such numbers are exact as floats.

    Args:
        encoder: Images to features of width W.
        text_features: e, where each word lies for the encoder.  [S, W]
        token_vectors: E, what each word is to the language model.  [S, D]
        words: The S words.
        topk: K.
    """

    text_features: Tensor
    token_vectors: Tensor

    def __init__(
        self,
        encoder: ImageTextEncoder,
        text_features: Tensor,
        token_vectors: Tensor,
        words: list[str],
        topk: int,
    ) -> None:
        super().__init__()
        self._encoder = Frozen(encoder)
        self._table_fingerprint = _fingerprint(words, text_features)
        self.block_size = encoder.images_at_a_time
        self.register_buffer("text_features", F.normalize(text_features, dim=-1), persistent=False)
        self.register_buffer("token_vectors", token_vectors, persistent=False)
        self.words, self.n_tokens = words, topk

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [N, 3, H, W], to numbers and similarities [N, K, 2]."""
        features = F.normalize(self._encoder.module(images), dim=-1)
        similarities = (features @ self.text_features.T).round(decimals=DECIMALS)  # [N, S]
        similarities, indices = similarities.sort(dim=-1, descending=True, stable=True)
        best = (indices[:, : self.n_tokens].float(), similarities[:, : self.n_tokens])
        return torch.stack(best, dim=-1)

    def tokens(self, encoded: Tensor) -> Tensor:
        """Return the language model's vectors of the words [N, K, 2].  [N, K, D]"""
        return self.token_vectors[encoded[..., 0].long()]

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the encoder's weights and of the table of words."""
        return {
            "clip_encoder": self._encoder.module.fingerprint,
            "embeddings": self._table_fingerprint,
        }

    def retrieve(self, images: Tensor) -> Retrieval:
        """Return the words of images in [0, 1], [N, 3, H, W]."""
        return retrieved(self(images))


def retrieved(encoded: Tensor) -> Retrieval:
    """Return what became of images [N, K, 2] under its names."""
    return Retrieval(encoded[..., 0].long(), encoded[..., 1])


def _fingerprint(words: list[str], text_features: Tensor) -> str:
    """Return the sha256 of words and their features as they were prepared."""
    digest = hashlib.sha256("\n".join(words).encode())
    digest.update(text_features.cpu().numpy().tobytes())
    return digest.hexdigest()
