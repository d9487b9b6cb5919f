"""How a trained transformer is told the time: vectors added to what it reads."""

import math

import torch
from torch import Tensor, nn


class SinusoidalPositions(nn.Module):
    """Sines and cosines of the position at geometrically growing wavelengths, not trained.

        p_{t, 2i} = sin(t / 10000^{2i/D}),  p_{t, 2i+1} = cos(t / 10000^{2i/D})

    Vaswani et al. 2017, arXiv:1706.03762, section 3.5. There is no last position.
    """

    def __init__(self, width: int, n_positions: int) -> None:
        super().__init__()
        self.width = width
        exponents = torch.arange(0, width, 2) / width
        self.register_buffer("frequencies", torch.exp(-math.log(10_000) * exponents), False)

    def forward(self, positions: Tensor) -> Tensor:
        """Map positions [...] int64 to vectors [..., D]."""
        angles = positions[..., None] * self.get_buffer("frequencies")  # [..., D/2 rounded up]
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., : self.width]


class LearnedPositions(nn.Module):
    """A trained vector for each position; the last one stays once an episode is there."""

    def __init__(self, width: int, n_positions: int) -> None:
        super().__init__()
        self.table = nn.Embedding(n_positions, width)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, positions: Tensor) -> Tensor:
        """Map positions [...] int64 to vectors [..., D]."""
        return self.table(positions.clamp(max=self.table.num_embeddings - 1))


POSITIONS: dict[str, type[SinusoidalPositions] | type[LearnedPositions]] = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
}
