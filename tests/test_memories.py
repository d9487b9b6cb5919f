"""Trained memories: acting step by step and unrolling whole sequences lead to the same numbers."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from models.memories import Gpt, GptSettings, Lstm, NetworkSettings, NoMemory, gpt
from tests import golden_data
from utils.errors import UserError

N_FEATURES, WIDTH, MEM_LEN = 7, 12, 5
T, N_ENVS = 24, 4
GPT = GptSettings(
    memory_width=WIDTH,
    memory_layers=3,
    memory_heads=2,
    memory_dropout=0.0,
    memory_positions="sinusoidal",
    mem_len=MEM_LEN,
)
KINDS = {
    "none": (NoMemory, None),
    "LSTM": (Lstm, NetworkSettings(WIDTH, 1)),
    "LSTM of two layers": (Lstm, NetworkSettings(WIDTH, 2)),
    "GPT": (Gpt, GPT),
    "GPT of one layer": (Gpt, replace(GPT, memory_layers=1)),
    "GPT of learned positions": (Gpt, replace(GPT, memory_positions="learned")),
}


def shake(memory):
    """Draw parameters anew, so large that every part of the network makes a difference."""
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.normal_(std=0.5)


def build(kind, n_features=N_FEATURES):
    memory_class, settings = KINDS[kind]
    memory = memory_class(n_features, settings)
    shake(memory)
    return memory


def build_gpt(n_features=N_FEATURES, **settings):
    memory = Gpt(n_features, replace(GPT, **settings))
    shake(memory)
    return memory


@pytest.fixture(params=KINDS)
def memory(request):
    return build(request.param)


def stream():
    """Return features [T, N, F] and starts [T, N] of episodes that end at different times."""
    is_first = torch.zeros(T, N_ENVS, dtype=torch.bool)
    is_first[0] = True
    for t, n in [(3, 0), (4, 0), (9, 1), (15, 1), (17, 2), (20, 0), (22, 0)]:
        is_first[t, n] = True  # the last environment's episode goes on
    return torch.randn(T, N_ENVS, N_FEATURES), is_first


def play(memory, x, is_first, state=None):
    """Return the outputs of single steps [T, N, D] and the contexts before them."""
    state = memory.initial(x.shape[1]) if state is None else state
    outputs, contexts = [], []
    for features, begins in zip(x, is_first, strict=True):
        contexts.append(memory.context(state, begins).clone())
        outputs.append(memory.step(features, state, begins).clone())
    return torch.stack(outputs), contexts


def assert_same(found, expected):
    """Compare sums of a few dozen float32 products of numbers around 1."""
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


def test_acting_equals_unrolling(memory):
    x, is_first = stream()
    acted, contexts = play(memory, x, is_first)
    assert_same(memory.unroll(x, is_first, contexts[0]), acted)
    is_first[0] = False  # a new state needs none
    assert torch.equal(play(memory, x, is_first)[0], acted)


@pytest.mark.parametrize("kind", ["none", "LSTM", "LSTM of two layers"])
def test_a_sequence_may_begin_anywhere_from_its_context(kind):
    memory = build(kind)
    x, is_first = stream()
    acted, contexts = play(memory, x, is_first)
    for first in (3, 10, T - 1):
        found = memory.unroll(x[first:], is_first[first:], contexts[first])
        assert_same(found, acted[first:])


@pytest.mark.parametrize("n_known", range(1, MEM_LEN + 1))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("GPT")])
def test_a_refreshed_state_goes_on_as_the_unrolled_sequence_does(kind, n_known):
    memory = build(kind)
    x, is_first = stream()
    state = memory.initial(N_ENVS)
    _, contexts = play(memory, x[:12], is_first[:12], state)
    first = 12 - n_known
    shake(memory)
    memory.refresh(x[first:12], is_first[first:12], contexts[first], state)
    acted, _ = play(memory, x[12:], is_first[12:], state)
    unrolled = memory.unroll(x[first:], is_first[first:], contexts[first])
    assert_same(acted, unrolled[n_known:])


@pytest.mark.parametrize("n_steps", [0, MEM_LEN + 1])
def test_a_refresh_from_more_steps_than_are_kept_is_refused(n_steps):
    memory = build("GPT")
    x, is_first = stream()
    state = memory.initial(N_ENVS)
    context = memory.context(state, is_first[0])
    with pytest.raises(ValueError, match=f"{MEM_LEN} steps refreshed from {n_steps}"):
        memory.refresh(x[:n_steps], is_first[:n_steps], context, state)


def assert_states_equal(state, other):
    found, expected = state.state_dict(), other.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_looking_ahead_shows_the_next_step_and_leaves_the_state_alone(memory):
    x, is_first = stream()
    state = memory.initial(N_ENVS)
    for features, begins in zip(x, is_first, strict=True):
        before = state.copy()
        seen = memory.step(features, state, begins, advance=False).clone()
        memory.step(torch.randn_like(features), state, ~begins, advance=False)
        assert_states_equal(state, before)
        assert torch.equal(seen, memory.step(features, state, begins))


def test_an_environment_depends_neither_on_its_neighbours_nor_on_their_number(memory):
    x, is_first = stream()
    together, contexts = play(memory, x, is_first)
    unrolled = memory.unroll(x, is_first, contexts[0])
    for n in range(N_ENVS):
        own = slice(n, n + 1)
        alone, _ = play(memory, x[:, own], is_first[:, own])
        assert_same(together[:, own], alone)
        assert_same(unrolled[:, own], memory.unroll(x[:, own], is_first[:, own], contexts[0][own]))


def test_a_saved_state_goes_on_as_its_original(memory):
    x, is_first = stream()
    state, other = memory.initial(N_ENVS), memory.initial(N_ENVS)
    play(memory, x[:11], is_first[:11], state)
    play(memory, x[11:14], is_first[11:14], other)  # its earlier content does not matter
    other.load_state_dict(state.state_dict())
    copied = state.copy()
    expected, _ = play(memory, x[11:], is_first[11:], state)
    for twin in (other, copied):
        assert torch.equal(play(memory, x[11:], is_first[11:], twin)[0], expected)


def seen_by_last(memory, is_first):
    """Return which steps the last one of a single sequence is computed from.  [T]"""
    x = torch.randn(len(is_first), 1, N_FEATURES, requires_grad=True)
    context = memory.context(memory.initial(1), is_first[0])
    memory.unroll(x, is_first, context)[-1].square().sum().backward()
    return x.grad.abs().amax(dim=(1, 2)) > 0


def test_a_gpt_of_one_layer_sees_exactly_mem_len_steps_back():
    is_first = torch.zeros(12, 1, dtype=torch.bool)
    seen = seen_by_last(build("GPT of one layer"), is_first)
    assert seen.tolist() == [False] * (11 - MEM_LEN) + [True] * (MEM_LEN + 1)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
def test_nothing_is_seen_across_an_episodes_start(kind):
    is_first = torch.zeros(6, 1, dtype=torch.bool)
    is_first[2] = True
    assert seen_by_last(build(kind), is_first).tolist() == [False] * 2 + [True] * 4


def test_learned_positions_stay_at_the_last_one():
    memory = build("GPT of learned positions")
    ages = torch.tensor([MEM_LEN - 1, MEM_LEN, MEM_LEN + 1, 1000])
    vectors = memory.positions(ages)
    assert not torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[1], vectors[2])
    assert torch.equal(vectors[1], vectors[3])


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


@pytest.mark.parametrize("kind", ["LSTM", "LSTM of two layers"])
def test_unrolling_an_lstm_over_one_episode_is_pytorchs_to_the_bit(kind):
    memory = build(kind)
    x, is_first = torch.randn(T, N_ENVS, N_FEATURES), torch.zeros(T, N_ENVS, dtype=torch.bool)
    context = torch.randn(N_ENVS, 2, memory.lstm.num_layers * WIDTH)
    states = [torch.stack(part.split(WIDTH, dim=-1)) for part in context.unbind(1)]
    expected, _ = memory.lstm(x, tuple(states))
    assert torch.equal(memory.unroll(x, is_first, context), expected)


def test_attention_shows_where_a_step_looks():
    memory = build_gpt(n_features=WIDTH, memory_layers=1)
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


def test_the_view_of_the_whole_ring_shows_the_same(monkeypatch):
    memory = build("GPT")
    x, is_first = stream()
    state, other = memory.initial(N_ENVS), memory.initial(N_ENVS)
    expected, contexts = play(memory, x[:12], is_first[:12], state)
    monkeypatch.setattr(gpt, "_windows", gpt._whole_ring)
    assert_same(play(memory, x[:12], is_first[:12], other)[0], expected)
    for each in (state, other):
        memory.refresh(x[9:12], is_first[9:12], contexts[9], each)
    acted, _ = play(memory, x[12:], is_first[12:], other)
    monkeypatch.undo()
    assert_same(acted, play(memory, x[12:], is_first[12:], state)[0])


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_no_step_waits_for_a_number(kind):
    with torch._subclasses.FakeTensorMode():  # reading a number of such a tensor is an error
        with torch.device("cuda"):
            memory = build(kind)
            x, is_first = stream()
        state = memory.initial(N_ENVS)
        output = memory.step(x[0], state, is_first[0], advance=False)
        acted, contexts = play(memory, x[:3], is_first[:3], state)
        memory.refresh(x[1:3], is_first[1:3], contexts[1], state)
        if not kind.startswith("LSTM"):  # which is run from start to start
            memory.unroll(x, is_first, contexts[0])
    assert output.is_cuda
    assert acted.shape == (3, N_ENVS, memory.width)


def test_dropout_acts_in_training_only():
    memory = build_gpt(memory_dropout=0.5)
    x, is_first = stream()
    context = torch.zeros(N_ENVS, dtype=torch.int64)
    trained = [memory.unroll(x, is_first, context) for _ in range(2)]
    steps = [memory.step(x[0], memory.initial(N_ENVS), is_first[0]) for _ in range(2)]
    assert not torch.equal(*trained)
    assert not torch.equal(*steps)
    memory.eval()
    assert_same(play(memory, x, is_first)[0], memory.unroll(x, is_first, context))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(UserError, match="memory_heads: 5 heads cannot share memory_width=12"):
        build_gpt(memory_heads=5)


# The original of Ni et al. 2023 (arXiv:2307.03864): its own numbers.


@pytest.mark.parametrize("part", ["a", "b", "c"])
def test_sinusoidal_positions_agree_with_the_original(part):
    with np.load(golden_data.GOLDEN / "memory_rl" / "facts.npz") as arrays:
        table = torch.from_numpy(arrays[f"positions.width_{part}"]).float()
    positions = gpt.POSITIONS["sinusoidal"](table.shape[1], len(table))
    torch.testing.assert_close(positions(torch.arange(len(table))), table, atol=1e-6, rtol=0)
