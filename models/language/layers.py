"""Linear layers by oneDNN: frozen ones for few rows at a time, trained ones for many.

A step sends N*K rows through every weight: its cost is the reading of the weight. On a CPU oneDNN
reads one laid out in advance about 1.7 times faster than BLAS reads a plain matrix. An update sends
thousands of rows: there oneDNN uses AVX-512 on every processor, PyTorch's BLAS only on Intel's.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# PyTorch's function, and oneDNN's name of it where it is fused with the product: its attribute,
# numbers and algorithm.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[str, list[float], str]]] = {
    "none": (lambda rows: rows, ("none", [], "")),
    "relu": (F.relu, ("relu", [], "")),
    "gelu": (F.gelu, ("gelu", [], "none")),
    "gelu_new": (lambda rows: F.gelu(rows, approximate="tanh"), ("gelu", [], "tanh")),
}
LARGE_PRODUCT = 2**23  # multiplications; with fewer, the call costs more than oneDNN saves


@cache
def fast_dtypes() -> frozenset[torch.dtype]:
    if not torch.backends.mkldnn.is_available():
        return frozenset()
    # Without AVX-512 it raises for bfloat16, and PyTorch's plain products work.
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return frozenset((torch.float32,))
    return frozenset((torch.float32, torch.bfloat16))


def frozen(tensor: Tensor) -> nn.Parameter:
    """Return a float32 copy as a parameter that no optimiser moves."""
    # The tensor may be a piece of a mapped file, and a single piece keeps all of it in memory.
    copy = tensor.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    return nn.Parameter(copy, requires_grad=False)


def thin_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the products of few rows [N, in] with a large frozen matrix [out, in].  [N, out]"""
    if weight.device.type == "cpu" and weight.dtype in fast_dtypes():
        return torch.ops.mkldnn._linear_pointwise.default(rows, weight, None, "none", [], "")
    return F.linear(rows, weight)


class FrozenLinear(nn.Module):
    """y = activation(W x + b) for rows x.

    Attributes:
        weight: W [out, in] in its given type until `pack`; then None, so that it is held once.
        bias: b, of the same type.  [out]
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
        self.activation_name = activation
        self.activation, self._fused = ACTIVATIONS[activation]
        self._packed: Tensor | None = None

    def forward(self, rows: Tensor) -> Tensor:
        """Map float32 rows [..., in] to float32 rows [..., out]."""
        weight: Tensor | None = self.weight
        rows = rows.to(self.dtype)
        if self._packed is not None:
            if not rows.requires_grad:
                product = torch.ops.mkldnn._linear_pointwise.default
                return product(rows, self._packed, self.bias, *self._fused).float()
            weight = self._packed.to_dense()  # oneDNN's product has no gradient
        assert weight is not None, "only packing takes the plain weight away"
        return self.activation(F.linear(rows, weight, self.bias)).float()

    def pack(self, dtype: torch.dtype) -> None:
        """Convert to a data type and, where oneDNN can read it, to its fastest layout."""
        assert self.weight is not None, "a layer is packed once"
        self.dtype = dtype
        self.weight.data = self.weight.to(dtype)
        if self.bias is not None:
            self.bias.data = self.bias.to(dtype)
        if self.weight.device.type == "cpu" and dtype in fast_dtypes():
            # Once, here: else every product would put the weight into this layout again.
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.data)
            self.weight = None

    @property
    def is_slow(self) -> bool:
        """Whether the weight stays plain on a CPU, where oneDNN cannot read its type."""
        return self.weight is not None and self.weight.device.type == "cpu"


class Linear(nn.Linear):
    """`torch.nn.Linear`, by oneDNN where that is faster: in large products of float32 on a CPU."""

    def forward(self, rows: Tensor) -> Tensor:
        return linear_product(rows, self.weight, self.bias)


def linear_product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    n_products = rows.numel() * len(weight)
    is_plain = rows.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if rows.device.type != "cpu" or n_products < LARGE_PRODUCT or not is_plain or not fast_dtypes():
        return F.linear(rows, weight, bias)
    return LinearProduct.apply(rows, weight, bias)


class LinearProduct(torch.autograd.Function):
    """y = x W^T + b of rows x [..., in], by oneDNN, which has no gradients of its own."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], "")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        product = torch.ops.mkldnn._linear_pointwise.default
        flat, flat_rows = gradient.flatten(0, -2), rows.flatten(0, -2)  # [B, out], [B, in]
        return (
            product(gradient, weight.t(), None, "none", [], "") if of_rows else None,
            product(flat.t(), flat_rows.t(), None, "none", [], "") if of_weight else None,
            flat.sum(0) if of_bias else None,
        )


def linear(weights: Mapping[str, Tensor], name: str, activation: str = "none") -> FrozenLinear:
    return FrozenLinear(weights[f"{name}.weight"], weights.get(f"{name}.bias"), activation)


def layer_norm(weights: Mapping[str, Tensor], name: str, epsilon: float) -> nn.LayerNorm:
    weight = weights[f"{name}.weight"]
    norm = nn.LayerNorm(len(weight), epsilon, device="meta")
    norm.weight, norm.bias = frozen(weight), frozen(weights[f"{name}.bias"])
    return norm


def below(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in weights.items()
        if name.startswith(prefix)
    }


def check_finite(module: nn.Module) -> None:
    """Raise ValueError where a weight is no finite number."""
    for name, weights in module.named_parameters():
        if not torch.stack(weights.aminmax()).isfinite().all():  # NaN comes out of both
            raise ValueError(f"{name} has numbers that are not finite")


CHUNK = 1024


class TokenEmbeddings(nn.Module):
    """V vectors of width D; E [V, D] denotes all of them, whether or not it exists."""

    n_tokens: int  # V
    width: int  # D

    @abstractmethod
    def lookup(self, ids: Tensor) -> Tensor:
        """Return the vectors of token ids [...].  [..., D]"""

    @abstractmethod
    def dot(self, vectors: Tensor) -> Tensor:
        """Return the products of vectors [N, D] with every embedding.  [N, V]"""

    @abstractmethod
    def average(self, weights: Tensor) -> Tensor:
        """Return the sums of all embeddings under weights [N, V].  [N, D]"""

    @cached_property
    @abstractmethod
    def norms(self) -> Tensor:
        """The length of every embedding.  [V]"""

    @abstractmethod
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return sum and sum of squares of every feature over V, in float64.  [D] each"""

    @property
    def mean(self) -> Tensor:
        """The mean of every feature over V.  [D]"""
        return self._statistics[0]

    @property
    def std(self) -> Tensor:
        """The (unbiased) standard deviation of every feature over V.  [D]"""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        total, squares = self._moments()
        mean = total / self.n_tokens
        # In float64: the difference of two large sums would lose all digits in float32.
        variance = (squares - total * mean) / max(self.n_tokens - 1, 1)
        return mean.float(), variance.clamp(min=0).sqrt().float()


class DenseEmbeddings(TokenEmbeddings):
    """One table [V, D]."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.n_tokens, self.width = table.shape
        self.table = frozen(table)

    def lookup(self, ids: Tensor) -> Tensor:
        return self.table[ids]

    def dot(self, vectors: Tensor) -> Tensor:
        return thin_product(vectors, self.table)

    def average(self, weights: Tensor) -> Tensor:
        return thin_product(weights, self.table.t())

    @cached_property
    def norms(self) -> Tensor:
        return torch.cat([rows.norm(dim=1) for rows in self.table.split(CHUNK)])

    def _moments(self) -> tuple[Tensor, Tensor]:
        total = torch.zeros(self.width, dtype=torch.float64, device=self.table.device)
        squares = torch.zeros_like(total)
        for rows in self.table.split(CHUNK):
            total += rows.double().sum(0)
            squares += rows.double().square().sum(0)
        return total, squares


class AdaptiveEmbeddings(TokenEmbeddings):
    """Clusters of ever rarer tokens, each a thin table times a projection (arXiv:1809.10853).

        e_v = scale * P_c t_v      for token v of cluster c

    Every product with E goes through the thin tables; E itself is never built.

    Args:
        tables: Rows t of each cluster.  each [V_c, w_c]
        projections: P of each cluster.  each [D, w_c]
    """

    def __init__(
        self, tables: Sequence[Tensor], projections: Sequence[Tensor], scale: float
    ) -> None:
        super().__init__()
        self.tables = nn.ParameterList([frozen(table) for table in tables])
        self.projections = nn.ParameterList([frozen(matrix) for matrix in projections])
        self.scale = scale
        self.n_tokens = sum(len(table) for table in tables)
        self.width = len(projections[0])

    def lookup(self, ids: Tensor) -> Tensor:
        flat = ids.reshape(-1)
        vectors = self.projections[0].new_zeros(len(flat), self.width)
        begin = 0
        for table, projection in self._clusters():
            # A cluster has the ids from `begin` on: its rows are numbered from 0.
            inside = (flat >= begin) & (flat < begin + len(table))
            vectors[inside] = self.scale * (table[flat[inside] - begin] @ projection.t())
            begin += len(table)
        return vectors.view(*ids.shape, self.width)

    def dot(self, vectors: Tensor) -> Tensor:
        # The vector is projected, not the table: V_c rows of width w_c stay thin.
        projected = (self.scale * (vectors @ projection) for projection in self.projections)
        pairs = zip(projected, self.tables, strict=True)
        return torch.cat([thin_product(rows, table) for rows, table in pairs], dim=1)

    def average(self, weights: Tensor) -> Tensor:
        total = weights.new_zeros(len(weights), self.width)
        parts = weights.split([len(table) for table in self.tables], dim=1)
        for part, (table, projection) in zip(parts, self._clusters(), strict=True):
            # Averaged within the cluster first, and projected as one row.
            total.addmm_(thin_product(part, table.t()), projection.t())
        return self.scale * total

    def _clusters(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.tables, self.projections, strict=True)

    @cached_property
    def norms(self) -> Tensor:
        # |P t|^2 = t^T (P^T P) t, with a Gram matrix no larger than the cluster is wide.
        norms = []
        for table, projection in self._clusters():
            gram = projection.t().double() @ projection.double()
            for rows in table.split(CHUNK):
                wide = rows.double()
                norms.append(((wide @ gram) * wide).sum(1).clamp(min=0).sqrt().float())
        return self.scale * torch.cat(norms)

    def _moments(self) -> tuple[Tensor, Tensor]:
        total = torch.zeros(self.width, dtype=torch.float64, device=self.projections[0].device)
        squares = torch.zeros_like(total)
        for table, projection in self._clusters():
            matrix = self.scale * projection.double()
            for rows in table.split(CHUNK):
                wide = rows.double()
                total += matrix @ wide.sum(0)
                squares += ((matrix @ (wide.t() @ wide)) * matrix).sum(1)
        return total, squares
