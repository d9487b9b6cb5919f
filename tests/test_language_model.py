"""The memory contract that every language model keeps."""

import pytest
import torch

from models.language import LanguageModel, kv_cache, layers
from models.language.layers import FrozenLinear
from models.language.load import load_language_model
from tests.token_streams import N_ENVS, play, stream

N_HEADS = {"transfo-xl": 4, "bert": 3, "gpt2": 6, "llama": 6, "qwen3": 6}


@pytest.fixture(params=N_HEADS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def model(kind, decoders) -> LanguageModel:
    return load_language_model(decoders[kind], mem_len=6)


def same(memory, other):
    """Return whether two memories hold the same tokens, wherever in their rings."""
    states = memory.state_dict(), other.state_dict()
    remembered = states[0].keys() - {"position", "n_slots"}
    return all(torch.equal(states[0][name], states[1][name]) for name in remembered)


@pytest.mark.quick("transfo-xl")
def test_what_was_looked_at_ahead_is_read_without_work(model):
    tokens, is_first = stream(model)
    memory, other = model.initial_memory(N_ENVS), model.initial_memory(N_ENVS)
    calls = []
    layer = next(part for part in model.modules() if isinstance(part, FrozenLinear))
    layer.register_forward_hook(lambda *_: calls.append(1))
    for token, start in zip(tokens, is_first, strict=True):
        before = memory.copy()
        ahead = model.step(token, memory, start, advance=False)
        assert same(memory, before)
        assert calls
        calls.clear()
        assert torch.equal(model.step(token, memory, start), ahead)
        assert not calls
        assert torch.equal(model.step(token, other, start), ahead)
        assert same(memory, other)


@pytest.mark.quick("transfo-xl")
def test_other_looks_than_at_the_next_tokens_spoil_nothing(model, kind):
    tokens, is_first = stream(model)
    memory, other = model.initial_memory(N_ENVS), model.initial_memory(N_ENVS)
    for token, start in zip(tokens, is_first, strict=True):
        model.step(token + 1, memory, start, advance=False)
        attention = model.attention(token, memory, start)
        states = model.hidden_states(token, memory, start)
        assert same(memory, other)
        hidden = model.step(token, memory, start)
        assert torch.equal(hidden, model.step(token, other, start))
        assert torch.equal(hidden, states[-1, :, -1])
        model.step(token, memory, ~start, advance=False)
        assert same(memory, other)
    assert attention.shape == (model.n_layer, N_ENVS, N_HEADS[kind], 1, 7)
    torch.testing.assert_close(attention.sum(-1), torch.ones(attention.shape[:-1]))
    assert states.shape == (model.n_layer, N_ENVS, 1, model.width)


@pytest.mark.quick("llama-dtype1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_products_give_the_numbers_of_packed_ones(kind, decoders, dtype, monkeypatch, caplog):
    packed = load_language_model(decoders[kind], mem_len=6, dtype=dtype)
    caplog.clear()
    monkeypatch.setattr(layers, "fast_dtypes", lambda: frozenset())
    plain = load_language_model(decoders[kind], mem_len=6, dtype=dtype)
    linear = [module for module in plain.modules() if isinstance(module, FrozenLinear)]
    assert linear
    assert all(layer.weight.dtype == dtype for layer in linear)
    tokens, is_first = stream(plain)
    expected = play(packed, packed.initial_memory(N_ENVS), tokens, is_first)
    found = play(plain, plain.initial_memory(N_ENVS), tokens, is_first)
    bound = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(found, expected, atol=bound, rtol=0)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (dtype == torch.bfloat16)
    assert all("this processor has no fast bfloat16 products" in line for line in said)


@pytest.mark.quick("transfo-xl-17")
@pytest.mark.parametrize("n_played", [0, 3, 8, 17])
def test_a_saved_memory_and_a_copy_go_on_bit_for_bit(model, tmp_path, n_played):
    tokens, is_first = stream(model)
    memory = model.initial_memory(N_ENVS)
    if n_played:
        play(model, memory, tokens[:n_played], is_first[:n_played])
    torch.save(memory.state_dict(), tmp_path / "memory.pt")
    loaded, copied = model.initial_memory(N_ENVS), memory.copy()
    play(model, loaded, tokens[:5], is_first[:5])
    loaded.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    assert same(memory, loaded)
    rest = tokens[n_played:], is_first[n_played:]
    found = [play(model, each, *rest) for each in (memory, loaded, copied)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_memory_or_tokens_of_other_environments_are_refused(model):
    tokens, is_first = stream(model)
    with pytest.raises(ValueError, match=r"2 envs .* of 3 envs"):
        model.initial_memory(3).load_state_dict(model.initial_memory(2).state_dict())
    with pytest.raises(ValueError, match=r"\[2, 1, .*memory of 3"):
        model.step(tokens[0, :2], model.initial_memory(3), is_first[0])


@pytest.mark.quick("1-1-transfo-xl", "2-3-llama")
@pytest.mark.parametrize("wider", [1, 3])
@pytest.mark.parametrize("n_new", [1, 2])
def test_a_ring_grows_with_the_longest_episode_and_reads_the_same(model, wider, n_new, monkeypatch):
    tokens, is_first = stream(model, n_new=n_new)
    at_once = play(model, model.initial_memory(N_ENVS, n_new), tokens, is_first)
    monkeypatch.setattr(kv_cache, "WIDER", wider)
    memory = model.initial_memory(N_ENVS, n_new)
    torch.testing.assert_close(play(model, memory, tokens, is_first), at_once, atol=1e-5, rtol=0)
    memory = model.initial_memory(N_ENVS, n_new)
    is_first[:] = torch.arange(len(tokens))[:, None] % 3 == 0
    play(model, memory, tokens, is_first)
    assert memory.n_slots <= 3 * n_new * wider
    assert memory.n_slots < memory.keys.shape[2] or n_new * wider > 1
