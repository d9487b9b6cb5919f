"""What the networks of intrinsic rewards are made of."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.encoders import SmallImpalaCNN
from models.images import Features
from utils.threads import one_thread

CLIP, EPSILON, MOMENTUM = 5.0, 1e-5, 0.1
CHANNELS = (16, 32)  # of the convolutions before a perceptron that reads images


class Perceptron(nn.Module):
    """Linear layers with ReLUs between them; before them convolutions, where images are read.

    Args:
        shape: Of what is read: (F,), or (C, H, W).
        widths: Of the layers, the output's last.
        tanh: Whether the output goes through a tanh.
    """

    def __init__(self, shape: Sequence[int], widths: Sequence[int], tanh: bool = False) -> None:
        super().__init__()
        self.convolutions: SmallImpalaCNN | None = None
        n_inputs = math.prod(shape)
        if len(shape) == 3:
            n_inputs = widths[0]
            self.convolutions = SmallImpalaCNN(tuple(shape), n_inputs, CHANNELS)
        self.tanh, self.n_outputs = tanh, widths[-1]
        self.layers = nn.ModuleList()
        for width in widths:
            self.layers.append(_orthogonal(nn.Linear(n_inputs, width)))
            n_inputs = width

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows [B, ...] to outputs [B, D]."""
        if self.convolutions is not None:
            rows = self.convolutions.of_pixels(rows)
        for layer in self.layers[:-1]:
            rows = F.relu(layer(rows))
        outputs = self.layers[-1](rows)
        return outputs.tanh() if self.tanh else outputs


class Standardised(nn.Module):
    """Batch normalisation without parameters (Ioffe & Szegedy 2015, arXiv:1502.03167), clipped.

        x' = clip((x - mean) / sqrt(variance + 1e-5), -5, 5)

    Mean and variance are always those of the batch; the running ones are followed, as in the
    original, and enter into nothing.

    Args:
        shape: Of what is read.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(tuple(shape)))
        self.register_buffer("variance", torch.ones(tuple(shape)))

    def forward(self, features: Features) -> Features:
        """Standardise B rows, each as often as it stands there."""
        rows, counts = features.distinct, features.counts()
        weights = counts.view(-1, *(1 for _ in rows.shape[1:]))
        n_rows = counts.sum()
        mean = (weights * rows).sum(0) / n_rows
        variance = (weights * (rows - mean).square()).sum(0) / n_rows
        with torch.no_grad():
            self.mean.lerp_(mean, MOMENTUM)
            self.variance.lerp_(variance * n_rows / (n_rows - 1).clamp(min=1), MOMENTUM)
        standardised = (rows - mean) / (variance + EPSILON).sqrt()
        return Features(standardised.clamp(-CLIP, CLIP), features.row_of)


def _orthogonal(layer: nn.Linear) -> nn.Linear:
    """Return a layer with orthogonal weights, gain sqrt(2), and biases of zero."""
    with one_thread():  # the same seed gives the same weights with any number of threads
        nn.init.orthogonal_(layer.weight, gain=math.sqrt(2))
    nn.init.zeros_(layer.bias)
    return layer
