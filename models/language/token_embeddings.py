"""The token embeddings of a language model, as they are fed to its first layer (scaled)."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from models.language.layers import frozen, thin_product

CHUNK = 1024


class TokenEmbeddings(nn.Module):
    """V vectors of width D; E [V, D] stands for all of them, whether or not it exists.

    Attributes:
        n_tokens: V.
        width: D.
    """

    n_tokens: int
    width: int

    @abstractmethod
    def lookup(self, ids: Tensor) -> Tensor:
        """Return the vectors of token ids [...].  [..., D]"""

    @abstractmethod
    def dot(self, vectors: Tensor) -> Tensor:
        """Return the products of vectors [N, D] with every embedding.  [N, V]"""

    @abstractmethod
    def average(self, weights: Tensor) -> Tensor:
        """Return the sums of all embeddings under weights [N, V].  [N, D]"""

    @abstractmethod
    def _norms(self) -> Tensor: ...

    @abstractmethod
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return sum and sum of squares of every feature over V, in float64.  [D] each"""

    @cached_property
    def norms(self) -> Tensor:
        """Return the length of every embedding.  [V]"""
        with torch.no_grad():
            return self._norms()

    @property
    def mean(self) -> Tensor:
        """Return the mean of every feature over V.  [D]"""
        return self._statistics[0]

    @property
    def std(self) -> Tensor:
        """Return the (unbiased) standard deviation of every feature over V.  [D]"""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            total, squares = self._moments()
            mean = total / self.n_tokens
            variance = (squares - total * mean) / max(self.n_tokens - 1, 1)
            return mean.float(), variance.clamp(min=0).sqrt().float()


class DenseEmbeddings(TokenEmbeddings):
    """One table [V, D]."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.n_tokens, self.width = table.shape
        self.table = frozen(table)

    def lookup(self, ids: Tensor) -> Tensor:
        """Return the vectors of token ids [...].  [..., D]"""
        return self.table[ids]

    def dot(self, vectors: Tensor) -> Tensor:
        """Return the products of vectors [N, D] with every embedding.  [N, V]"""
        return thin_product(vectors, self.table)

    def average(self, weights: Tensor) -> Tensor:
        """Return the sums of all embeddings under weights [N, V].  [N, D]"""
        return thin_product(weights, self.table.t())

    def _norms(self) -> Tensor:
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
        scale: What the published model multiplies its embeddings by.
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
        """Return the vectors of token ids [...].  [..., D]"""
        flat = ids.reshape(-1)
        vectors = self.projections[0].new_zeros(len(flat), self.width)
        begin = 0
        for table, projection in self._clusters():
            inside = (flat >= begin) & (flat < begin + len(table))
            vectors[inside] = self.scale * (table[flat[inside] - begin] @ projection.t())
            begin += len(table)
        return vectors.view(*ids.shape, self.width)

    def dot(self, vectors: Tensor) -> Tensor:
        """Return the products of vectors [N, D] with every embedding.  [N, V]"""
        projected = (self.scale * (vectors @ projection) for projection in self.projections)
        pairs = zip(projected, self.tables, strict=True)
        return torch.cat([thin_product(rows, table) for rows, table in pairs], dim=1)

    def average(self, weights: Tensor) -> Tensor:
        """Return the sums of all embeddings under weights [N, V].  [N, D]"""
        total = weights.new_zeros(len(weights), self.width)
        parts = weights.split([len(table) for table in self.tables], dim=1)
        for part, (table, projection) in zip(parts, self._clusters(), strict=True):
            total.addmm_(thin_product(part, table.t()), projection.t())
        return self.scale * total

    def _clusters(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.tables, self.projections, strict=True)

    def _norms(self) -> Tensor:
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
