"""Keys and values of the tokens of every running episode, for any frozen causal transformer."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class LayerPast(NamedTuple):
    """What one layer sees of the past: n tokens, oldest first, in one or two runs of slots.

    The slots of an environment whose episode is younger hold tokens of one that ended.
    """

    keys: list[Tensor]  # each [H*N, n_i, d]
    values: list[Tensor]  # each [H*N, n_i, d]
    ended: Tensor | None  # [N, 1, n] true where it does; None where no token does

    @property
    def n_tokens(self) -> int:
        """Return n."""
        return sum(keys.shape[1] for keys in self.keys)

    def scores(self, queries: Tensor) -> Tensor:
        """Return the products of the queries [H*N, K, d] with the past keys.  [H*N, K, n]"""
        columns = queries.transpose(1, 2)
        if queries.shape[1] == 1:  # a single column goes faster the other way round
            products = [torch.bmm(keys, columns).transpose(1, 2) for keys in self.keys]
        else:
            products = [torch.bmm(queries, keys.transpose(1, 2)) for keys in self.keys]
        return products[0] if len(products) == 1 else torch.cat(products, dim=-1)

    def without_ended(self, columns: Tensor, otherwise: float = 0.0) -> Tensor:
        """Return [H*N, K, n] with another number where a token belongs to an ended episode."""
        if self.ended is None:
            return columns
        by_env = columns.unflatten(0, (-1, len(self.ended)))  # [H, N, K, n]
        return by_env.masked_fill(self.ended, otherwise).flatten(0, 1)

    def mix(self, weights: Tensor) -> Tensor:
        """Return the past values summed under the weights [H*N, K, n].  [H*N, K, d]"""
        weights = self.without_ended(weights)
        parts = weights.split([values.shape[1] for values in self.values], dim=-1)
        mixed = torch.bmm(parts[0], self.values[0])
        for part, values in zip(parts[1:], self.values[1:], strict=True):
            mixed = mixed.baddbmm_(part, values)
        return mixed


class KeyValueMemory:
    """A ring of slots per layer, written at one position shared by all environments.

    Each environment only remembers how many tokens its episode has had (its age): whatever is
    older belongs to an episode that ended. So nothing is cleared and nothing is moved; a step
    reads no slot older than the oldest running episode.

    Attributes:
        keys, values: The slots.  [L, H*N, R, d]
        ages: Tokens fed in the running episode of each environment.  [N]
        position: The slot that is written next, 0..R-1.
    """

    def __init__(self, keys: Tensor, values: Tensor, ages: Tensor, position: int = 0) -> None:
        self.keys = keys
        self.values = values
        self.ages = ages
        self.position = position

    @classmethod
    def empty(
        cls, n_envs: int, n_layer: int, n_slots: int, heads: tuple[int, int], device: torch.device
    ) -> "KeyValueMemory":
        """Return a memory of episodes about to begin; `heads` is (their number H, their width)."""
        n_head, width = heads
        shape = (n_layer, n_head * n_envs, n_slots, width)
        ages = torch.zeros(n_envs, dtype=torch.long, device=device)
        return cls(torch.zeros(shape, device=device), torch.zeros(shape, device=device), ages)

    @property
    def n_envs(self) -> int:
        """Return N."""
        return len(self.ages)

    @property
    def n_slots(self) -> int:
        """Return R."""
        return self.keys.shape[2]

    def current_ages(self, starts: Tensor) -> Tensor:
        """Return the ages once the episodes marked in `starts` [N] have begun.  [N]"""
        if starts.shape != self.ages.shape:
            raise ValueError(f"starts {tuple(starts.shape)} for a memory of {self.n_envs}")
        return self.ages.masked_fill(starts.to(self.ages.device), 0)

    def past(self, ages: Tensor, n_visible: int) -> list[LayerPast]:
        """Return every layer's view of the past, without copying a slot.

        Args:
            ages: From `current_ages`.  [N]
            n_visible: How many of the latest tokens may be seen at most.
        """
        youngest, oldest = torch.stack(ages.aminmax()).tolist()
        n_tokens = max(min(oldest, n_visible, self.n_slots), 0)
        ended = None
        if youngest < n_tokens:
            distances = torch.arange(n_tokens, 0, -1, device=ages.device)
            ended = (distances > ages[:, None])[:, None]
        runs = self._runs(n_tokens)
        return [
            LayerPast([keys[:, run] for run in runs], [values[:, run] for run in runs], ended)
            for keys, values in zip(self.keys, self.values, strict=True)
        ]

    def append(self, new: Sequence[tuple[Tensor, Tensor]], ages: Tensor) -> None:
        """Write K tokens over the oldest slots.

        Args:
            new: Keys and values of every layer.  each [H*N, K, d]
            ages: From `current_ages`, before these tokens.  [N]
        """
        n_new = new[0][0].shape[1]
        n_kept = min(n_new, self.n_slots)
        self.ages = ages + n_new
        if n_kept == 0:  # mem_len 1: a token sees itself only
            return
        self.position = (self.position + n_new) % self.n_slots
        for layer, (keys, values) in enumerate(new):
            self._write(self.keys[layer], keys[:, n_new - n_kept :])
            self._write(self.values[layer], values[:, n_new - n_kept :])

    def copy(self) -> "KeyValueMemory":
        """Return an independent copy."""
        return KeyValueMemory(
            self.keys.clone(), self.values.clone(), self.ages.clone(), self.position
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tokens of the running episodes, oldest first, and where they lie."""
        runs = self._runs(min(int(self.ages.max()), self.n_slots))
        return {
            "keys": torch.cat([self.keys[:, :, run] for run in runs], dim=2),
            "values": torch.cat([self.values[:, :, run] for run in runs], dim=2),
            "ages": self.ages.clone(),
            "position": torch.tensor(self.position),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over a saved memory of the same language model, mem_len and number of envs."""
        n_tokens = state["keys"].shape[2]
        position = int(state["position"])
        fits = (
            state["ages"].shape == self.ages.shape
            and state["keys"][:, :, :0].shape == self.keys[:, :, :0].shape
            and max(n_tokens, position) <= self.n_slots
        )
        if not fits:
            raise ValueError(
                f"a memory saved as {tuple(state['keys'].shape)} of {len(state['ages'])} envs "
                f"does not fit slots {tuple(self.keys.shape)} of {self.n_envs} envs"
            )
        self.position = position
        self.ages = state["ages"].to(self.ages.device, copy=True)
        self._write(self.keys, state["keys"])
        self._write(self.values, state["values"])

    def _write(self, slots: Tensor, tokens: Tensor) -> None:
        """Put the latest tokens [..., n, d] where they belong in slots [..., R, d]."""
        runs = self._runs(tokens.shape[-2])
        parts = tokens.split([run.stop - run.start for run in runs], dim=-2)
        for run, part in zip(runs, parts, strict=True):
            slots[..., run, :] = part

    def _runs(self, n_tokens: int) -> list[slice]:
        """Return the slots of the latest tokens, oldest first, as runs that do not wrap."""
        first = self.position - n_tokens
        if first >= 0:
            return [slice(first, self.position)]
        wrapped = slice(self.n_slots + first, self.n_slots)
        return [wrapped] if self.position == 0 else [wrapped, slice(0, self.position)]
