"""Memories with a matrix S as state, in each head: keys write values, queries read them.

    S_t = a_t S_{t-1} + k_t u_t^T,    y_t = S_t^T q_t

Acting takes one step; learning attends within chunks of steps, and only the matrices between those
are computed one after the other. The rest of a cell's state are the last inputs of its convolution.
"""

import math
from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.language.layers import Linear
from models.memories.base import head_width
from models.memories.scan import Cell, Scan
from models.settings import ConvolutionSettings

CHUNK = 32  # steps


class Inputs(NamedTuple):
    """What a cell writes and reads at T steps of B sequences, or at one step.

    Attributes:
        log_decays: log a.  [T, B, H]
        queries, keys: [T, B, H, K]
        values: What the keys write.  [T, B, H, V]
        rates: By the delta rule keys write a share of the difference between their value and what
            they find; None: they write their value.  [T, B, H]
    """

    log_decays: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    rates: Tensor | None = None


class MatrixCell(Cell):
    """A layer with a matrix as state, and the last inputs of a convolution beside it.

    Args:
        matrix: The shape of the states S, [H, K, V].
        n_convolved: Channels of the convolution.
    """

    def __init__(
        self, settings: ConvolutionSettings, matrix: tuple[int, int, int], n_convolved: int
    ) -> None:
        super().__init__(settings)
        n_steps = settings.memory_convolution
        self.matrix, self.recent = matrix, (n_steps - 1, n_convolved)
        self.shape = (math.prod(matrix) + math.prod(self.recent),)
        if n_steps > 1:
            # Each channel has weights of its own, begun as PyTorch begins a convolution's.
            # PyTorch's bound is 1 / sqrt(fan in), and each channel sees n_steps numbers.
            limit = n_steps**-0.5
            self.kernel = nn.Parameter(torch.empty(n_steps, n_convolved).uniform_(-limit, limit))
            self.bias = nn.Parameter(torch.empty(n_convolved).uniform_(-limit, limit))

    @abstractmethod
    def enter(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the channels to be convolved, and what else `inputs` and `output` are given."""

    @abstractmethod
    def inputs(self, convolved: Tensor, *seen: Tensor) -> Inputs:
        """Return what is written and read, of convolved channels after a SiLU."""

    @abstractmethod
    def output(self, found: Tensor, convolved: Tensor, *seen: Tensor) -> Tensor:
        """Return the output [..., D] of what the queries found, [..., H, V]."""

    def step(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        matrices, recent = self._parts(before)
        entering, seen = self.enter(x)
        # A step convolves itself and the kept inputs before it, oldest first.
        rows, convolved = torch.cat((recent, entering[None])), entering
        if len(recent):
            # The kernel begins with lag 0, rows end with it.
            convolved = F.silu(self.bias + (self.kernel.flip(0)[:, None] * rows).sum(0))
        log_decays, queries, keys, values, rates = self.inputs(convolved, *seen)
        matrices = log_decays.exp()[..., None, None] * matrices
        if rates is not None:
            # The delta rule: what a key finds already, after the decay, is not written again.
            values = rates[..., None] * (values - (keys[..., None, :] @ matrices).squeeze(-2))
        matrices = matrices + keys[..., None] * values[..., None, :]
        found = (queries[..., None, :] @ matrices).squeeze(-2)
        # One flat state, so that replay and checkpoints need not know its parts.
        after = torch.cat((matrices.flatten(1), rows[1:].movedim(0, 1).flatten(1)), dim=1)
        return self.output(found, convolved, *seen), after

    def unroll(self, x: Tensor, is_first: Tensor, before: Tensor) -> Tensor:
        matrices, recent = self._parts(before)
        entering, seen = self.enter(x)
        rows, convolved = torch.cat((recent, entering)), entering
        if len(recent):
            # silu(bias + sum_j kernel_j x_{t-j}), as far back as the episode goes.
            # Kept inputs count as episode 0: the one that was running, unless one begins at once.
            episodes = F.pad(is_first.long().cumsum(0), (0, 0, len(recent), 0))
            total = self.bias
            for lag, weights in enumerate(self.kernel):
                at = slice(len(recent) - lag, len(rows) - lag)
                # A convolution must not look into the episode before.
                is_same = episodes[at] == episodes[len(recent) :]
                total = total + weights * rows[at] * is_same[..., None]
            convolved = F.silu(total)
        found = attend(self.inputs(convolved, *seen), is_first, matrices)
        return self.output(found, convolved, *seen)

    def _parts(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the matrices [B, H, K, V], and the inputs that were convolved last."""
        matrices, recent = state.split((math.prod(self.matrix), math.prod(self.recent)), dim=1)
        return matrices.unflatten(1, self.matrix), recent.unflatten(1, self.recent).movedim(1, 0)


def attend(given: Inputs, is_first: Tensor, before: Tensor) -> Tensor:
    """Return what the queries find after matrices [B, H, K, V].  [T, B, H, V]"""
    found = []
    for first in range(0, len(is_first), CHUNK):
        # Within a chunk all pairs of steps at once, C^2 of them; between chunks the matrix alone.
        part = slice(first, first + CHUNK)
        log_decays, queries, keys, values = (  # [B, H, C] and [B, H, C, ...]
            each[part].movedim(0, 2) for each in given[:4]
        )
        since = log_decays.cumsum(-1)  # log of the decay since the chunk's begin
        episode = is_first[part].T[:, None].long().cumsum(-1)  # [B, 1, C]
        # A step reads what its own episode has written up to now, itself included.
        visible = (episode[..., None] == episode[..., None, :]).tril()
        decays = since[..., None] - since[..., None, :]
        # Masked before exp: above the diagonal differences are positive and could overflow.
        decays = decays.masked_fill(~visible, -math.inf).exp()  # from step j to step i
        begun = (since.exp() * (episode == 0))[..., None]  # from the chunk's begin
        if given.rates is not None:
            # u_i = b_i (v_i - S_i^T k_i), S_i before it is written, which has the earlier u_j:
            # Yang et al. 2024, arXiv:2406.06484, solve it as one triangular system.
            rates = given.rates[part].movedim(0, 2)[..., None]
            # Strictly below the diagonal: the unit diagonal is implied by unitriangular.
            system = (rates * decays * (keys @ keys.mT)).tril(-1)
            wanted = rates * (values - begun * keys @ before)
            values = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        found.append((decays * (queries @ keys.mT)) @ values + begun * queries @ before)
        # What each step has left behind at the chunk's end; 0 of episodes that have ended.
        decayed = decays[..., -1, :, None] * keys
        # The state that the next chunk begins from.
        before = begun[..., -1:, :] * before + decayed.mT @ values
    return torch.cat(found, dim=2).movedim(2, 0)


class MLstmCell(MatrixCell):
    """C_t = f_t C_{t-1} + i_t k_t [v_t, 1]^T, a matrix for each head, with d = D / heads.

        f_t = sigmoid(cap(w_f x_t)),  i_t = exp(cap(w_i x_t)),  cap(x) = 15 tanh(x / 15)
        [u_t, n_t] = q_t^T C_t / sqrt(d),  q and k of convolved inputs
        y_t = W (sigmoid(W_o x_t) norm(u_t / max(|n_t|, 1)))

    The mLSTM of xLSTM: Beck et al. 2024, arXiv:2405.04517, sections 2.3 and A.2. Its exponential
    gate is capped as in arXiv:2503.13427, instead of a running maximum; the column of ones is its
    n_t.
    """

    CAP = 15.0

    def __init__(self, settings: ConvolutionSettings) -> None:
        width, head, n_heads = settings.memory_width, head_width(settings), settings.memory_heads
        super().__init__(settings, (n_heads, head, head + 1), width)
        self.address = Linear(width, 2 * width)  # queries and keys
        self.content = Linear(width, 2 * width)  # values and the output's gate
        self.gate = Linear(width, 2 * n_heads)
        self.norm = nn.LayerNorm(head)
        self.out = Linear(width, width)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)
        self.gate.bias.data[:n_heads] = torch.linspace(3, 6, n_heads)  # nothing is forgotten yet

    def enter(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        values, gate = self.content(x).chunk(2, dim=-1)
        return x, (x, values, gate)

    def inputs(self, convolved: Tensor, *seen: Tensor) -> Inputs:
        x, values, _ = seen
        n_heads, head, _ = self.matrix
        queries, keys = self.address(convolved).chunk(2, dim=-1)
        queries, keys, values = (p.unflatten(-1, (n_heads, head)) for p in (queries, keys, values))
        # Capped at +-15, exp stays far from float32's end and needs no running maximum.
        forget, admit = (self.CAP * torch.tanh(self.gate(x) / self.CAP)).chunk(2, dim=-1)
        return Inputs(
            F.logsigmoid(forget),
            queries / math.sqrt(head),
            admit.exp()[..., None] * keys,
            # The column of ones adds up the keys: the normaliser n_t, by the same recurrence.
            F.pad(values, (0, 1), value=1.0),
        )

    def output(self, found: Tensor, convolved: Tensor, *seen: Tensor) -> Tensor:
        read = self.norm(found[..., :-1] / found[..., -1:].abs().clamp(min=1))
        return self.out(seen[-1].sigmoid() * read.flatten(-2))


class Decay(nn.Module):
    """log a = -exp(A) softplus(x + b), as Mamba begins it: states last 1 to 1,000 steps or more."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.empty(n_heads).uniform_(1, 16).log())  # A
        steps = torch.empty(n_heads).uniform_(math.log(1e-3), math.log(0.1)).exp()
        self.bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))  # softplus(b) = steps

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return log a, and the sizes of steps softplus(x + b).  [..., H]"""
        steps = F.softplus(x + self.bias)
        return -self.rate.exp() * steps, steps


class GatedDeltaNetCell(MatrixCell):
    """S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T, a matrix for each head.

        y_t = W (norm(S_t^T q_t) silu(W_g x_t)),  b_t = sigmoid(w_b x_t)

    Queries, keys and values are of convolved inputs, the first two of length 1. Yang et al. 2024,
    arXiv:2412.06464, sections 3 and 3.4; values are as wide as keys here.
    """

    def __init__(self, settings: ConvolutionSettings) -> None:
        width, head, n_heads = settings.memory_width, head_width(settings), settings.memory_heads
        super().__init__(settings, (n_heads, head, head), 3 * width)
        self.widths = width, n_heads, n_heads
        self.qkv = Linear(width, 3 * width, bias=False)
        self.gates = Linear(width, sum(self.widths), bias=False)
        self.decay = Decay(n_heads)
        self.norm = nn.RMSNorm(head, eps=1e-6)
        self.out = Linear(width, width, bias=False)

    def enter(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.qkv(x), self.gates(x).split(self.widths, dim=-1)

    def inputs(self, convolved: Tensor, *seen: Tensor) -> Inputs:
        n_heads, head, _ = self.matrix
        queries, keys, values = convolved.unflatten(-1, (3, n_heads, head)).unbind(-3)
        log_decays, _ = self.decay(seen[1])
        # Of length 1: for b in (0, 1), I - b k k^T then never enlarges a state.
        queries, keys = (F.normalize(part, dim=-1) for part in (queries, keys))
        return Inputs(log_decays, queries / math.sqrt(head), keys, values, rates=seen[2].sigmoid())

    def output(self, found: Tensor, convolved: Tensor, *seen: Tensor) -> Tensor:
        return self.out(self.norm(found).flatten(-2) * F.silu(seen[0]))


class Mamba2Cell(MatrixCell):
    """S_t = a_t S_{t-1} + B_t (s_t x_t)^T, a matrix for each head; B and C are shared by all.

        y_t = W norm((S_t^T C_t + d x_t) silu(z_t)),  s_t the size of a step, log a_t = -A s_t

    x, B and C are convolved. Dao & Gu 2024, arXiv:2405.21060, section 7: twice as wide inside, 64
    numbers of state for each.
    """

    EXPANSION, N_STATES = 2, 64

    def __init__(self, settings: ConvolutionSettings) -> None:
        width, n_heads = settings.memory_width, settings.memory_heads
        inner, head = self.EXPANSION * width, self.EXPANSION * head_width(settings)
        self.widths = inner, self.N_STATES, self.N_STATES
        super().__init__(settings, (n_heads, self.N_STATES, head), sum(self.widths))
        self.xbc = Linear(width, sum(self.widths), bias=False)
        self.gates = Linear(width, inner + n_heads, bias=False)
        self.decay = Decay(n_heads)
        self.skip = nn.Parameter(torch.ones(n_heads))  # d
        self.norm = nn.RMSNorm(inner, eps=1e-5)
        self.out = Linear(inner, width, bias=False)

    def enter(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.xbc(x), self.gates(x).split((self.widths[0], self.matrix[0]), dim=-1)

    def inputs(self, convolved: Tensor, *seen: Tensor) -> Inputs:
        n_heads, _, head = self.matrix
        x, keys, queries = convolved.split(self.widths, dim=-1)
        log_decays, steps = self.decay(seen[1])
        values = x.unflatten(-1, (n_heads, head))
        keys, queries = (
            p[..., None, :].expand(*p.shape[:-1], n_heads, -1) for p in (keys, queries)
        )
        return Inputs(log_decays, queries, keys, steps[..., None] * values)

    def output(self, found: Tensor, convolved: Tensor, *seen: Tensor) -> Tensor:
        gate, _ = seen
        x = convolved[..., : self.widths[0]].unflatten(-1, (self.matrix[0], -1))
        read = (found + self.skip[:, None] * x).flatten(-2)
        return self.out(self.norm(read * F.silu(gate)))


class MLstm(Scan):
    cell_class = MLstmCell


class GatedDeltaNet(Scan):
    cell_class = GatedDeltaNetCell


class Mamba2(Scan):
    cell_class = Mamba2Cell
