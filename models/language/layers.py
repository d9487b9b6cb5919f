"""Frozen layers for few rows at a time, kept as the columns of thin matrices.

A step sends N*K rows through every weight: that costs the reading of the weight. Written
W @ x, with x [in, N*K], all threads share the reading; x @ W^T is about half as fast.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


def frozen(tensor: Tensor) -> nn.Parameter:
    """Return the tensor as a float32 parameter that no optimiser moves."""
    return nn.Parameter(tensor.detach().float().contiguous(), requires_grad=False)


class FrozenLinear(nn.Module):
    """y = W x + b on columns."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = frozen(weight)
        self.bias = None if bias is None else frozen(bias[:, None])

    def forward(self, columns: Tensor) -> Tensor:
        """Map [in, rows] to [out, rows]."""
        if self.bias is None:
            return self.weight @ columns
        return torch.addmm(self.bias, self.weight, columns)


class FrozenLayerNorm(nn.Module):
    """Layer normalisation of rows."""

    def __init__(self, weight: Tensor, bias: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = frozen(weight)
        self.bias = frozen(bias)
        self.epsilon = epsilon

    def forward(self, rows: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        shape = self.weight.shape
        return nn.functional.layer_norm(rows, shape, self.weight, self.bias, self.epsilon)


class FrozenFeedForward(nn.Module):
    """Two linear maps with an activation between them, the input added, then normalised."""

    def __init__(
        self,
        inner: FrozenLinear,
        outer: FrozenLinear,
        norm: FrozenLayerNorm,
        activation: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.inner = inner
        self.outer = outer
        self.norm = norm
        self.activation = activation

    def forward(self, rows: Tensor) -> Tensor:
        """Map [rows, D] to [rows, D]."""
        change = self.outer(self.activation(self.inner(rows.t())))
        return self.norm(rows + change.t())


def linear(weights: Mapping[str, Tensor], name: str) -> FrozenLinear:
    """Return the named layer of a published model, with its bias where it has one."""
    return FrozenLinear(weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def layer_norm(weights: Mapping[str, Tensor], name: str, epsilon: float) -> FrozenLayerNorm:
    """Return the named normalisation of a published model."""
    return FrozenLayerNorm(weights[f"{name}.weight"], weights[f"{name}.bias"], epsilon)
