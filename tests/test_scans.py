"""The cells of linear recurrences and GTrXL's gate: the numbers of their papers' equations."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers import Mamba2Config
from transformers.models.mamba2 import modeling_mamba2
from transformers.models.qwen3_next import modeling_qwen3_next

from models.memories import gpt, matrix, scan

WIDTH, N_HEADS, N_ENVS = 8, 2, 3
SIZES = SimpleNamespace(
    memory_width=WIDTH,
    memory_heads=N_HEADS,
    memory_layers=1,
    memory_convolution=4,
    ffm_periods="inf,8,4,2.5",
)
MATRICES = [matrix.MLstmCell, matrix.GatedDeltaNetCell, matrix.Mamba2Cell]
CELLS = [scan.MinGruCell, scan.LruCell, scan.FfmCell, *MATRICES]
every_cell = pytest.mark.parametrize("kind", CELLS)
few = settings(max_examples=10, deadline=None, database=None, derandomize=True)


def shaken(module, std=0.5):
    """Return the module in float64, its parameters drawn so that every part matters."""
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.normal_(std=std)
    return module


def by_equations(cell, x, before):
    """Return the outputs [T, D] of one sequence [T, D], a step at a time as its paper says."""
    return torch.stack([*LOOPS[type(cell)](cell, x, before)])


def min_gru(cell, x, h):
    (w_z, w_h), (b_z, b_h) = cell.enter.weight.chunk(2), cell.enter.bias.chunk(2)
    for x_t in x:
        z, new = torch.sigmoid(w_z @ x_t + b_z), w_h @ x_t + b_h
        h = (1 - z) * h + z * torch.where(new >= 0, new + 0.5, new.sigmoid())
        yield h


def lru(cell, x, h):
    decay = torch.exp(torch.complex(-cell.nu.exp(), cell.theta.exp()))
    b = torch.complex(cell.enter.weight[::2], cell.enter.weight[1::2])
    c = torch.complex(cell.leave.weight[:, ::2], -cell.leave.weight[:, 1::2])
    for x_t in x:
        h = decay * h + cell.gamma.exp() * (b @ x_t.to(h.dtype))
        y, gate = cell.out(F.gelu((c @ h).real + cell.skip * x_t)).chunk(2)
        yield y * torch.sigmoid(gate)


def ffm(cell, x, state):
    decay = torch.exp(-cell.alpha.abs()[:, None] + 1j * cell.omega)
    for x_t in x:
        new, gate, skip, out = cell.enter(x_t).split([32, 32, WIDTH, WIDTH])
        state = decay * state + (new * torch.sigmoid(gate))[:, None]
        mixed = cell.mix(torch.stack((state.real, state.imag), dim=-1).flatten())
        out = torch.sigmoid(out)
        yield out * F.layer_norm(mixed, (WIDTH,)) + (1 - out) * skip


def entering(cell, rows, before):
    """Return the matrices before, [H, K, V], and each row [C] with those before it, convolved."""
    recent = before[len(before) - 3 * rows.shape[-1] :].view(3, -1)
    rows = torch.cat((recent, rows))
    weights = cell.kernel.flip(0)
    convolved = [(rows[t : t + 4] * weights).sum(0) + cell.bias for t in range(len(rows) - 3)]
    return before[: len(before) - recent.numel()].view(cell.matrix), map(F.silu, convolved)


def m_lstm(cell, x, before):
    state, convolved = entering(cell, x, before)
    c, n = state[..., :-1], state[..., -1]
    for x_t, u_t in zip(x, convolved, strict=True):
        (q, k), (v, o) = cell.address(u_t).chunk(2), cell.content(x_t).chunk(2)
        q, k, v = (part.view(N_HEADS, -1) for part in (q, k, v))
        f, i = (15 * torch.tanh(cell.gate(x_t) / 15)).view(2, N_HEADS, 1)
        c = f.sigmoid()[..., None] * c + i.exp()[..., None] * k[:, :, None] * v[:, None]
        n, q = f.sigmoid() * n + i.exp() * k, q / q.shape[-1] ** 0.5
        norm = (q * n).sum(-1, keepdim=True).abs().clamp(min=1)
        yield cell.out(o.sigmoid() * cell.norm((q[:, None] @ c).squeeze(1) / norm).flatten())


def gated_delta_net(cell, x, before):
    state, convolved = entering(cell, cell.qkv(x), before)
    for x_t, u_t in zip(x, convolved, strict=True):
        q, k, v = u_t.view(3, N_HEADS, -1)
        gate, slow, rate = cell.gates(x_t).split([WIDTH, N_HEADS, N_HEADS])
        q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
        decay = torch.exp(-cell.decay.rate.exp() * F.softplus(slow + cell.decay.bias))
        eye, rate = torch.eye(k.shape[-1]), rate.sigmoid()[:, None, None]
        forget = decay[:, None, None] * (eye - rate * k[:, :, None] * k[:, None])
        state = forget @ state + rate * k[:, :, None] * v[:, None]
        read = cell.norm((q[:, None] @ state).squeeze(1) / k.shape[-1] ** 0.5)
        yield cell.out(read.flatten() * F.silu(gate))


def mamba_2(cell, x, before):
    state, convolved = entering(cell, cell.xbc(x), before)
    for x_t, u_t in zip(x, convolved, strict=True):
        v, b, c = u_t.split([2 * WIDTH, 64, 64])
        gate, size = cell.gates(x_t).split([2 * WIDTH, N_HEADS])
        v, size = v.view(N_HEADS, -1), F.softplus(size + cell.decay.bias)
        decay = torch.exp(-cell.decay.rate.exp() * size)[:, None, None]
        state = decay * state + b[:, None] * (size[:, None] * v)[:, None]
        read = c @ state + cell.skip[:, None] * v
        yield cell.out(cell.norm(read.flatten() * F.silu(gate)))


LOOPS = dict(zip(CELLS, (min_gru, lru, ffm, m_lstm, gated_delta_net, mamba_2), strict=True))


def test_cells_begin_as_their_papers_say():
    wide = SimpleNamespace(**vars(SIZES) | {"memory_width": 512, "memory_heads": 128})
    lru = scan.LruCell(wide)
    radii, phases = torch.exp(-lru.nu.exp()), lru.theta.exp()
    assert torch.all((radii >= 0.9) & (radii <= 0.999))
    assert torch.all((phases > 0) & (phases <= 2 * torch.pi))
    assert phases.max() > torch.pi
    torch.testing.assert_close(lru.gamma.exp() ** 2 + radii**2, torch.ones(256))
    for layer, std in ((lru.enter, (2 * 512) ** -0.5), (lru.leave, 256**-0.5)):
        assert layer.weight.std().item() == pytest.approx(std, rel=0.02)
    ffm, turns = scan.FfmCell(SIZES), torch.tensor([0, 1 / 8, 1 / 4, 1 / 2.5])  # a step
    torch.testing.assert_close(ffm.omega, 2 * torch.pi * turns)
    torch.testing.assert_close(
        torch.exp(-ffm.alpha[[0, -1]]), torch.tensor([0.5, 0.01 ** (1 / 1024)])
    )
    lasting = 1 + scan.MinGruCell(wide).enter.bias[:512].neg().exp()
    torch.testing.assert_close(lasting[[0, -1]], torch.tensor([2, 1 + math.exp(6)]))
    for kind in (matrix.GatedDeltaNetCell, matrix.Mamba2Cell):
        decay = kind(wide).decay
        sizes, rates = F.softplus(decay.bias), decay.rate.exp()
        assert torch.all((sizes >= 0.99e-3) & (sizes <= 0.101))
        assert torch.all((rates >= 1) & (rates <= 16))
        assert sizes.max() > 10 * sizes.min()  # they do not begin alike


@pytest.mark.quick("MinGruCell", "Mamba2Cell")
@every_cell
@few
@given(n_steps=st.integers(1, 70), starts=st.sets(st.integers(0, 69)))
def test_a_cell_gives_the_numbers_of_its_equations_from_any_state(kind, n_steps, starts):
    cell, x = shaken(kind(SIZES)), torch.randn(n_steps, 1, WIDTH, dtype=torch.float64)
    double = torch.complex128 if cell.dtype.is_complex else torch.float64
    before = torch.randn(1, *cell.shape, dtype=double)
    starts = sorted({start for start in starts if start < n_steps})
    is_first = torch.zeros(n_steps, 1, dtype=torch.bool)
    is_first[starts] = True
    found = cell.unroll(x, is_first, before)[:, 0]
    state, acted = before, []
    for x_t, begins in zip(x, is_first, strict=True):
        output, state = cell.step(x_t, torch.where(begins, 0, state))
        acted.append(output[0])
    torch.testing.assert_close(torch.stack(acted), found, atol=1e-7, rtol=1e-7)
    parts = x[:, 0].tensor_split(starts)
    states = [before[0], *[torch.zeros_like(before[0])] * len(starts)]
    episodes = [each for each in zip(parts, states, strict=True) if len(each[0])]
    expected = torch.cat([by_equations(cell, *each) for each in episodes])
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-7)


@torch.no_grad()
@pytest.mark.parametrize("n_steps", [1, 5, 70])
def test_gated_deltanet_writes_and_finds_what_the_transformers_library_does(n_steps):
    keys, queries, values = (torch.randn(n_steps, 2, N_HEADS, n) for n in (6, 6, 4))
    keys = F.normalize(keys, dim=-1)
    decays, rates = -torch.rand(n_steps, 2, N_HEADS), torch.rand(n_steps, 2, N_HEADS)
    before = torch.randn(2, N_HEADS, 6, 4)
    rule = modeling_qwen3_next.torch_recurrent_gated_delta_rule
    batch_first = (part.transpose(0, 1) for part in (queries, keys, values, decays, rates))
    expected, _ = rule(*batch_first, initial_state=before, output_final_state=False)
    queries = queries / 6**0.5
    shown = matrix.Inputs(decays, queries, keys, values, rates)
    found = matrix.attend(shown, torch.zeros(n_steps, 2, dtype=torch.bool), before)
    torch.testing.assert_close(found.transpose(0, 1), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_mamba_2_gives_the_numbers_of_the_transformers_library():
    sizes = {"hidden_size": WIDTH, "num_heads": N_HEADS, "head_dim": WIDTH, "n_groups": 1}
    config = Mamba2Config(**sizes, state_size=64, conv_kernel=4, chunk_size=16, use_bias=False)
    mixer, cell = modeling_mamba2.Mamba2Mixer(config, 0), matrix.Mamba2Cell(SIZES)
    for parameter in mixer.parameters():
        parameter.normal_(std=0.5)
    z, xbc, dt = mixer.in_proj.weight.split([2 * WIDTH, 2 * WIDTH + 128, N_HEADS])
    pairs = (
        (cell.xbc.weight, xbc),
        (cell.gates.weight, torch.cat((z, dt))),
        (cell.kernel, mixer.conv1d.weight.squeeze(1).T.flip(0)),
        (cell.bias, mixer.conv1d.bias),
        (cell.decay.rate, mixer.A_log),
        (cell.decay.bias, mixer.dt_bias),
        (cell.skip, mixer.D),
        (cell.norm.weight, mixer.norm.weight),
        (cell.out.weight, mixer.out_proj.weight),
    )
    for ours, theirs in pairs:
        ours.copy_(theirs)
    x = torch.randn(50, 2, WIDTH)
    begins, before = torch.zeros(50, 2, dtype=torch.bool), torch.zeros(2, *cell.shape)
    expected = mixer(x.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(cell.unroll(x, begins, before), expected, atol=1e-4, rtol=1e-3)


@few
@given(n_steps=st.integers(1, 50), is_complex=st.booleans(), is_shared=st.booleans())
def test_the_recurrence_in_chunks_is_the_loop_with_its_gradients(n_steps, is_complex, is_shared):
    dtype = torch.complex128 if is_complex else torch.float64
    shapes = (n_steps, N_ENVS, 1 if is_shared else 4), (n_steps, N_ENVS, 4), (N_ENVS, 4)
    decays, inputs, initial = (torch.randn(shape, dtype=dtype) for shape in shapes)
    given_all = [decays / decays.abs().clamp(min=1), inputs, initial]
    weights = torch.randn(n_steps, N_ENVS, 4, dtype=dtype)

    def loop(decays, inputs, state):
        states = [state := a * state + b for a, b in zip(decays, inputs, strict=True)]
        return torch.stack(states)

    results = []
    for function in (loop, scan.LinearRecurrence.apply):
        leaves = [part.clone().requires_grad_() for part in given_all]
        states = function(*leaves)
        results.append([states, *torch.autograd.grad((states * weights).abs().sum(), leaves)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


@every_cell
@pytest.mark.parametrize("std", [0.1, 100])
def test_a_thousand_steps_stay_finite_and_so_do_their_gradients(kind, std):
    cell = shaken(kind(SIZES), 0.5).float()
    x = (std * torch.randn(1024, N_ENVS, WIDTH)).requires_grad_()
    before = torch.zeros(N_ENVS, *cell.shape, dtype=cell.dtype)
    output = cell.unroll(x, torch.zeros(1024, N_ENVS, dtype=torch.bool), before)
    output[-1].sum().backward()
    assert output.isfinite().all()
    grads = [x.grad, *(parameter.grad for parameter in cell.parameters())]
    assert all(grad.isfinite().all() for grad in grads if grad is not None)


@pytest.mark.parametrize("begins", [True, False])
def test_the_gate_of_gtrxl_is_a_gru_that_begins_almost_closed(begins):
    gate = gpt.Gate(WIDTH).double()
    gate = gate if begins else shaken(gate)
    x, y = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    (w_r, w_z, w_g), (u_r, u_z) = gate.of_found.weight.chunk(3), gate.of_rows.weight.chunk(2)
    r = torch.sigmoid(y @ w_r.T + x @ u_r.T)
    z = torch.sigmoid(y @ w_z.T + x @ u_z.T - gate.bias)
    new = torch.tanh(y @ w_g.T + (r * x) @ gate.of_kept.weight.T)
    torch.testing.assert_close(gate(x, y), (1 - z) * x + z * new)
    assert not begins or z.mean() < 0.2
