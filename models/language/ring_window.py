"""What a layer sees when every step has to look alike: the whole ring of slots."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from models.language.key_value_memory import hide_ended


def ring_windows(
    rings: tuple[Tensor, Tensor], position: Tensor | int, ages: Tensor, n_new: int, n_visible: int
) -> "list[RingWindow]":
    """Return every layer's view of the whole ring, without the host looking at a number.

    Args:
        rings: Keys and values, read and written.  [L, H*N, R, d] each
        position: The slot of the first new token.
        ages: Tokens before the new ones in each running episode.  [N]
        n_new: K.
        n_visible: How many past tokens may be seen at most.
    """
    n_slots = rings[0].shape[2]
    slots = torch.arange(n_slots, device=ages.device)
    order = (slots - position - n_new) % n_slots
    new = (position + slots[:n_new]) % n_slots
    distances = n_slots - n_new - order  # to the first of the new tokens
    ended = distances > ages.clamp(max=n_visible)[:, None]
    return [
        RingWindow(keys, values, new, order, ended[:, None])
        for keys, values in zip(*rings, strict=True)
    ]


class RingWindow(NamedTuple):
    """What one layer sees: every slot of the ring, K of which the new tokens are written to.

    It stands in for a `LayerWindow` with n=R tokens in the order of their slots.
    """

    keys: Tensor  # [H*N, R, d]
    values: Tensor  # [H*N, R, d]
    new: Tensor  # slots of the new tokens.  [K] int64
    order: Tensor  # how many slots are older than each.  [R] int64
    ended: Tensor  # [N, 1, R] true where a slot is empty or belongs to an ended episode

    @property
    def n_tokens(self) -> int:
        """Return R."""
        return self.keys.shape[1]

    def write(self, keys: Tensor, values: Tensor) -> None:
        """Put the new tokens' keys and values [H*N, K, d] into their slots."""
        self.keys.index_copy_(1, self.new, keys)
        self.values.index_copy_(1, self.new, values)

    def scores(self, queries: Tensor) -> Tensor:
        """Return the products of the queries [H*N, K, d] with all keys.  [H*N, K, R]"""
        return torch.bmm(queries, self.keys.transpose(1, 2))

    def hide_ended(self, columns: Tensor, value: float) -> Tensor:
        """Write a number into [H*N, K, R] where a slot holds nothing of the running episode."""
        return hide_ended(columns, self.ended, value)

    def hide_later(self, columns: Tensor) -> Tensor:
        """Write -inf into [H*N, K, R] where a new token would see one that follows it."""
        own = torch.arange(self.n_tokens - columns.shape[1], self.n_tokens, device=columns.device)
        return columns.masked_fill_(self.order > own[:, None], -math.inf)

    def arranged(self, columns: Tensor) -> Tensor:
        """Return columns [..., R] that lie oldest first in the order of the slots."""
        return columns.index_select(-1, self.order)

    def mix(self, weights: Tensor) -> Tensor:
        """Return the values summed under the weights [H*N, K, R].  [H*N, K, d]"""
        return torch.bmm(weights, self.values)
