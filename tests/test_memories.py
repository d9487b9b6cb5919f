"""Trained memories: acting step by step and unrolling whole sequences lead to the same numbers."""

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from models import AGENTS, agent_class
from models.memories import gpt
from models.memories.lstm import Recurrent
from tests import golden_data
from tests.agents import small_config
from utils.errors import UserError

N_FEATURES, WIDTH, MEM_LEN = 7, 12, 5
T, N_ENVS = 12, 3
SMALL = {"memory_width": WIDTH, "memory_heads": 2, "mem_len": MEM_LEN}
GPT: dict[str, Any] = {"model": "GPT", "memory_layers": 3}
# Every memory of an agent, by its class's name, and some in another form.
KINDS: dict[str, dict[str, Any]] = {
    kind.memory_class.__name__: {"model": name}
    for name, kind in ((name, agent_class(name)) for name in AGENTS.places)
    if kind.memory_class is not None
}
KINDS |= {
    "FFM of three periods": {"model": "FFM", "ffm_periods": "inf,8,2.5"},
    "GPT of scaled features": GPT | {"memory_feature_scale": True},
    "LSTM of two layers": {"model": "LSTM", "memory_layers": 2},
    "GPT of three layers": GPT,
    "mLSTM without a convolution": {"model": "mLSTM", "memory_convolution": 1},
    "GPT of learned positions": GPT | {"memory_positions": "learned"},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
PLACES = st.tuples(st.integers(0, T - 1), st.integers(0, N_ENVS - 1))


def starts_at(places):
    """Return where the episodes of all environments begin.  [T, N]"""
    is_first = torch.zeros(T, N_ENVS, dtype=torch.bool)
    for place in places:
        is_first[place] = True
    return is_first


STARTS = st.sets(PLACES, max_size=8).map(starts_at)


def shake(memory):
    """Draw parameters anew, so large that every part of the network makes a difference."""
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.normal_(std=0.5)


def build(kind, n_features=N_FEATURES, **changes):
    config = small_config(**(SMALL | KINDS[kind] | changes))
    memory = agent_class(config.model).memory_class(n_features, config)
    shake(memory)
    return memory


def stream():
    """Return features [T, N, F] and starts [T, N] of episodes that end at different times."""
    places = [(0, slice(None)), (3, 0), (4, 0), (7, 1), (10, 0)]  # the last goes on
    return torch.randn(T, N_ENVS, N_FEATURES), starts_at(places)


def play(memory, x, is_first, state=None):
    """Return the outputs of single steps [T, N, D] and the stored states before them."""
    state = memory.initial(x.shape[1]) if state is None else state
    outputs, stored_states = [], []
    for features, begins in zip(x, is_first, strict=True):
        stored_states.append(memory.stored_state(state, begins).clone())
        outputs.append(memory.step(features, state, begins).clone())
    return torch.stack(outputs), stored_states


def assert_same(found, expected):
    """Compare sums of a few dozen float32 products of numbers around 1."""
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.quick("Lstm", "Ffm", "Gpt", "GTrXL")
@every_kind
@given(is_first=STARTS, now=st.integers(0, T - 1), n_known=st.integers(1, MEM_LEN))
def test_acting_equals_unrolling_wherever_episodes_begin(kind, is_first, now, n_known):
    memory, x = build(kind), torch.randn(T, N_ENVS, N_FEATURES)
    state = memory.initial(N_ENVS)
    stored_states = play(memory, x[:now], is_first[:now], state)[1] if now else []
    stored_states.append(memory.stored_state(state, is_first[now]).clone())
    n_known = min(n_known, now, memory.n_context)
    first, known = now - n_known, slice(now - n_known, now)
    shake(memory)  # as an update does, which leaves the state stale
    if n_known:
        memory.refresh(x[known], is_first[known], stored_states[first], state)
    acted, _ = play(memory, x[now:], is_first[now:], state)
    assert_same(acted, memory.unroll(x[first:], is_first[first:], stored_states[first])[n_known:])


@every_kind
def test_the_output_of_some_steps_is_that_of_all_with_its_gradients(kind):
    memory, (x, is_first) = build(kind), stream()
    stored_state = memory.stored_state(memory.initial(N_ENVS), is_first[0])
    counts = [T - 3, 2, *[T] * (N_ENVS - 2)]  # of each sequence the last steps
    steps = [(step, row) for row, count in enumerate(counts) for step in range(T - count, T)]
    of, rows = torch.tensor(steps).T
    places = of * N_ENVS + rows
    x.requires_grad_()
    outputs = (
        memory.unroll_at(x, is_first, stored_state, places),
        memory.unroll(x, is_first, stored_state)[of, rows],
    )
    assert_same(*outputs)
    found, expected = (
        torch.autograd.grad(output.square().sum(), [x, *memory.parameters()]) for output in outputs
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("n_steps", [0, MEM_LEN + 1])
def test_a_refresh_from_more_steps_than_are_kept_is_refused(n_steps):
    memory, (x, is_first) = build("Gpt"), stream()
    state = memory.initial(N_ENVS)
    stored_state = memory.stored_state(state, is_first[0])
    with pytest.raises(ValueError, match=f"{MEM_LEN} steps refreshed from {n_steps}"):
        memory.refresh(x[:n_steps], is_first[:n_steps], stored_state, state)


def test_a_gpt_of_one_layer_sees_exactly_mem_len_steps_back():
    memory, is_first = build("Gpt"), torch.zeros(12, 1, dtype=torch.bool)
    x = torch.randn(12, 1, N_FEATURES, requires_grad=True)
    memory.unroll(x, is_first, memory.stored_state(memory.initial(1), is_first[0]))[
        -1
    ].norm().backward()
    seen = x.grad.abs().amax(dim=(1, 2)) > 0
    assert seen.tolist() == [False] * (11 - MEM_LEN) + [True] * (MEM_LEN + 1)


def test_learned_positions_differ_within_a_window_however_long_an_episode_is():
    positions = build("GPT of learned positions").positions
    for first in (0, MEM_LEN, 1000):
        window = positions(torch.arange(first, first + MEM_LEN + 1))
        assert len(window.unique(dim=0)) == MEM_LEN + 1


def ages_by_counting(is_first):
    ages = torch.zeros(is_first.T.shape, dtype=torch.int64)
    for n, t in itertools.product(range(N_ENVS), range(1, T)):
        ages[n, t] = 0 if is_first[t, n] else ages[n, t - 1] + 1
    return ages


def visible_by_counting(is_first):
    visible = torch.zeros(N_ENVS, T, T, dtype=torch.bool)
    for n, t in itertools.product(range(N_ENVS), range(T)):
        for back in range(min(MEM_LEN, t) + 1):
            visible[n, t, t - back] = True
            if is_first[t - back, n]:
                break
    return visible


@pytest.mark.parametrize("kind", ["Lstm", "LSTM of two layers"])
def test_unrolling_an_lstm_over_one_episode_is_pytorchs_to_the_bit(kind):
    memory = build(kind)
    x, is_first = torch.randn(T, N_ENVS, N_FEATURES), torch.zeros(T, N_ENVS, dtype=torch.bool)
    stored_state = torch.randn(N_ENVS, 2, memory.lstm.num_layers * WIDTH)
    states = [torch.stack(part.split(WIDTH, dim=-1)) for part in stored_state.unbind(1)]
    expected, _ = memory.lstm(x, tuple(states))
    assert torch.equal(memory.unroll(x, is_first, stored_state), expected)


def test_attention_shows_where_a_step_looks():
    memory = build("Gpt", n_features=WIDTH)
    x, is_first = torch.randn(T, N_ENVS, WIDTH), stream()[1]
    state = memory.initial(N_ENVS)
    expected = attention_by_counting(memory, x, is_first)
    for t in range(T):
        found = memory.attention(x[t], state, is_first[t])
        torch.testing.assert_close(found[0, :, :, 0], expected[:, :, t], atol=1e-5, rtol=0)
        memory.step(x[t], state, is_first[t])


def attention_by_counting(memory, x, is_first):
    """Return the only layer's weights of the last M steps and the present.  [N, H, T, M+1]"""
    (block,) = memory.blocks
    hidden = x.transpose(0, 1) + memory.positions(ages_by_counting(is_first))
    queries, keys, _ = (
        part.unflatten(-1, (2, -1)).transpose(1, 2)  # [N, H, T, d]
        for part in block.qkv(block.attention_norm(hidden)).chunk(3, dim=-1)
    )
    scores = queries @ keys.transpose(-1, -2) / math.sqrt(WIDTH / 2)
    visible = visible_by_counting(is_first)[:, None]
    weights = F.pad(scores.masked_fill(~visible, -math.inf).softmax(-1), (MEM_LEN, 0))
    rows = [weights[:, :, t, t : t + MEM_LEN + 1] for t in range(T)]
    return torch.stack(rows, dim=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_no_step_waits_for_a_number(kind):
    with torch._subclasses.FakeTensorMode():  # reading a number of such a tensor is an error
        with torch.device("cuda"):
            memory = build(kind)
            x, is_first = stream()
        state = memory.initial(N_ENVS)
        output = memory.step(x[0], state, is_first[0], advance=False)
        acted, stored_states = play(memory, x[:3], is_first[:3], state)
        memory.refresh(x[1:3], is_first[1:3], stored_states[1], state)
        if not isinstance(memory, Recurrent):  # which is run from start to start
            memory.unroll(x, is_first, stored_states[0])
    assert output.is_cuda
    assert acted.shape == (3, N_ENVS, memory.width)


@pytest.mark.parametrize("kind", ["Lstm", "Gru"])
def test_weights_of_a_copy_lie_together_for_cudnn(kind, monkeypatch):
    memory, flattened = build(kind), []
    monkeypatch.setattr(
        torch.nn.RNNBase, "flatten_parameters", lambda network: flattened.append(network)
    )
    copied = copy.deepcopy(memory)
    assert any(network is copied.network for network in flattened)


def test_dropout_acts_in_training_only():
    memory, (x, is_first) = build("GPT of three layers", memory_dropout=0.5), stream()
    stored_state = torch.zeros(N_ENVS, dtype=torch.int64)
    trained = [memory.unroll(x, is_first, stored_state) for _ in range(2)]
    steps = [memory.step(x[0], memory.initial(N_ENVS), is_first[0]) for _ in range(2)]
    assert not torch.equal(*trained)
    assert not torch.equal(*steps)
    memory.eval()
    assert_same(play(memory, x, is_first)[0], memory.unroll(x, is_first, stored_state))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(UserError, match="memory_heads: 5 heads cannot share memory_width=12"):
        build("Gpt", memory_heads=5)


# The original of Ni et al. 2023 (arXiv:2307.03864): its own numbers.


@pytest.mark.parametrize("part", ["a", "b", "c"])
def test_sinusoidal_positions_agree_with_the_original(part):
    with np.load(golden_data.GOLDEN / "memory_rl" / "facts.npz") as arrays:
        table = torch.from_numpy(arrays[f"positions.width_{part}"]).float()
    positions = gpt.POSITIONS["sinusoidal"](table.shape[1], len(table))
    torch.testing.assert_close(positions(torch.arange(len(table))), table, atol=1e-6, rtol=0)
