"""Keys and values of the tokens of every running episode, for any frozen causal transformer."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from models.agent import Memory
from utils.cuda_graphs import CheckedGraph

WIDER = 64  # slots a ring grows by


class CacheView(NamedTuple):
    """The n tokens that one layer sees, the K new ones among them, in runs of slots.

    They lie oldest first or, where `order` is given, as in the ring. In an environment with a
    younger episode the oldest slots hold tokens of an ended one.
    """

    keys: list[Tensor]  # each [H*N, n_i, d]
    values: list[Tensor]  # each [H*N, n_i, d]
    ring: tuple[Tensor, Tensor] | None  # keys and values of all slots, if any.  [H*N, R, d] each
    new: slice | Tensor  # the slots of the ring that the new tokens are written to
    ended: Tensor | None  # True: of an ended episode.  [N, 1, n]; None without such tokens
    order: Tensor | None = None  # the number of tokens older than each.  [n] int64

    @property
    def n_tokens(self) -> int:
        return sum(keys.shape[1] for keys in self.keys)

    def write(self, keys: Tensor, values: Tensor) -> None:
        """Write the new tokens' keys and values [H*N, K, d] into their slots."""
        if self.ring is None:  # they are all in sight, and may have gradients
            self.keys[:], self.values[:] = [keys], [values]
            return
        for slots, written in zip(self.ring, (keys, values), strict=True):
            slots[:, self.new] = written

    def scores(self, queries: Tensor) -> Tensor:
        """Return the products of the queries [H*N, K, d] with all keys.  [H*N, K, n]"""
        columns = queries.transpose(1, 2)
        if queries.shape[1] == 1:  # a single column goes faster the other way round
            products = [torch.bmm(keys, columns).transpose(1, 2) for keys in self.keys]
        else:
            products = [torch.bmm(queries, keys.transpose(1, 2)) for keys in self.keys]
        return products[0] if len(products) == 1 else torch.cat(products, dim=-1)

    def mask_finished(self, columns: Tensor, value: float) -> Tensor:
        """Write a number into [H*N, K, n] where a token belongs to an ended episode."""
        if self.ended is not None:
            # A view: heads of one environment share the mask, and nothing is copied.
            by_env = columns.unflatten(0, (-1, len(self.ended)))  # [H, N, K, n]
            by_env.masked_fill_(self.ended, value)
        return columns

    def out_of_reach(self, n_new: int, reach: int | None = None) -> Tensor:
        """Return the tokens after each of K new ones, or `reach` or more before.  [K, n] bool"""
        device = self.keys[0].device
        order = torch.arange(self.n_tokens, device=device) if self.order is None else self.order
        own = torch.arange(self.n_tokens - n_new, self.n_tokens, device=device)[:, None]
        return order > own if reach is None else (order > own) | (order <= own - reach)

    def arranged(self, columns: Tensor) -> Tensor:
        """Return columns [..., n], oldest first, in the order of the tokens in sight."""
        return columns if self.order is None else columns.index_select(-1, self.order)

    def mix(self, weights: Tensor) -> Tensor:
        """Return the values summed under the weights [H*N, K, n].  [H*N, K, d]"""
        parts = weights.split([values.shape[1] for values in self.values], dim=-1)
        mixed = torch.bmm(parts[0], self.values[0])
        for part, values in zip(parts[1:], self.values[1:], strict=True):
            # Added in place to the first run's product: a ring wraps once, so two runs at most.
            mixed = mixed.baddbmm_(part, values)
        return mixed


def ring_windows(
    rings: tuple[Tensor, Tensor], position: Tensor | int, ages: Tensor, n_new: int, n_visible: int
) -> list[CacheView]:
    """Return every layer's view of the whole ring, without the host looking at a number.

    Args:
        rings: Keys and values.  [L, H*N, R, d] each
        position: The slot of the first new token.
        ages: Tokens before the new ones in each running episode.  [N]
    """
    n_slots = rings[0].shape[2]
    slots = torch.arange(n_slots, device=ages.device)
    # Counted from the slot behind the new tokens, which is the oldest one.
    order = (slots - position - n_new) % n_slots
    new = (position + slots[:n_new]) % n_slots
    distances = n_slots - n_new - order  # to the first of the new tokens
    # Older than the episode, or further back than may be seen: both are hidden alike.
    ended = (distances > ages.clamp(max=n_visible)[:, None])[:, None]
    return [
        CacheView([keys], [values], (keys, values), new, ended, order)
        for keys, values in zip(*rings, strict=True)
    ]


class Ring(NamedTuple):
    """A layer's slots and the one that is written next, without the host looking at a number."""

    keys: Tensor  # [H*N, R, d]
    values: Tensor  # [H*N, R, d]
    position: Tensor  # of the new token.  [] int64
    ages: Tensor  # tokens before the new one in each running episode.  [N] int64
    n_visible: int  # the most of them that may be seen


class Foreseen(NamedTuple):
    """The last layer's output for tokens of a look ahead."""

    tokens: Tensor  # [N, K, D]
    ages: Tensor  # [N] before these tokens
    hidden: Tensor  # [N, D]


class KVCache(Memory):
    """The tokens that a language model has read of N running episodes.

    A ring of slots per layer, written at one position shared by all environments. Slots older than
    an environment's age belong to ended episodes: nothing is cleared or moved, and a step reads no
    slot older than the oldest running episode. Besides the past there is room for the tokens of one
    call, written before they are read. The ring grows with the longest episode so far.

    Attributes:
        ages: Tokens in the running episode of each environment.  [N]
        foreseen: The result of a look ahead, whose tokens `advance` would keep.
        graph: The step of the language model on a GPU, recorded on these slots.
        keys, values: The slots.  [L, H*N, at least R, d]
        n_past: The number of past tokens that are kept.
        n_slots: R, the slots in the ring.
        position: The slot that is written next, 0..R-1.
    """

    foreseen: Foreseen | None = None
    graph: CheckedGraph[Tensor] | None = None

    def __init__(
        self, keys: Tensor, values: Tensor, ages: Tensor, n_past: int, n_slots: int = 1
    ) -> None:
        self.keys, self.values, self.ages = keys, values, ages
        self.n_past, self.n_slots, self.position = n_past, n_slots, 0

    @classmethod
    def empty(
        cls, n_envs: int, n_layer: int, n_past: int, heads: tuple[int, int], device: torch.device
    ) -> "KVCache":
        """Return the memory of new episodes; `heads` is (their number H, their width d)."""
        n_head, width = heads
        shape = (n_layer, n_head * n_envs, n_past + 1, width)
        ages = torch.zeros(n_envs, dtype=torch.long, device=device)
        keys, values = torch.empty(shape, device=device), torch.empty(shape, device=device)
        return cls(keys, values, ages, n_past)

    @property
    def n_envs(self) -> int:
        return len(self.ages)

    def current_ages(self, is_first: Tensor) -> Tensor:
        """Return the ages, 0 where `is_first` [N] marks a new episode.  [N]"""
        if is_first.shape != self.ages.shape:
            raise ValueError(f"starts {tuple(is_first.shape)} for a memory of {self.n_envs}")
        return self.ages.masked_fill(is_first.to(self.ages.device), 0)

    def recall(self, tokens: Tensor, ages: Tensor) -> Tensor | None:
        """Return the hidden states [N, D] if the last look ahead was at exactly these tokens."""
        seen = self.foreseen
        if seen is None or seen.tokens.shape != tokens.shape:
            return None
        same = torch.equal(seen.tokens, tokens) and torch.equal(seen.ages, ages)
        return seen.hidden if same else None

    def windows(self, ages: Tensor, n_visible: int, n_new: int) -> list[CacheView]:
        """Return every layer's view of the past and of K new tokens, without copying a slot.

        The new tokens belong to the memory once `advance` has counted them. `ages` are from
        `current_ages` [N]; `n_visible` is the most past tokens that may be seen.
        """
        self.foreseen = None
        self.make_room(n_new)
        # One look at the device for both numbers.
        youngest, oldest = torch.stack(ages.aminmax()).tolist()
        self._widen(min(oldest, self.n_past) + n_new)
        n_tokens = max(min(oldest, n_visible, self.n_past), 0)
        ended = None
        # Only then does a row reach into an ended episode; else no mask is needed.
        if youngest < n_tokens:
            distances = torch.arange(n_tokens, -n_new, -1, device=ages.device)
            ended = (distances > ages[:, None])[:, None]
        end = (self.position + n_new) % self.n_slots
        seen = self._runs(n_tokens + n_new, end)
        new: slice | Tensor = slice(self.position, self.position + n_new)
        # Across the end of the ring: slots by number, as a slice cannot wrap.
        if self.position + n_new > self.n_slots:
            slots = torch.arange(self.position, self.position + n_new, device=ages.device)
            new = slots % self.n_slots
        return [
            CacheView([k[:, run] for run in seen], [v[:, run] for run in seen], (k, v), new, ended)
            for k, v in zip(self.keys, self.values, strict=True)
        ]

    def advance(self, n_new: int, ages: Tensor) -> None:
        """Keep the K tokens that were read last; `ages` are from `current_ages`."""
        self.foreseen = None
        self.ages = ages + n_new
        self.position = (self.position + n_new) % self.n_slots

    def latest(self, n_tokens: int, ages: Tensor, end: int) -> Tensor:
        """Return the first layer's keys and values of the last tokens before `end`.  [N, n, 2*H*d]

        Oldest first; zeros where an episode has had fewer, which `ages` [N] tell.
        """
        back = torch.arange(n_tokens, 0, -1, device=ages.device)
        slots = (end - back) % self.n_slots
        first_layer = self.keys[0], self.values[0]  # [H*N, R, d] each
        # Keys and values as if they were more heads, to be joined in one go.
        pairs = torch.cat([kept.index_select(1, slots) for kept in first_layer])
        rows = join_heads(pairs, len(pairs) // len(ages)).unflatten(0, (len(ages), -1))
        return rows.masked_fill_((back > ages[:, None])[..., None], 0)

    def make_room(self, n_new: int) -> None:
        n_needed = self.n_past + n_new
        if n_needed > self.keys.shape[2]:
            self.graph = None
            self.keys, self.values = (
                self._enlarged(old, n_needed) for old in (self.keys, self.values)
            )

    def open(self, n_new: int) -> None:
        """Widen the ring to all slots, K of them for new tokens, with a number in every slot."""
        self.make_room(n_new)
        state = self.state_dict() | {"n_slots": torch.tensor(self.n_past + n_new)}
        # A slot that was never written may hold NaN, and 0 times NaN is NaN, mask or not.
        self.keys.zero_()
        self.values.zero_()
        self.load_state_dict(state)

    def copy(self) -> Self:
        # Not the room behind the ring: its pages would be touched for the first time.
        ring = slice(0, self.n_slots)
        tensors = self.keys[:, :, ring].clone(), self.values[:, :, ring].clone(), self.ages.clone()
        twin = type(self)(*tensors, self.n_past, self.n_slots)
        twin.position = self.position
        return twin

    def state_dict(self) -> dict[str, Tensor]:
        # Only tokens of running episodes: the rest will never be read again.
        runs = self._runs(min(int(self.ages.max()), self.n_past), self.position)
        return {
            "keys": torch.cat([self.keys[:, :, run] for run in runs], dim=2),
            "values": torch.cat([self.values[:, :, run] for run in runs], dim=2),
            "ages": self.ages.clone(),
            "position": torch.tensor(self.position),
            "n_slots": torch.tensor(self.n_slots),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        n_tokens = state["keys"].shape[2]
        position, n_slots = int(state["position"]), int(state["n_slots"])
        # A saved file is foreign: a wrong position would write beyond the ring.
        fits = (
            state["ages"].shape == self.ages.shape
            and state["keys"][:, :, :0].shape == self.keys[:, :, :0].shape
            and n_tokens <= min(self.n_past, n_slots)
            and 0 <= position < n_slots
        )
        if not fits:
            raise ValueError(
                f"a memory saved as {tuple(state['keys'].shape)} of {len(state['ages'])} envs "
                f"does not fit slots {tuple(self.keys.shape)} of {self.n_envs} envs"
            )
        self.foreseen = None
        self.ages = state["ages"].to(self.ages.device, copy=True)
        self.make_room(n_slots - self.n_past)
        if n_slots != self.n_slots:
            self.graph = None
        self.n_slots, self.position = n_slots, position
        first = 0
        for run in self._runs(n_tokens, position):
            last = first + run.stop - run.start
            self.keys[:, :, run] = state["keys"][:, :, first:last]
            self.values[:, :, run] = state["values"][:, :, first:last]
            first = last

    def _widen(self, n_slots: int) -> None:
        # New slots are put before the oldest token's.
        if n_slots <= self.n_slots:
            return
        # By 64 at once, since each widening moves all tokens behind the position.
        n_more = min(max(n_slots - self.n_slots, WIDER), self.keys.shape[2] - self.n_slots)
        if self.position == 0:  # the oldest token is in the first slot: go on behind the last
            self.position = self.n_slots
        else:
            first, last = self.position, self.n_slots
            for layer in (*self.keys, *self.values):  # one at a time, so that copies stay small
                layer[:, first + n_more : last + n_more] = layer[:, first:last].clone()
        self.n_slots += n_more

    def _enlarged(self, slots: Tensor, n_slots: int) -> Tensor:
        *others, _, width = slots.shape
        larger = slots.new_empty(*others, n_slots, width)
        larger[:, :, : self.n_slots] = slots[:, :, : self.n_slots]
        return larger

    def _runs(self, n_tokens: int, end: int) -> list[slice]:
        """Return the slots of the n tokens before a position as runs that do not wrap."""
        first = end - n_tokens
        if first >= 0:
            return [slice(first, end)]
        wrapped = slice(self.n_slots + first, self.n_slots)
        return [wrapped] if end == 0 else [wrapped, slice(0, end)]


def split_heads(rows: Tensor, n_head: int, n_envs: int, n_parts: int = 3) -> Tensor:
    """Return rows [N*K, 3*H*d] as small matrices of queries, keys and values.  [3, H*N, K, d]"""
    shape = n_parts, n_head, rows.shape[1] // n_parts // n_head
    split = rows.view(n_envs, len(rows) // n_envs, *shape)  # [N, K, 3, H, d]
    return split.permute(2, 3, 0, 1, 4).flatten(1, 2)


def join_heads(matrices: Tensor, n_head: int) -> Tensor:
    """Return one small matrix per head and environment [H*N, K, d] as rows.  [N*K, H*d]"""
    split = matrices.unflatten(0, (n_head, -1))  # [H, N, K, d]
    return split.permute(1, 2, 0, 3).flatten(2).flatten(0, 1)
