"""Transformer-XL against its original; other encoders than BERT."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.language_models import PlainTransformerXL
from models.language.files import find_model
from models.language.load import describe_language_model, load_language_model
from tests.published_models import GOLDEN, N_POSITIONS, TRANSFORMER_XL, WORDS, tiny_model_folder
from tests.token_streams import play, stream


@pytest.fixture(params=["transfo_xl_k1", "transfo_xl_k2"])
def golden(request):
    arrays = np.load(GOLDEN / request.param / "expected.npz")
    expected = {name: torch.from_numpy(arrays[name]) for name in arrays}
    return GOLDEN / request.param, expected


def test_hidden_states_and_attention_agree_with_the_original(golden):
    folder, expected = golden
    mem_len, n_envs = int(expected["mem_len"]), expected["inputs"].shape[1]
    model = load_language_model(folder, mem_len=mem_len)
    plain = PlainTransformerXL(find_model(folder), mem_len)
    memory, slots = model.initial_memory(n_envs), plain.initial_memory(n_envs)
    steps = (expected[name] for name in ("inputs", "starts", "hidden"))
    for tokens, is_first, hidden in zip(*steps, strict=True):
        attention = model.attention(tokens, memory, is_first)
        by_plain, slots = plain.step(tokens, slots, is_first)
        for found in (model.step(tokens, memory, is_first), by_plain):
            torch.testing.assert_close(found, hidden, atol=1e-5, rtol=0)
    torch.testing.assert_close(attention, expected["last_step_attention"], atol=1e-5, rtol=0)


@pytest.mark.quick("2")
@pytest.mark.parametrize("mem_len", [1, 2, 3, 8])
def test_the_ring_goes_round_as_the_plain_version_shifts(mem_len):
    model = load_language_model(TRANSFORMER_XL, mem_len=mem_len)
    plain = PlainTransformerXL(find_model(TRANSFORMER_XL), mem_len)
    memory, slots = model.initial_memory(3), plain.initial_memory(3)
    for tokens, is_first in zip(*stream(model, 60), strict=True):
        expected, slots = plain.step(tokens, slots, is_first)
        found = model.step(tokens, memory, is_first)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("mem_len", "n_new"), [(7, 2), (7, 3), (2, 3), (1, 2), (5, 12)])
def test_tokens_at_once_equal_tokens_one_by_one(mem_len, n_new):
    model = load_language_model(TRANSFORMER_XL, mem_len=mem_len)
    tokens, is_first = stream(model, 12 * n_new)
    is_first[:] = False
    is_first[n_new * 4, 1] = is_first[n_new * 7, 2] = True
    singles = model.initial_memory(3)
    one_by_one = play(model, singles, tokens, is_first)
    together = model.initial_memory(3)
    for call in range(12):
        first = call * n_new
        joined = tokens[first : first + n_new, :, 0].transpose(0, 1)
        hidden = model.step(joined, together, is_first[first])
        torch.testing.assert_close(hidden, one_by_one[first + n_new - 1], atol=1e-5, rtol=0)


def test_fewer_layers_are_the_first_ones():
    whole, first = (load_language_model(TRANSFORMER_XL, 6, n_layer=n) for n in (None, 1))
    tokens, is_first = stream(whole, 5)
    memory, kept = whole.initial_memory(3), first.initial_memory(3)
    play(whole, memory, tokens, is_first)
    play(first, kept, tokens, is_first)
    assert first.n_layer == 1
    assert torch.equal(kept.state_dict()["keys"][0], memory.state_dict()["keys"][0])
    shallow = first.attention(tokens[-1], kept, is_first[-1])
    assert torch.equal(shallow[0], whole.attention(tokens[-1], memory, is_first[-1])[0])


@pytest.mark.parametrize("name", ["roberta", "distilbert"])
def test_other_encoders_are_described_and_tell_their_words(name, decoders):
    assert describe_language_model(decoders[name]) == (name, 2, 24, len(WORDS), N_POSITIONS)
    model = load_language_model(decoders[name], n_layer=1)
    assert (model.n_layer, model.n_positions) == (1, N_POSITIONS)
    assert model.vocabulary[3] == " word0"
    torch.testing.assert_close(model.read_text(" word0 word5"), model.embed(torch.tensor([3, 8])))


def test_old_names_of_the_normalisation_are_understood(tmp_path):
    folder = tiny_model_folder(tmp_path, "bert")
    model = load_language_model(folder)
    tokens, is_first = stream(model, 4)
    expected = play(model, model.initial_memory(3), tokens, is_first)
    old = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        name = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
        old[f"bert.{name}"] = tensor
    (folder / "model.safetensors").unlink()
    torch.save(old, folder / "pytorch_model.bin")
    found = play(load_language_model(folder), model.initial_memory(3), tokens, is_first)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
