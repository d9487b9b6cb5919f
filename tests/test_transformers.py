"""Transformer-XL against its original, BERT against the transformers library."""

import numpy as np
import pytest
import torch

from benchmarks.language_models import PlainTransformerXL
from models.language.files import find_model
from models.language.load import describe_language_model, load_language_model
from tests.published_models import GOLDEN, TRANSFORMER_XL, tiny_bert_folder
from tests.tiny_decoders import WORDS
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


N_ENVS = 2
N_POSITIONS = 12


ENCODERS = ["bert", "roberta", "distilbert"]


@pytest.fixture
def folder(tmp_path):
    return tiny_bert_folder(tmp_path, n_positions=N_POSITIONS)


def library_hidden(folder, tokens, visible):
    """Return the transformers library's hidden states of a whole episode.

    Args:
        tokens: One episode per environment.  [N, T, D]
        visible: The tokens each token may see.  [T, T]
    """
    from transformers import AutoModel

    bert = AutoModel.from_pretrained(folder, attn_implementation="eager")
    mask = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    positions = torch.arange(tokens.shape[1]).clamp(max=N_POSITIONS - 1)
    if bert.config.model_type == "roberta":
        positions += bert.config.pad_token_id + 1
    with torch.no_grad():
        return bert.eval()(
            inputs_embeds=tokens,
            attention_mask=mask.expand(len(tokens), 1, *visible.shape),
            position_ids=positions[None],
        ).last_hidden_state


def read(model, tokens, n_new=1):
    """Return the hidden states [N, T/K, D] of an episode fed K tokens at a time."""
    memory = model.initial_memory(N_ENVS)
    is_first = torch.zeros(N_ENVS, dtype=torch.bool)
    calls = tokens.split(n_new, dim=1)
    return torch.stack([model.step(call, memory, is_first) for call in calls], dim=1)


def episode(n_tokens):
    return torch.randn(N_ENVS, n_tokens, 24, generator=torch.Generator().manual_seed(2))


@pytest.mark.quick("4-2-bert", "30-1-roberta")
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize(("mem_len", "n_new"), [(4, 1), (4, 2), (4, 3), (11, 2), (11, 3), (30, 1)])
def test_the_oldest_tokens_leave_the_window(name, folder, decoders, mem_len, n_new):
    folder = decoders.get(name, folder)
    n_tokens = 36
    tokens = episode(n_tokens)
    window = min(mem_len + n_new, N_POSITIONS)
    last_of_call = torch.arange(n_tokens) // n_new * n_new + n_new - 1
    oldest = last_of_call - window + 1
    columns = torch.arange(n_tokens)
    visible = (columns >= oldest[:, None]) & (columns <= columns[:, None])
    expected = library_hidden(folder, tokens, visible)
    found = read(load_language_model(folder, mem_len=mem_len), tokens, n_new)
    torch.testing.assert_close(found, expected[:, n_new - 1 :: n_new], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["roberta", "distilbert"])
def test_other_encoders_are_described_and_tell_their_words(name, decoders):
    assert describe_language_model(decoders[name]) == (name, 2, 24, len(WORDS), N_POSITIONS)
    model = load_language_model(decoders[name], n_layer=1)
    assert (model.n_layer, model.n_positions) == (1, N_POSITIONS)
    assert model.vocabulary[3] == " word0"
    torch.testing.assert_close(model.read_text(" word0 word5"), model.embed(torch.tensor([3, 8])))


def test_old_names_of_the_normalisation_are_understood(folder):
    from safetensors.torch import load_file

    tokens = episode(4)
    expected = read(load_language_model(folder), tokens)
    old = {
        f"bert.{name.replace('Norm.weight', 'Norm.gamma').replace('Norm.bias', 'Norm.beta')}": each
        for name, each in load_file(folder / "model.safetensors").items()
    }
    (folder / "model.safetensors").unlink()
    torch.save(old, folder / "pytorch_model.bin")
    found = read(load_language_model(folder), tokens)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
