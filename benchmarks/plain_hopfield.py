"""The straightforward FrozenHopfield: the yardstick of `benchmarks.hopfield`."""

import torch
from torch import Tensor


class PlainHopfield:
    """Retrieval by products with all of E, a table [V, D] (HELM, arXiv:2205.12258, section 3).

    Args:
        projection: P.  [D, H*W]
        embeddings: E.  [V, D]
        beta: Inverse temperature.
    """

    def __init__(self, projection: Tensor, embeddings: Tensor, beta: float) -> None:
        self.projection, self.embeddings, self.beta = projection, embeddings, beta
        self.norms = embeddings.norm(dim=1)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [N, C, H, W], to tokens [N, 1, D]."""
        state = images.mean(1).flatten(1) @ self.projection.T  # [N, D]
        lengths = state.norm(dim=-1, keepdim=True) * self.norms
        similarities = state @ self.embeddings.T / (lengths + 1e-8)  # [N, V]
        return ((self.beta * similarities).softmax(-1) @ self.embeddings)[:, None]
