"""A post-norm transformer layer that reads K new tokens with the past at hand."""

from abc import abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from models.language.key_value_memory import LayerWindow
from models.language.layers import FrozenFeedForward, FrozenLayerNorm, FrozenLinear
from models.language.ring_window import RingWindow

Window = LayerWindow | RingWindow


class LayerOutput(NamedTuple):
    """What one layer makes of K new tokens."""

    hidden: Tensor  # [N, K, D]
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
    def attention(self, queries: Tensor, window: Window) -> Tensor:
        """Return where the new tokens look.

        Args:
            queries: Of the new tokens.  [H*N, K, d]
            window: The n tokens in sight, the new ones last.

        Returns:
            Weights that sum to 1; the last n columns are those tokens.  [H*N, K, columns]
        """

    def reading(self, attention: Tensor, window: Window) -> Tensor:
        """Return the weights with which the n tokens' values are read.  [H*N, K, n]"""
        return attention[..., -window.n_tokens :]

    def forward(self, hidden: Tensor, window: Window) -> LayerOutput:
        """Read K new tokens, hidden [N, K, D], and write their keys and values into the window."""
        n_envs, _, width = hidden.shape
        rows = hidden.reshape(-1, width)
        queries, keys, values = split_heads(self.qkv(rows), self.n_head, n_envs)
        window.write(keys, values)
        attention = self.attention(queries, window)
        mixed = window.mix(self.reading(attention, window))
        rows = self.norm(rows + self.out(join_heads(mixed, self.n_head)))
        return LayerOutput(self.feed_forward(rows).view_as(hidden), attention)


def split_heads(rows: Tensor, n_head: int, n_envs: int) -> Tensor:
    """Return rows [N*K, 3*H*d] as small matrices of queries, keys and values.  [3, H*N, K, d]"""
    split = rows.view(n_envs, len(rows) // n_envs, 3, n_head, -1)  # [N, K, 3, H, d]
    return split.permute(2, 3, 0, 1, 4).flatten(1, 2)


def join_heads(matrices: Tensor, n_head: int) -> Tensor:
    """Return one small matrix per head and environment [H*N, K, d] as rows.  [N*K, H*d]"""
    split = matrices.unflatten(0, (n_head, -1))  # [H, N, K, d]
    return split.permute(1, 2, 0, 3).flatten(2).flatten(0, 1)
