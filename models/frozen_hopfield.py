"""HELM's observation → language: a frozen Hopfield retrieval among token embeddings."""

import math

import torch
from torch import Tensor

from models.image_to_language import Frozen, ImageToLanguage
from models.language.token_embeddings import TokenEmbeddings
from models.observations import Observations


def random_projection(n_out: int, n_in: int) -> Tensor:
    """Return a matrix [n_out, n_in] with entries from N(0, 1/n_out)."""
    return torch.randn(n_out, n_in) / math.sqrt(n_out)


class FrozenHopfield(ImageToLanguage):
    """Map an image to a weighted mean of token embeddings (HELM, arXiv:2205.12258, section 3).

        token = softmax(beta * cosine(P o, E)) E

    o is the image's mean over colours, flattened; P a fixed random projection; E the embeddings as
    the language model feeds them to its first layer. The paper writes a dot product; the published
    code and its results use the cosine, and so does this. Colours as bright as each other, such as
    pure red, green and blue, are one and the same to it.

    Args:
        projection: P.  [D, H*W]
        embeddings: E, by the products with it.
        beta: Inverse temperature; the larger, the nearer to a single token.
    """

    block_size = 4  # a step shows few new images in a maze,
    larger_blocks = (16, 64)  # and nothing else where there are real numbers: E is read once
    projection: Tensor

    def __init__(self, projection: Tensor, embeddings: TokenEmbeddings, beta: float) -> None:
        super().__init__()
        self.register_buffer("projection", projection)
        self._embeddings = Frozen(embeddings)
        self.beta = beta

    @property
    def embeddings(self) -> TokenEmbeddings:
        """E, a part of the language model."""
        return self._embeddings.module

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [N, C, H, W], to tokens [N, 1, D]."""
        return self.embeddings.average(self.weights(self.similarities(images)))[:, None]

    def weights(self, similarities: Tensor) -> Tensor:
        """Return how much every token counts, given its cosine, which is overwritten.  [N, V]"""
        return similarities.mul_(self.beta).softmax(-1)

    def flat(self, images: Tensor) -> Tensor:
        """Return what is projected of images.  [N, H*W]"""
        return images.mean(1).flatten(1)

    def similarities(self, images: Tensor) -> Tensor:
        """Return the cosine of each projected image with every token.  [N, V]"""
        state = self.flat(images) @ self.projection.T  # [N, D]
        norms = torch.outer(state.norm(dim=-1), self.embeddings.norms)
        return self.embeddings.dot(state).div_(norms.add_(1e-8))


class ColourHopfield(FrozenHopfield):
    """The same of every colour, o being the whole image; P is [D, C*H*W]."""

    def flat(self, images: Tensor) -> Tensor:
        """Return images as they are.  [N, C*H*W]"""
        return images.flatten(1)


class VectorHopfield(FrozenHopfield):
    """The same of vectors, o being the vector itself; P is [D, F]."""

    def seen(self, observations: Observations) -> Tensor:
        """Return the bytes of the vectors.  [N, 4F] uint8"""
        assert observations.vectors is not None, "this retrieval was chosen for vectors"
        return observations.vectors.contiguous().view(torch.uint8)

    def prepared(self, seen: Tensor) -> Tensor:
        """Return the vectors, each as an image of one row and no colours.  [N, 1, F]"""
        return seen.view(torch.float32)[:, None]
