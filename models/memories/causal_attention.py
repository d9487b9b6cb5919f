"""How a trained transformer attends: to kept keys and values, or within whole sequences.

Queries, keys and values are small matrices, one per head and sequence: [H*N, K, d].
"""

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.language.key_value_memory import Window, join_heads, split_heads


class Attention(Protocol):
    """What a layer asks of the sequence it is part of."""

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return the values that the queries find.  [H*N, K, d] all"""


class PastAttention:
    """Attention of one step to the past; its keys and values are put beside those.

    Attributes:
        window: The steps in sight.
        weights: Where the step looked, once it has, in the window's order.  [H*N, 1, n]
    """

    weights: Tensor

    def __init__(self, window: Window, dropout: float) -> None:
        self.window, self.dropout = window, dropout

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return what the step finds.  [H*N, 1, d]"""
        self.window.write(keys, values)
        scores = self.window.scores(queries / math.sqrt(queries.shape[-1]))
        self.weights = self.window.hide_ended(scores, -math.inf).softmax(dim=-1)
        return self.window.mix(F.dropout(self.weights, self.dropout))


class SequenceAttention:
    """Attention within sequences, all steps at once.

    Attributes:
        visible: Which step, a row, sees which.  [N, T, T] bool
        keys, values: Those of all steps, once they were given.  [H*N, T, d]
    """

    keys: Tensor
    values: Tensor

    def __init__(self, visible: Tensor, dropout: float) -> None:
        self.visible, self.dropout = visible, dropout

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return what every step finds.  [H*N, T, d]"""
        self.keys, self.values = keys, values
        by_head = (-1, len(self.visible))  # [H, N]
        found = F.scaled_dot_product_attention(
            queries.unflatten(0, by_head),
            keys.unflatten(0, by_head),
            values.unflatten(0, by_head),
            attn_mask=self.visible,
            dropout_p=self.dropout,
        )
        return found.flatten(0, 1)


class PreNormBlock(nn.Module):
    """Attention and a feed-forward network, each normalised before and added to what came in.

    The block of GPT-2 (Radford et al. 2019): the feed-forward network is four times as wide and
    has GELUs in their tanh form; weights start as N(0, 0.02), biases as 0.
    """

    def __init__(self, width: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.qkv, self.out, self.inner, self.outer):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor, attention: Attention) -> Tensor:
        """Map K steps of N sequences, [N, K, D], to the same shape."""
        rows = hidden.flatten(0, 1)
        matrices = split_heads(self.qkv(self.attention_norm(rows)), self.n_head, len(hidden))
        found = join_heads(attention(*matrices), self.n_head)
        rows = rows + self.dropout(self.out(found))
        inner = F.gelu(self.inner(self.feed_forward_norm(rows)), approximate="tanh")
        rows = rows + self.dropout(self.outer(inner))
        return rows.view_as(hidden)


def visible_steps(ages: Tensor, n_past: int) -> Tensor:
    """Return which step of a sequence sees which: those of its episode, n_past before it at most.

    Args:
        ages: Steps before each one in its episode.  [N, T]
        n_past: M.

    Returns:
        True where the row's step sees the column's.  [N, T, T]
    """
    steps = torch.arange(ages.shape[1], device=ages.device)
    distances = steps[:, None] - steps  # [T, T]
    near = distances <= ages.clamp(max=n_past)[..., None]  # [N, T, T]
    return near & (distances >= 0)
