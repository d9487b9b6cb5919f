"""What sequences share is read once: the same numbers as when each is read for itself."""

import pytest
import torch
from gymnasium.spaces import Box
from torch import nn

from models.agent import Sequences
from models.images import Features
from models.memories import TrainedMemory, build_memory
from models.memories.beginnings import Beginnings
from models.observations import ObservationBatch, ObservationReader, Observations
from models.off_policy import FrozenBody, InputEmbedder
from tests.agents import small_config

N_STEPS, N_SEQUENCES, N_INPUTS, WIDTH = 21, 9, 4, 8


def memory_of(kind, layers=2, dropout=0.0):
    settings = small_config(
        algorithm="DQN",
        model=kind,
        memory_width=WIDTH,
        memory_layers=layers,
        memory_heads=2,
        memory_dropout=dropout,
        mem_len=6,
    )
    return build_memory(kind, WIDTH, settings)


def sequences(n_settled):
    """Return which input each step reads: so many sequences follow the first one for a while."""
    torch.manual_seed(0)
    rows = torch.randint(N_INPUTS, (N_STEPS, N_SEQUENCES))
    for column in range(1, n_settled):
        rows[: 3 * column, column] = rows[: 3 * column, 0]
    return rows


def test_beginnings_are_told_apart_by_all_that_came_before():
    rows = torch.tensor([[5, 5, 5, 1], [2, 3, 2, 2], [7, 7, 7, 7], [0, 0, 4, 0]])
    begun = Beginnings.of(rows)
    assert begun.counts.tolist() == [2, 3, 3, 4]
    assert begun.share == 12 / 16
    first, second, third, fourth = begun.numbered().T.tolist()
    assert first[:3] == third[:3]
    assert first[0] == second[0]
    different = {*first, *second, *third, *fourth}
    assert different == set(range(12))
    # From step to step the numbers grow: shorter beginnings come first.
    assert all(set(step) <= set(range(12)) for step in begun.numbered().tolist())
    assert begun.numbered()[0].max() < begun.numbered()[1].min()


def test_equal_sequences_are_one_and_never_part():
    begun = Beginnings.of(torch.ones(5, 3, dtype=torch.int64))
    assert begun.counts.tolist() == [1] * 5
    assert (begun.own == 0).all()


@pytest.mark.parametrize("n_settled", [0, 4, N_SEQUENCES])
@pytest.mark.parametrize("kind", ["LSTM", "GPT"])
def test_shared_beginnings_give_the_numbers_and_gradients_of_whole_sequences(kind, n_settled):
    memory, rows = memory_of(kind), sequences(n_settled)
    inputs = nn.Parameter(torch.randn(N_INPUTS, WIDTH))
    factors = torch.randn(N_STEPS * N_SEQUENCES, WIDTH)
    results = []
    for read in (type(memory).unroll_from_nothing, TrainedMemory.unroll_from_nothing):
        features = read(memory, Features(inputs, rows.flatten()), rows.shape)
        loss = (features.each() * factors).sum()
        gradients = torch.autograd.grad(loss, [inputs, *memory.parameters()])
        results.append((features, gradients))
    (found, gradients), (expected, plain_gradients) = results
    torch.testing.assert_close(found.each(), expected.each(), atol=1e-5, rtol=0)
    for gradient, plain in zip(gradients, plain_gradients, strict=True):
        torch.testing.assert_close(gradient, plain, atol=1e-4, rtol=1e-4)
    if n_settled == N_SEQUENCES:
        assert len(found.distinct) < 0.75 * N_STEPS * N_SEQUENCES


def test_dropout_tells_equal_sequences_apart():
    memory = memory_of("GPT", dropout=0.5)
    rows = torch.zeros(5, 2, dtype=torch.int64)
    features = Features(torch.randn(1, WIDTH), rows.flatten())
    first, second = memory.unroll_from_nothing(features, rows.shape).each().view(5, 2, -1).unbind(1)
    assert not torch.allclose(first, second)
    memory.eval()
    shared = memory.unroll_from_nothing(features, rows.shape)
    assert len(shared.distinct) == 5


class Language(nn.Module):
    width = 40


def test_a_frozen_memory_is_joined_once_with_what_is_equal():
    torch.manual_seed(0)
    config = small_config(algorithm="DQN", model="HELM")
    embedder = InputEmbedder(ObservationReader(Box(-1, 1, (2,))), 4, config)
    body = FrozenBody(embedder, Language())
    context = torch.randn(2, 40)[torch.randint(2, (6, 5))]  # [T+1, B, 40], two that differ
    seen = torch.randint(2, (30, 1)).float().expand(30, 2)
    actions = torch.randint(2, (6, 5))
    starts = torch.zeros(6, 5, dtype=torch.bool)
    starts[0] = True
    rest = [torch.zeros(5, 5)] * 4
    batch = ObservationBatch.of(Observations(vectors=seen))
    found = body.unroll(Sequences(batch, starts, actions, context, *rest))
    told = actions.masked_fill(starts, 4).flatten()
    plain = embedder._embedded(batch, told)
    expected = torch.cat((context.flatten(0, 1), plain), dim=-1)
    torch.testing.assert_close(found.each(), expected)
    assert len(found.distinct) == len(expected.unique(dim=0)) < 30
