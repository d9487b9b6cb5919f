"""A trained GPT: attention to the last steps of the running episode."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Memory
from models.language.kv_cache import CacheView, KVCache, join_heads, ring_windows, split_heads
from models.language.layers import Linear, linear_product
from models.memories.base import TrainedMemory, head_width
from models.settings import GptSettings

# Maps queries, keys and values to the attention's output: small matrices, one per head and
# sequence.  [H*N, K, d]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class PastAttention:
    """Attention of one step to the past; its keys and values are written beside those.

    Attributes:
        window: The visible steps.
        weights: The attention weights, once computed, in the window's order.  [H*N, 1, n]
    """

    weights: Tensor

    def __init__(self, window: CacheView, dropout: float) -> None:
        self.window, self.dropout = window, dropout

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        # Written first: a step sees itself, too.
        self.window.write(keys, values)
        scores = self.window.scores(queries / math.sqrt(queries.shape[-1]))
        # A ring also holds steps of episodes that have ended: their weight must be 0.
        self.weights = self.window.mask_finished(scores, -math.inf).softmax(dim=-1)
        return self.window.mix(F.dropout(self.weights, self.dropout))


class SequenceAttention:
    """Attention within sequences, all steps at once.

    Attributes:
        visible: Which step, a row, sees which.  [N, K, T] bool
        keys, values: Of all steps, once they were given.  [H*N, T, d]
    """

    keys: Tensor
    values: Tensor

    def __init__(self, visible: Tensor, dropout: float) -> None:
        self.visible, self.dropout = visible, dropout

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self.keys, self.values = keys, values
        if not queries.numel():  # `refresh` wants keys and values alone
            return queries
        # One mask serves all heads, which lie one after another in the rows. It has four axes: with
        # three PyTorch would take its slow way.
        by_head = (-1, len(self.visible))  # [H, N]
        found = F.scaled_dot_product_attention(
            queries.unflatten(0, by_head),
            keys.unflatten(0, by_head),
            values.unflatten(0, by_head),
            attn_mask=self.visible[None],
            dropout_p=self.dropout,
        )
        return found.flatten(0, 1)


class Asked(NamedTuple):
    """R steps of N sequences whose output is asked for, sequence by sequence; all int64."""

    rows: Tensor  # among all N*T steps  [R]
    steps: Tensor  # their numbers in the sequences, as a table that others fill up  [N, K]
    padded: Tensor  # which of the R stands where in that table  [N*K]
    places: Tensor  # where each of the R stands there  [R]

    @classmethod
    def of(cls, rows: Tensor, n_sequences: int, n_steps: int, device: torch.device) -> "Asked":
        # On the CPU: counts make shapes, for which the host would wait.
        of, steps = rows // n_steps, rows % n_steps
        counts = of.bincount(minlength=n_sequences)
        n_most = int(counts.max())
        here = torch.arange(len(rows))
        places = of * n_most + here - (counts.cumsum(0) - counts)[of]
        # Attention needs a table. Behind a sequence's last step any other step fills it.
        padded = rows.new_zeros(n_sequences * n_most)
        padded[places] = here
        table = steps[padded].unflatten(0, (n_sequences, -1))
        return cls(*(each.to(device) for each in (rows, table, padded, places)))


class PreNormBlock(nn.Module):
    """Attention and a feed-forward network, each with LayerNorm before and a residual around it.

    The block of GPT-2 (Radford et al. 2019): the feed-forward network is four times as wide and
    has GELUs in their tanh form; weights start as N(0, 0.02), biases as 0.
    """

    def __init__(self, width: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.inner = Linear(width, 4 * width)
        self.outer = Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.qkv, self.out, self.inner, self.outer):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor, attention: Attention, asked: Asked | None = None) -> Tensor:
        """Map the steps [N, T, D] of N sequences to themselves, or to those asked for.  [R, D]"""
        n_envs, width = len(hidden), hidden.shape[-1]
        rows = hidden.flatten(0, 1)
        # The norm stands before the layer, so that the residual path stays the identity.
        normed = self.attention_norm(rows)
        if asked is None:
            matrices = split_heads(self.qkv(normed), self.n_head, n_envs).unbind()
            return self._rest(rows, join_heads(attention(*matrices), self.n_head)).view_as(hidden)
        # Of the other steps keys and values are seen, and nothing else: a sixth of the work.
        weights, biases = (each.split((width, 2 * width)) for each in self.qkv.parameters())
        queries = linear_product(F.embedding(asked.rows, normed), weights[0], biases[0])
        matrices = (
            *split_heads(F.embedding(asked.padded, queries), self.n_head, n_envs, 1),
            *split_heads(linear_product(normed, weights[1], biases[1]), self.n_head, n_envs, 2),
        )
        found = F.embedding(asked.places, join_heads(attention(*matrices), self.n_head))
        return self._rest(F.embedding(asked.rows, rows), found)

    def _rest(self, rows: Tensor, found: Tensor) -> Tensor:
        rows = self.join(0, rows, self.dropout(self.out(found)))
        inner = F.gelu(self.inner(self.feed_forward_norm(rows)), approximate="tanh")
        return self.join(1, rows, self.dropout(self.outer(inner)))

    def join(self, index: int, rows: Tensor, found: Tensor) -> Tensor:
        """Return the input and the output of attention (0), or of the rest (1), as one."""
        return rows + found


class Gate(nn.Module):
    """A GRU in the place of a residual: x is its state, y its input; z begins near 0.

        r = sigmoid(W_r y + U_r x)    z = sigmoid(W_z y + U_z x - b)
        x' = (1 - z) x + z tanh(W_g y + U_g (r x))

    Parisotto et al. 2020, arXiv:1910.06764, section 3.2; b begins as 2, as in its experiments.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_found = Linear(width, 3 * width, bias=False)
        self.of_rows = Linear(width, 2 * width, bias=False)
        self.of_kept = Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), 2.0))

    def forward(self, rows: Tensor, found: Tensor) -> Tensor:
        # Three products of one input as one; U_g needs r x first and cannot join.
        reset, update, new = self.of_found(found).chunk(3, dim=-1)
        reset_too, update_too = self.of_rows(rows).chunk(2, dim=-1)
        kept = torch.sigmoid(reset + reset_too) * rows
        # The bias keeps z near 0: in the beginning a block passes its input on.
        share = torch.sigmoid(update + update_too - self.bias)
        return torch.lerp(rows, torch.tanh(new + self.of_kept(kept)), share)


class GatedBlock(PreNormBlock):
    """The block of GTrXL: a gate instead of each residual, a ReLU before it."""

    def __init__(self, width: int, n_head: int, dropout: float) -> None:
        super().__init__(width, n_head, dropout)
        self.gates = nn.ModuleList(Gate(width) for _ in range(2))

    def join(self, index: int, rows: Tensor, found: Tensor) -> Tensor:
        return self.gates[index](rows, F.relu(found))


def visible_steps(ages: Tensor, n_past: int, steps: Tensor | None = None) -> Tensor:
    """Return a mask [N, T, T]: a row's step sees its episode, at most `n_past` steps back.

    `ages` [N, T] counts the steps before each one in its episode. Rows are all, or `steps` [N, K].
    """
    every = torch.arange(ages.shape[1], device=ages.device)
    distances = (every if steps is None else steps)[..., None] - every  # [T, T] or [N, K, T]
    # A step of age a has a earlier ones in its episode: further back lies another episode.
    reach = ages if steps is None else ages.gather(1, steps)
    near = distances <= reach.clamp(max=n_past)[..., None]  # [N, T, T] or [N, K, T]
    return near & (distances >= 0)


class SinusoidalPositions(nn.Module):
    """Sines and cosines of the position at geometrically growing wavelengths, not trained.

        p_{t, 2i} = sin(t / 10000^{2i/D}),  p_{t, 2i+1} = cos(t / 10000^{2i/D})

    Vaswani et al. 2017, arXiv:1706.03762, section 3.5. There is no last position.
    """

    def __init__(self, width: int, n_positions: int) -> None:
        super().__init__()
        self.width = width
        # An odd width has one sine more than cosines: `forward` cuts the last one off.
        exponents = torch.arange(0, width, 2) / width
        self.register_buffer("frequencies", torch.exp(-math.log(10_000) * exponents), False)

    def forward(self, positions: Tensor) -> Tensor:
        # Computed, not looked up: episodes may be longer than any table.
        angles = positions[..., None] * self.get_buffer("frequencies")  # [..., D/2 rounded up]
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., : self.width]


class LearnedPositions(nn.Module):
    """A trained vector for each position, over and over: a window of them holds none twice."""

    def __init__(self, width: int, n_positions: int) -> None:
        super().__init__()
        self.table = nn.Embedding(n_positions, width)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, positions: Tensor) -> Tensor:
        # Any M + 1 steps in a row have different remainders, so none in a window is ambiguous.
        return self.table(positions % self.table.num_embeddings)


POSITIONS: dict[str, type[SinusoidalPositions] | type[LearnedPositions]] = {
    "sinusoidal": SinusoidalPositions,
    "learned": LearnedPositions,
}


@dataclass
class GptMemory:
    """The state of N running episodes.

    Attributes:
        past: Keys and values; its ages count the steps that are kept, not those that were.
        ages: Steps of each running episode so far.  [N]
    """

    past: KVCache
    ages: Tensor

    def copy(self) -> "GptMemory":
        return GptMemory(self.past.copy(), self.ages.clone())

    def state_dict(self) -> dict[str, Tensor]:
        return self.past.state_dict() | {"episode_ages": self.ages.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.past.load_state_dict(state)
        self.ages = state["episode_ages"].to(self.ages.device, copy=True)


class Gpt(TrainedMemory):
    """A pre-norm decoder on features (GPT-2, Radford et al. 2019; for RL Ni et al. 2023).

    A step sees itself and the last M = `mem_len` steps of its episode, whose keys and values are
    kept while acting (arXiv:2307.03864). Features of another width are first mapped to the
    memory's. Positions count from the episode's start; M + 1 learned ones begin again behind the
    last.

    With more than one layer a step depends, through the steps it sees, on steps further back, but
    `unroll` knows only the steps it is given. So it equals acting where the state was refreshed
    from the first `n_context` of its steps, or where the episodes begin in it.
    """

    block_class: ClassVar[type[PreNormBlock]] = PreNormBlock
    has_bfloat16 = True

    def __init__(self, n_features: int, settings: GptSettings) -> None:
        super().__init__(n_features, settings)
        self.width = settings.memory_width
        self.n_head, dropout = settings.memory_heads, settings.memory_dropout
        self.head_width = head_width(settings)
        # Keys and values come from weights that an update changes: these steps are read again.
        self.n_context = self.mem_len = settings.mem_len
        same = n_features == self.width
        self.enter = nn.Identity() if same else Linear(n_features, self.width)
        # Vaswani et al. 2017, section 3.4: sinusoids of rms 0.7 drown features of rms 0.05.
        self.scale = math.sqrt(self.width) if settings.memory_feature_scale else 1.0
        # One more than the past: the present step has a position, too.
        self.positions = POSITIONS[settings.memory_positions](self.width, self.mem_len + 1)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            self.block_class(self.width, self.n_head, dropout)
            for _ in range(settings.memory_layers)
        )
        self.norm = nn.LayerNorm(self.width)

    def initial(self, n_envs: int) -> GptMemory:
        n_slots = self.mem_len + 1
        head = n_slots, self.head_width
        # The extra slot is the present step's: it can be written while all M are still seen.
        shape = len(self.blocks), self.n_head * n_envs, *head
        keys, values = (torch.zeros(shape, device=self.device) for _ in range(2))
        ages = torch.zeros(n_envs, dtype=torch.int64, device=self.device)
        # Two counts: that of the kept steps stops at M, positions count on.
        return GptMemory(KVCache(keys, values, ages, self.mem_len, n_slots), ages.clone())

    @torch.no_grad()
    def step(self, x: Tensor, state: Memory, is_first: Tensor, advance: bool = True) -> Tensor:
        memory = cast(GptMemory, state)
        kept, before = memory.past.current_ages(is_first), self.stored_state(state, is_first)
        # Keys and values are written into the free slot, which counts once it is advanced over.
        output, _ = self._attend(x, before, _windows(memory.past, kept))
        if advance:
            memory.past.advance(1, kept)
            memory.ages = before + 1
        return output

    def stored_state(self, state: Memory, is_first: Tensor) -> Tensor:
        """Return the steps of the episode before the present one.  [N] int64"""
        return cast(GptMemory, state).ages.masked_fill(is_first, 0)

    def unroll(self, x: Tensor, is_first: Tensor, stored_state: Tensor) -> Tensor:
        return self._read(x, _ages(is_first, stored_state))[0].transpose(0, 1)

    def unroll_at(self, x: Tensor, is_first: Tensor, stored_state: Tensor, rows: Tensor) -> Tensor:
        n_steps, n_sequences = is_first.shape
        turned = rows % n_sequences * n_steps + rows // n_sequences  # sequence by sequence
        asked = Asked.of(turned, n_sequences, n_steps, x.device)
        return self._read(x, _ages(is_first, stored_state), asked)[0]

    @torch.no_grad()
    def refresh(self, x: Tensor, is_first: Tensor, stored_state: Tensor, state: Memory) -> None:
        n_steps = len(x)
        if not 0 < n_steps <= self.n_context:
            raise ValueError(f"a memory of {self.n_context} steps refreshed from {n_steps}")
        ages = _ages(is_first, stored_state)
        nothing = ages[0, :0]  # only keys and values are wanted
        _, attentions = self._read(x, ages, Asked(nothing, ages[:, :0], nothing, nothing))
        after, n_slots = ages[:, -1] + 1, self.mem_len + 1
        cast(GptMemory, state).load_state_dict(
            {
                "keys": torch.stack([attention.keys for attention in attentions]),
                "values": torch.stack([attention.values for attention in attentions]),
                # Kept are the steps that were given; the episode may be older.
                "ages": after.clamp(max=n_steps),
                "position": torch.tensor(0),
                "n_slots": torch.tensor(n_slots),
                "episode_ages": after,
            }
        )

    @torch.no_grad()
    def attention(self, x: Tensor, state: Memory, is_first: Tensor) -> Tensor:
        past = cast(GptMemory, state).past
        windows = past.windows(past.current_ages(is_first), self.mem_len, 1)
        _, attentions = self._attend(x, self.stored_state(state, is_first), windows)
        maps = torch.stack([attention.weights for attention in attentions])  # [L, H*N, 1, n]
        # The window ends at the oldest running episode: pad it to a fixed width, oldest first.
        n_missing = self.mem_len + 1 - maps.shape[-1]
        by_env = maps.unflatten(1, (self.n_head, len(x))).transpose(1, 2)
        # Steps are counted back from the present, which stands last.
        return nn.functional.pad(by_env, (n_missing, 0))

    def _attend(
        self, x: Tensor, ages: Tensor, windows: Sequence[CacheView]
    ) -> tuple[Tensor, list[PastAttention]]:
        """Return the output [N, D] of one step, and the layers' attentions."""
        attentions = [PastAttention(window, self._dropped) for window in windows]
        return self._through(x[:, None], ages[:, None], attentions)[:, 0], attentions

    def _read(
        self, x: Tensor, ages: Tensor, asked: Asked | None = None
    ) -> tuple[Tensor, list[SequenceAttention]]:
        """Return the output of features [T, B, F], and the layers' attentions.

        It is that of all steps [B, T, D], or of those asked for.  [R, D]
        """
        visible = visible_steps(ages, self.mem_len, None if asked is None else asked.steps)
        masks = [visible] * len(self.blocks)
        if asked is not None and len(masks) > 1:  # layers below the last map every step
            masks[:-1] = [visible_steps(ages, self.mem_len)] * (len(masks) - 1)
        attentions = [SequenceAttention(mask, self._dropped) for mask in masks]
        return self._through(x.transpose(0, 1), ages, attentions, asked), attentions

    def _through(
        self,
        x: Tensor,
        ages: Tensor,
        attentions: Sequence[Attention],
        asked: Asked | None = None,
    ) -> Tensor:
        """Map features [N, K, F] of steps with these ages [N, K] to the output.  [N, K, D]"""
        # Positions are added once, not in every layer: keys keep those of their own step.
        hidden = self.dropout(self.scale * self.enter(x) + self.positions(ages))
        *lower, (last, attention) = zip(self.blocks, attentions, strict=True)
        for block, below in lower:
            hidden = block(hidden, below)
        # A layer needs every step of the one below; of the last only the output is left.
        return self.norm(last(hidden, attention, asked))

    @property
    def _dropped(self) -> float:
        return self.dropout.p if self.training else 0.0


class GTrXL(Gpt):
    """A GPT of gated blocks; its positions are those of the GPT, not relative ones."""

    block_class = GatedBlock
    has_bfloat16 = False  # its gates add up small changes


def _ages(is_first: Tensor, stored_state: Tensor) -> Tensor:
    """Return the number of earlier steps of the episode before each step.  [B, T] int64"""
    # `stored_state` [B] is the first step's, used where no episode begins.
    steps = torch.arange(len(is_first), device=stored_state.device)
    if not is_first.is_cuda and not is_first.any():  # nothing has to be copied to the device
        return steps + stored_state[:, None]
    # Where the last episode began, in steps of this sequence: before it, so 0 or less, if none did.
    begun = torch.where(is_first.to(stored_state.device).T, steps, -stored_state[:, None])  # [B, T]
    return steps - begun.cummax(dim=1).values


def _windows(past: KVCache, ages: Tensor) -> Sequence[CacheView]:
    """Return every layer's view of the past and of the slot that is written next."""
    # On a CPU it ends at the oldest running episode. On a GPU it is the whole ring, since the host
    # would have to wait for the oldest age.
    return _whole_ring(past, ages) if ages.is_cuda else past.windows(ages, past.n_past, 1)


def _whole_ring(past: KVCache, ages: Tensor) -> Sequence[CacheView]:
    rings = past.keys[:, :, : past.n_slots], past.values[:, :, : past.n_slots]
    return ring_windows(rings, past.position, ages, 1, past.n_past)
