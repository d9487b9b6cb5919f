import numpy as np
import pytest
import torch

from benchmarks.language_models import PlainTransformerXL
from models.language.files import find_model
from models.language.load import load_language_model
from tests.published_models import GOLDEN, TRANSFORMER_XL


@pytest.fixture(params=["transfo_xl_k1", "transfo_xl_k2"])
def golden(request):
    arrays = np.load(GOLDEN / request.param / "expected.npz")
    expected = {name: torch.from_numpy(arrays[name]) for name in arrays}
    return GOLDEN / request.param, expected


def test_hidden_states_agree_with_the_original(golden):
    folder, expected = golden
    model = load_language_model(folder, mem_len=int(expected["mem_len"]))
    memory = model.initial_memory(expected["inputs"].shape[1])
    for tokens, starts, hidden in zip(
        expected["inputs"], expected["starts"], expected["hidden"], strict=True
    ):
        found = model.step(tokens, memory, starts)
        torch.testing.assert_close(found, hidden, atol=1e-5, rtol=0)


def test_attention_agrees_with_the_original(golden):
    folder, expected = golden
    model = load_language_model(folder, mem_len=int(expected["mem_len"]))
    memory = model.initial_memory(expected["inputs"].shape[1])
    inputs, starts = expected["inputs"], expected["starts"]
    for step in range(len(inputs) - 1):
        model.step(inputs[step], memory, starts[step])
    found = model.attention(inputs[-1], memory, starts[-1])
    torch.testing.assert_close(found, expected["last_step_attention"], atol=1e-5, rtol=0)


def test_the_plain_version_agrees_with_the_original(golden):
    folder, expected = golden
    model = PlainTransformerXL(find_model(folder), int(expected["mem_len"]))
    slots = model.initial_memory(expected["inputs"].shape[1])
    for tokens, starts, hidden in zip(
        expected["inputs"], expected["starts"], expected["hidden"], strict=True
    ):
        found, slots = model.step(tokens, slots, starts)
        torch.testing.assert_close(found, hidden, atol=1e-5, rtol=0)


def random_stream(width, n_steps, n_envs=3):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randn(n_steps, n_envs, 1, width, generator=generator)
    starts = torch.rand(n_steps, n_envs, generator=generator) < 0.05
    return tokens, starts


@pytest.mark.parametrize("mem_len", [1, 2, 3, 8])
def test_the_ring_goes_round_as_the_plain_version_shifts(mem_len):
    model = load_language_model(TRANSFORMER_XL, mem_len=mem_len)
    plain = PlainTransformerXL(find_model(TRANSFORMER_XL), mem_len)
    memory, slots = model.initial_memory(3), plain.initial_memory(3)
    for tokens, starts in zip(*random_stream(model.width, 60), strict=True):
        expected, slots = plain.step(tokens, slots, starts)
        found = model.step(tokens, memory, starts)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("mem_len", "n_new"), [(7, 2), (7, 3), (2, 3), (1, 2), (5, 12)])
def test_tokens_at_once_equal_tokens_one_by_one(mem_len, n_new):
    model = load_language_model(TRANSFORMER_XL, mem_len=mem_len)
    tokens, starts = random_stream(model.width, 12 * n_new)
    starts[:] = False
    starts[n_new * 4, 1] = starts[n_new * 7, 2] = True
    singles = model.initial_memory(3)
    one_by_one = torch.stack(
        [model.step(token, singles, start) for token, start in zip(tokens, starts, strict=True)]
    )
    together = model.initial_memory(3)
    for call in range(12):
        first = call * n_new
        joined = tokens[first : first + n_new, :, 0].transpose(0, 1)
        hidden = model.step(joined, together, starts[first])
        torch.testing.assert_close(hidden, one_by_one[first + n_new - 1], atol=1e-5, rtol=0)


def test_the_oldest_running_episode_decides_how_many_slots_are_read():
    model = load_language_model(TRANSFORMER_XL, mem_len=20)
    memory = model.initial_memory(3)
    ages = torch.tensor([0, 4, 2])
    read = [memory.windows(age * ages, 19, 1)[0].n_tokens - 1 for age in (1, 0, 100)]
    assert read == [4, 0, 19]


def test_fewer_layers_are_the_first_ones():
    tokens, starts = random_stream(64, 5)
    whole = load_language_model(TRANSFORMER_XL, mem_len=6)
    first = load_language_model(TRANSFORMER_XL, mem_len=6, n_layer=1)
    memory, kept = whole.initial_memory(3), first.initial_memory(3)
    for token, start in zip(tokens, starts, strict=True):
        whole.step(token, memory, start)
        first.step(token, kept, start)
    assert first.n_layer == 1
    assert torch.equal(kept.state_dict()["keys"][0], memory.state_dict()["keys"][0])
    shallow = first.attention(tokens[-1], kept, starts[-1])
    assert torch.equal(shallow[0], whole.attention(tokens[-1], memory, starts[-1])[0])
