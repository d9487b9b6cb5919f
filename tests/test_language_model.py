"""The memory contract that every language model keeps."""

import pytest
import torch

from models.language import kv_cache, layers
from models.language.language_model import LanguageModel
from models.language.layers import FrozenLinear
from models.language.load import load_language_model
from tests.published_models import TRANSFORMER_XL, tiny_bert_folder
from tests.tiny_decoders import tiny_decoder_folder
from tests.token_streams import N_ENVS, play, stream

N_HEADS = {"transformer_xl": 4, "bert": 3, "gpt2": 6, "llama": 6, "qwen3": 6}


@pytest.fixture(params=N_HEADS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def folder(kind, tmp_path):
    if kind == "transformer_xl":
        return TRANSFORMER_XL
    if kind == "bert":
        return tiny_bert_folder(tmp_path)
    return tiny_decoder_folder(tmp_path, kind)


@pytest.fixture
def model(folder) -> LanguageModel:
    return load_language_model(folder, mem_len=6)


def same(memory, other):
    """Return whether two memories hold the same tokens, wherever in their rings."""
    states = memory.state_dict(), other.state_dict()
    remembered = ("keys", "values", "ages")
    return all(torch.equal(states[0][name], states[1][name]) for name in remembered)


def test_an_environment_does_not_depend_on_its_neighbours_nor_on_their_number(model):
    tokens, starts = stream(model)
    together = play(model, model.initial_memory(N_ENVS), tokens, starts)
    alone = play(model, model.initial_memory(1), tokens[:, 1:2], starts[:, 1:2])
    torch.testing.assert_close(together[:, 1:2], alone, atol=1e-5, rtol=0)


def test_what_was_looked_at_ahead_is_read_without_work(model):
    tokens, starts = stream(model)
    memory, other = model.initial_memory(N_ENVS), model.initial_memory(N_ENVS)
    calls = []
    layer = next(part for part in model.modules() if isinstance(part, FrozenLinear))
    layer.register_forward_hook(lambda *_: calls.append(1))
    for token, start in zip(tokens, starts, strict=True):
        before = memory.copy()
        ahead = model.step(token, memory, start, advance=False)
        assert same(memory, before)
        assert calls
        calls.clear()
        assert torch.equal(model.step(token, memory, start), ahead)
        assert not calls
        assert torch.equal(model.step(token, other, start), ahead)
        assert same(memory, other)


def test_other_tokens_than_those_looked_at_are_read_anew(model):
    tokens, starts = stream(model)
    memory, other = model.initial_memory(N_ENVS), model.initial_memory(N_ENVS)
    for token, start in zip(tokens, starts, strict=True):
        model.step(token + 1, memory, start, advance=False)
        assert torch.equal(model.step(token, memory, start), model.step(token, other, start))
        model.step(token, memory, ~start, advance=False)
        assert same(memory, other)


def test_attention_in_between_does_not_spoil_what_was_looked_at(model):
    tokens, starts = stream(model)
    memory, other = model.initial_memory(N_ENVS), model.initial_memory(N_ENVS)
    for token, start in zip(tokens, starts, strict=True):
        model.step(token, memory, start, advance=False)
        model.attention(token + 1, memory, start)
        assert torch.equal(model.step(token, memory, start), model.step(token, other, start))
        assert same(memory, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_products_give_the_numbers_of_packed_ones(folder, dtype, monkeypatch, caplog):
    packed = load_language_model(folder, mem_len=6, dtype=dtype)
    caplog.clear()
    monkeypatch.setattr(layers, "fast_dtypes", lambda: frozenset())
    plain = load_language_model(folder, mem_len=6, dtype=dtype)
    linear = [module for module in plain.modules() if isinstance(module, FrozenLinear)]
    assert linear
    assert all(layer.weight.dtype == dtype for layer in linear)
    tokens, starts = stream(plain)
    expected = play(packed, packed.initial_memory(N_ENVS), tokens, starts)
    found = play(plain, plain.initial_memory(N_ENVS), tokens, starts)
    bound = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(found, expected, atol=bound, rtol=0)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (dtype == torch.bfloat16)
    assert all("this processor has no fast bfloat16 products" in line for line in said)


@pytest.mark.parametrize("is_supported", [False, True])
def test_only_a_type_that_the_processor_multiplies_is_packed(is_supported, monkeypatch):
    monkeypatch.setattr(
        torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: is_supported, raising=False
    )
    expected = {torch.float32, torch.bfloat16} if is_supported else {torch.float32}
    assert layers.fast_dtypes() == expected
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert layers.fast_dtypes() == set()


def test_looking_at_the_attention_changes_nothing(model, kind):
    tokens, starts = stream(model)
    memory = model.initial_memory(N_ENVS)
    play(model, memory, tokens[:9], starts[:9])
    before = memory.copy()
    attention = model.attention(tokens[9], memory, starts[9])
    assert attention.shape == (model.n_layer, N_ENVS, N_HEADS[kind], 1, 7)
    torch.testing.assert_close(attention.sum(-1), torch.ones(attention.shape[:-1]))
    assert same(memory, before)


def test_looking_at_the_hidden_states_changes_nothing(model):
    tokens, starts = stream(model, n_new=2)
    memory = model.initial_memory(N_ENVS)
    play(model, memory, tokens[:4], starts[:4])
    before = memory.copy()
    hidden = model.hidden_states(tokens[4], memory, starts[4])
    assert hidden.shape == (model.n_layer, N_ENVS, 2, model.width)
    assert same(memory, before)
    assert torch.equal(hidden[-1, :, -1], model.step(tokens[4], memory, starts[4]))


def test_a_copy_is_independent(model):
    tokens, starts = stream(model)
    memory = model.initial_memory(N_ENVS)
    play(model, memory, tokens[:8], starts[:8])
    copy = memory.copy()
    expected = play(model, memory.copy(), tokens[8:], starts[8:])
    play(model, memory, 3 * tokens[8:], starts[8:])
    assert torch.equal(play(model, copy, tokens[8:], starts[8:]), expected)


@pytest.mark.parametrize("n_played", [0, 3, 8, 17])
def test_a_saved_memory_goes_on_bit_for_bit(model, tmp_path, n_played):
    tokens, starts = stream(model)
    memory = model.initial_memory(N_ENVS)
    if n_played:
        play(model, memory, tokens[:n_played], starts[:n_played])
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    loaded = model.initial_memory(N_ENVS)
    play(model, loaded, tokens[:5], starts[:5])
    loaded.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    assert same(memory, loaded)
    rest = tokens[n_played:], starts[n_played:]
    assert torch.equal(play(model, memory, *rest), play(model, loaded, *rest))


def test_a_memory_of_other_environments_is_refused(model):
    state = model.initial_memory(2).state_dict()
    with pytest.raises(ValueError, match=r"2 envs .* of 3 envs"):
        model.initial_memory(3).load_state_dict(state)


def test_tokens_of_other_environments_are_refused(model):
    tokens, starts = stream(model)
    with pytest.raises(ValueError, match=r"\[2, 1, .*memory of 3"):
        model.step(tokens[0, :2], model.initial_memory(3), starts[0])


@pytest.mark.parametrize("wider", [1, 3])
@pytest.mark.parametrize("n_new", [1, 2])
def test_a_ring_that_grows_reads_the_same(model, wider, n_new, monkeypatch):
    tokens, starts = stream(model, n_new=n_new)
    at_once = play(model, model.initial_memory(N_ENVS, n_new), tokens, starts)
    monkeypatch.setattr(kv_cache, "WIDER", wider)
    memory = model.initial_memory(N_ENVS, n_new)
    torch.testing.assert_close(play(model, memory, tokens, starts), at_once, atol=1e-5, rtol=0)


def test_a_ring_has_only_the_slots_that_the_longest_episode_needs(model, monkeypatch):
    monkeypatch.setattr(kv_cache, "WIDER", 1)
    tokens, starts = stream(model)
    memory = model.initial_memory(N_ENVS)
    starts[:] = torch.arange(len(tokens))[:, None] % 3 == 0
    play(model, memory, tokens, starts)
    assert memory.n_slots == 3 < memory.keys.shape[2]
