"""A post-norm transformer layer that reads K new tokens with the past at hand."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.language.key_value_memory import LayerPast
from models.language.layers import FrozenFeedForward, FrozenLayerNorm, FrozenLinear


class LayerOutput(NamedTuple):
    """What one layer makes of K new tokens."""

    hidden: Tensor  # [N, K, D]
    keys: Tensor  # [H*N, K, d]
    values: Tensor  # [H*N, K, d]
    attention: Tensor  # [H*N, K, columns], the latest token last


class CausalLayer(nn.Module):
    """Attention to the past and the K new tokens, then a feed-forward network.

    Args:
        n_head: H.
        qkv: D to queries, keys and values of all heads, [3*H*d].
        out: What the heads found, [H*d], to D.
        norm: Follows the attention.
        feed_forward: The layer's second half.
    """

    def __init__(
        self,
        n_head: int,
        qkv: FrozenLinear,
        out: FrozenLinear,
        norm: FrozenLayerNorm,
        feed_forward: FrozenFeedForward,
    ) -> None:
        super().__init__()
        self.n_head = n_head
        self.qkv = qkv
        self.out = out
        self.norm = norm
        self.feed_forward = feed_forward

    @abstractmethod
    def attention(self, queries: Tensor, keys: Tensor, past: LayerPast) -> Tensor:
        """Return where the new tokens look.

        Args:
            queries, keys: Of the new tokens.  each [H*N, K, d]
            past: The n tokens before them.

        Returns:
            Weights that sum to 1; the last n+K columns are the past and the new tokens.
            [H*N, K, columns]
        """

    def forward(self, hidden: Tensor, past: LayerPast) -> LayerOutput:
        """Read K new tokens, hidden [N, K, D]."""
        n_envs, n_new, width = hidden.shape
        rows = hidden.reshape(n_envs * n_new, width)
        projections = self.qkv(rows.t()).chunk(3)  # each [H*d, N*K]
        queries, keys, values = (split_heads(part, self.n_head, n_envs) for part in projections)
        attention = self.attention(queries, keys, past)
        seen = attention[..., attention.shape[-1] - n_new - past.n_tokens : -n_new]
        mixed = past.mix(seen) + torch.bmm(attention[..., -n_new:], values)
        rows = self.norm(rows + self.out(join_heads(mixed, self.n_head)).t())
        return LayerOutput(self.feed_forward(rows).view_as(hidden), keys, values, attention)


def split_heads(columns: Tensor, n_head: int, n_envs: int) -> Tensor:
    """Return columns [H*d, N*K] as one small matrix per head and environment.  [H*N, K, d]"""
    split = columns.view(n_head, -1, n_envs, columns.shape[1] // n_envs)  # [H, d, N, K]
    return split.permute(0, 2, 3, 1).flatten(0, 1).contiguous()


def join_heads(matrices: Tensor, n_head: int) -> Tensor:
    """Return small matrices [H*N, K, d] as the columns of one.  [H*d, N*K]"""
    split = matrices.unflatten(0, (n_head, -1))  # [H, N, K, d]
    return split.permute(0, 3, 1, 2).flatten(2).flatten(0, 1)
