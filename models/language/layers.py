"""Frozen layers for few rows at a time.

A step sends N*K rows through every weight: that costs the reading of the weight. On a CPU oneDNN
reads one laid out in advance about 1.7 times faster than BLAS reads a plain matrix. Which types
of weight it can read depends on the processor.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda rows: rows,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": lambda rows: F.gelu(rows, approximate="tanh"),
}
# How oneDNN names what it computes together with the product: its attribute, numbers, algorithm.
FUSED: dict[str, tuple[str, list[float], str]] = {
    "none": ("none", [], ""),
    "relu": ("relu", [], ""),
    "gelu": ("gelu", [], "none"),
    "gelu_new": ("gelu", [], "tanh"),
}


def fast_dtypes() -> frozenset[torch.dtype]:
    """Return the types of weights on a CPU that oneDNN multiplies on this processor.

    Without AVX-512 it raises for bfloat16, and PyTorch's plain products work.
    """
    if not torch.backends.mkldnn.is_available():
        return frozenset()
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return frozenset((torch.float32,))
    return frozenset((torch.float32, torch.bfloat16))


def frozen(tensor: Tensor) -> nn.Parameter:
    """Return a float32 copy as a parameter that no optimiser moves.

    The tensor itself may be a piece of a mapped file, which a single piece keeps in memory whole.
    """
    copy = tensor.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    return nn.Parameter(copy, requires_grad=False)


def thin_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the products of few rows [N, in] with a large frozen matrix [out, in].  [N, out]"""
    if weight.device.type == "cpu" and weight.dtype in fast_dtypes():
        return torch.ops.mkldnn._linear_pointwise.default(rows, weight, None, *FUSED["none"])
    return F.linear(rows, weight)


class FrozenLinear(nn.Module):
    """y = activation(W x + b) for rows x.

    Attributes:
        weight: W until `pack` lays it out anew; then None, so that it is held once. It keeps the
            type it is given until then.  [out, in]
        bias: b, of the same type.  [out]
        activation: A key of ACTIVATIONS.
    """

    weight: nn.Parameter | None

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, activation: str = "none"
    ) -> None:
        super().__init__()
        self.dtype = weight.dtype
        self.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
        self.bias = None
        if bias is not None:
            copy = bias.detach().to(self.dtype, copy=True)  # of a mapped file, as `frozen` says
            self.bias = nn.Parameter(copy, requires_grad=False)
        self.activation = activation
        self._packed: Tensor | None = None

    def forward(self, rows: Tensor) -> Tensor:
        """Map float32 rows [..., in] to float32 rows [..., out]."""
        rows = rows.to(self.dtype)
        if self._packed is not None:
            return self._packed_product(rows).float()
        assert self.weight is not None, "only packing takes the plain weight away"
        return ACTIVATIONS[self.activation](F.linear(rows, self.weight, self.bias)).float()

    def pack(self, dtype: torch.dtype) -> None:
        """Take on a data type and, on a CPU that can, the layout that oneDNN reads fastest."""
        assert self.weight is not None, "a layer is packed once"
        self.dtype = dtype
        self.weight.data = self.weight.to(dtype)
        if self.bias is not None:
            self.bias.data = self.bias.to(dtype)
        if self.weight.device.type == "cpu" and dtype in fast_dtypes():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.data)
            self.weight = None

    @property
    def is_slow(self) -> bool:
        """Return whether the weight stays plain on a CPU, where oneDNN cannot read its type."""
        return self.weight is not None and self.weight.device.type == "cpu"

    def _packed_product(self, rows: Tensor) -> Tensor:
        product = torch.ops.mkldnn._linear_pointwise.default
        return product(rows, self._packed, self.bias, *FUSED[self.activation])


def linear(weights: Mapping[str, Tensor], name: str, activation: str = "none") -> FrozenLinear:
    """Return the named layer of a published model, with its bias where it has one."""
    return FrozenLinear(weights[f"{name}.weight"], weights.get(f"{name}.bias"), activation)


def layer_norm(weights: Mapping[str, Tensor], name: str, epsilon: float) -> nn.LayerNorm:
    """Return the named normalisation of a published model."""
    weight = weights[f"{name}.weight"]
    norm = nn.LayerNorm(len(weight), epsilon, device="meta")
    norm.weight, norm.bias = frozen(weight), frozen(weights[f"{name}.bias"])
    return norm


def check_finite(module: nn.Module) -> None:
    """Raise ValueError where a weight is no finite number, such as in a row that is rarely read."""
    for name, weights in module.named_parameters():
        if not torch.stack(weights.aminmax()).isfinite().all():  # NaN comes out of both
            raise ValueError(f"{name} has numbers that are not finite")
