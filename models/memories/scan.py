"""Memories with a linear recurrence, whose steps need not wait for each other when learning.

    h_t = a_t * h_{t-1} + b_t,    |a_t| <= 1

`Scan` is the layers. A cell is one layer's recurrence: one step when acting, all steps at once when
learning. Those of this file have gates a and b, computed from their inputs alone, and say what they
read of the state; those with a matrix as state are in matrix.py.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Memory, TensorMemory
from models.language.layers import Linear
from models.memories.base import TrainedMemory
from models.settings import FfmSettings, NetworkSettings
from utils.errors import UserError, shortened


def recurrence(decays: Tensor, inputs: Tensor, initial: Tensor) -> Tensor:
    """Return h_t = a_t * h_{t-1} + b_t for all t, without gradients.  [T, ...]

    Chunks of about sqrt(T) steps are computed side by side, each from an empty state; then one
    after the other takes up the last state of the chunk before. Only products of numbers up to 1
    are formed: no division, and no logarithm.

    Args:
        decays: a, of a shape that can be broadcast to that of b.  [T, ...]
        inputs: b.  [T, ...]
        initial: h_0.  [...]
    """
    n_steps = len(inputs)
    # sqrt(T) steps in T / sqrt(T) chunks: the two loops together are shortest so.
    size = math.isqrt(n_steps - 1) + 1
    n_chunks = -(-n_steps // size)
    missing = (0, 0) * (inputs.ndim - 1) + (0, n_chunks * size - n_steps)
    states, products = (  # padding copies, also where nothing is missing
        F.pad(part, missing).unflatten(0, (n_chunks, size)) for part in (inputs, decays)
    )
    # All chunks take their step together; products gather the decay since the chunk's begin.
    for step in range(1, size):
        states[:, step].addcmul_(products[:, step], states[:, step - 1])
        products[:, step].mul_(products[:, step - 1])
    # Now each chunk gets what the one before has left, decayed by as many steps.
    for chunk, product in zip(states, products, strict=True):
        chunk.addcmul_(product, initial)
        initial = chunk[-1]
    return states.flatten(0, 1)[:n_steps]


class LinearRecurrence(torch.autograd.Function):
    """`recurrence` with gradients, which are a recurrence from the last step to the first.

    dL/db_t = dL/dh_t + a*_{t+1} dL/db_{t+1},    dL/da_t = dL/db_t h*_{t-1}
    """

    @staticmethod
    def forward(ctx: Any, decays: Tensor, inputs: Tensor, initial: Tensor) -> Tensor:
        states = recurrence(decays, inputs, initial)
        # States are kept, inputs are not: gradients need h_{t-1} and a alone.
        ctx.save_for_backward(decays, states, initial)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decays, states, initial = ctx.saved_tensors
        # Gradients run backwards through the same recurrence: a*_{t+1} meets that of step t + 1.
        following = decays.conj().resolve_conj().roll(-1, 0).flip(0)  # the first meets a state of 0
        of_inputs = recurrence(following, grad.flip(0), torch.zeros_like(initial)).flip(0)
        # h_{t-1} of each step.
        before = torch.cat((initial[None], states[:-1]))
        # Decays were broadcast: their gradient is the sum over what shared them.
        of_decays = (of_inputs * before.conj()).sum_to_size(decays.shape)
        return of_decays, of_inputs, decays[0].conj() * of_inputs[0]


class Cell(nn.Module, ABC):
    """A layer of a `Scan`, D numbers wide; `shape` and `dtype` are those of its state."""

    shape: tuple[int, ...]
    dtype = torch.float32

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()

    @abstractmethod
    def step(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output [N, D] of inputs [N, D], and the states after them, [N, *shape]."""

    @abstractmethod
    def unroll(self, x: Tensor, is_first: Tensor, before: Tensor) -> Tensor:
        """Return the output [T, B, D] of whole sequences, from states [B, *shape]."""


class GatedCell(Cell):
    """A cell whose gates are of each number of the state."""

    @abstractmethod
    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Return a and b of inputs [..., D], and what else `read` is to be given.

        a may be of another shape that can be broadcast to that of b, [..., *shape].
        """

    @abstractmethod
    def read(self, states: Tensor, *seen: Tensor) -> Tensor:
        """Return the output [..., D] of states [..., *shape]."""

    def step(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        decays, inputs, seen = self.gates(x)
        now = decays * before + inputs
        return self.read(now, *seen), now

    def unroll(self, x: Tensor, is_first: Tensor, before: Tensor) -> Tensor:
        decays, inputs, seen = self.gates(x)
        decays = decays.expand_as(inputs)
        if is_first.is_cuda or is_first.any():  # on a GPU, asking would make the host wait
            # a = 0 where an episode begins: h = b, as from an empty state.
            decays = decays.masked_fill(is_first.view(*is_first.shape, *[1] * len(self.shape)), 0)
        return self.read(LinearRecurrence.apply(decays, inputs, before), *seen)


class Scan(TrainedMemory):
    """Layers x + cell(norm(x)); features of another width are first mapped to the memory's.

    State and stored state are the states of all layers, [N, L, *shape].
    """

    cell_class: ClassVar[type[Cell]]

    def __init__(self, n_features: int, settings: NetworkSettings) -> None:
        super().__init__(n_features, settings)
        self.width = settings.memory_width
        same = n_features == self.width
        self.enter = nn.Identity() if same else Linear(n_features, self.width)
        layers = range(settings.memory_layers)
        self.norms = nn.ModuleList(nn.LayerNorm(self.width) for _ in layers)
        self.cells: Any = nn.ModuleList(self.cell_class(settings) for _ in layers)

    def initial(self, n_envs: int) -> TensorMemory:
        cell = self.cells[0]
        shape = n_envs, len(self.cells), *cell.shape
        return TensorMemory(torch.zeros(shape, dtype=cell.dtype, device=self.device))

    @torch.no_grad()
    def step(self, x: Tensor, state: Memory, is_first: Tensor, advance: bool = True) -> Tensor:
        x, after = self.enter(x), []
        layers = zip(
            self.norms, self.cells, self.stored_state(state, is_first).unbind(1), strict=True
        )
        for norm, cell, before in layers:
            read, now = cell.step(norm(x), before)
            x = x + read
            after.append(now)
        if advance:
            # A new tensor: a caller may hold the one before as its stored_state.
            cast(TensorMemory, state).state = torch.stack(after, dim=1)
        return x

    def stored_state(self, state: Memory, is_first: Tensor) -> Tensor:
        return cast(TensorMemory, state).before(is_first)

    def unroll(self, x: Tensor, is_first: Tensor, stored_state: Tensor) -> Tensor:
        x, is_first = self.enter(x), is_first.to(x.device)
        for norm, cell, before in zip(self.norms, self.cells, stored_state.unbind(1), strict=True):
            x = x + cell.unroll(norm(x), is_first, before)
        return x


class MinGruCell(GatedCell):
    """h_t = (1 - z_t) h_{t-1} + z_t g(W_h x_t), z_t = sigmoid(W_z x_t); read as it is.

    g(x) is x + 1/2 from 0 on, and sigmoid(x) below. Feng et al. 2024, arXiv:2410.01201, appendix B;
    its logarithms are not needed here.
    """

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__(settings)
        self.shape = (settings.memory_width,)
        self.enter = Linear(settings.memory_width, 2 * settings.memory_width)
        # States last 2 to 400 steps at first, as Tallec & Ollivier 2018, arXiv:1804.11188, advise.
        self.enter.bias.data[: settings.memory_width] = -torch.linspace(0, 6, settings.memory_width)

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        gate, new = self.enter(x).chunk(2, dim=-1)
        share = gate.sigmoid()
        return 1 - share, share * (new.clamp(min=0) + new.clamp(max=0).sigmoid()), ()

    def read(self, states: Tensor, *seen: Tensor) -> Tensor:
        return states


class LruCell(GatedCell):
    """h_t = lambda h_{t-1} + gamma B x_t in complex numbers, read by a gated linear unit.

        lambda = exp(-exp(nu) + i exp(theta))
        y_t = GLU(GELU(Re(C h_t) + d x_t))

    Orvieto et al. 2023, arXiv:2303.06349, appendix A. A state has N = D/2 numbers; |lambda| begins
    between 0.9 and 0.999, the phase between 0 and 2 pi, gamma as sqrt(1 - |lambda|^2). Real and
    imaginary parts of B begin with a variance of 1/(2D), those of C with 1/N.
    """

    dtype = torch.complex64
    RING, MAX_PHASE = (0.9, 0.999), 2 * math.pi

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__(settings)
        width = settings.memory_width
        self.shape = ((width + 1) // 2,)
        low, high = self.RING
        # Uniform on the ring's area, so |lambda|^2 is uniform, not |lambda|.
        squares = low**2 + torch.rand(self.shape) * (high**2 - low**2)  # of |lambda|
        self.nu = nn.Parameter(torch.log(-squares.log() / 2))
        self.theta = nn.Parameter(torch.log(self.MAX_PHASE * (1 - torch.rand(self.shape))))
        # So h begins with the variance of B x, whatever lambda; the logarithm keeps it positive.
        self.gamma = nn.Parameter((1 - squares).sqrt().log())
        self.enter = Linear(width, 2 * self.shape[0], bias=False)  # B
        self.leave = Linear(2 * self.shape[0], width, bias=False)  # C
        nn.init.normal_(self.enter.weight, std=(2 * width) ** -0.5)
        nn.init.normal_(self.leave.weight, std=self.shape[0] ** -0.5)
        self.skip = nn.Parameter(torch.randn(width))
        self.out = Linear(width, 2 * width)

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        inputs = torch.view_as_complex(self.enter(x).unflatten(-1, (-1, 2)))
        # By exp of exp |lambda| stays below 1 whatever training does.
        rates = torch.complex(-self.nu.exp(), self.theta.exp())
        return rates.exp(), self.gamma.exp() * inputs, (x,)

    def read(self, states: Tensor, *seen: Tensor) -> Tensor:
        read = self.leave(torch.view_as_real(states).flatten(-2)) + self.skip * seen[0]
        return F.glu(self.out(F.gelu(read)), dim=-1)


def _numbers(periods: str) -> list[float]:
    try:
        numbers = [float(each) for each in periods.split(",")]
    except ValueError:
        numbers = []
    if numbers and all(number > 0 for number in numbers):
        return numbers
    raise UserError(
        f"ffm_periods: '{shortened(periods)}' is no list of positive numbers with commas between, "
        "such as 1,342,683,1024 or inf,8,4"
    )


class FfmCell(GatedCell):
    """S_t = gamma S_{t-1} + (W_1 x_t) sigmoid(W_2 x_t) 1^T, m traces at c frequencies each.

        gamma_jk = exp(-|alpha_j| + i omega_k)
        y_t = o_t norm(W_3 S_t) + (1 - o_t) W_5 x_t,    o_t = sigmoid(W_4 x_t)

    Fast and Forgetful Memory: Morad et al. 2023, arXiv:2310.04128. As in its runs on POPGym m and c
    are 32 and 4, decays begin between 1/2 and 1% in 1,024 steps, and frequencies at 2 pi over
    `ffm_periods`, which have hardly a phase at a lag of a few steps.
    """

    dtype = torch.complex64
    N_TRACES, LONGEST = 32, 1024  # m, and steps

    def __init__(self, settings: FfmSettings) -> None:
        super().__init__(settings)
        periods, width = torch.tensor(_numbers(settings.ffm_periods)), settings.memory_width
        self.shape = n_traces, n_periods = self.N_TRACES, len(periods)  # m, c
        slowest = math.log(100) / self.LONGEST
        self.alpha = nn.Parameter(torch.linspace(math.log(2), slowest, n_traces))
        self.omega = nn.Parameter(2 * math.pi / periods)
        self.widths = n_traces, n_traces, width, width
        self.enter = Linear(width, sum(self.widths))
        self.mix = Linear(2 * n_traces * n_periods, width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        new, gate, skip, leave = self.enter(x).split(self.widths, dim=-1)
        traces = (new * gate.sigmoid())[..., None].expand(*new.shape, self.shape[1])
        rates = torch.complex(
            -self.alpha.abs()[:, None].expand(self.shape), self.omega.expand(self.shape)
        )
        inputs = torch.complex(traces, torch.zeros_like(traces))
        return rates.exp(), inputs, (skip, leave.sigmoid())

    def read(self, states: Tensor, *seen: Tensor) -> Tensor:
        skip, share = seen
        return torch.lerp(skip, self.norm(self.mix(torch.view_as_real(states).flatten(-3))), share)


class MinGru(Scan):
    cell_class = MinGruCell


class Lru(Scan):
    cell_class = LruCell


class Ffm(Scan):
    cell_class = FfmCell
