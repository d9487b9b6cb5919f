"""Transformer-XL against its original; other encoders than BERT."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from models.language.files import find_model
from models.language.load import describe_language_model, load_language_model, load_sentence_encoder
from tests.published_models import GOLDEN, N_POSITIONS, TRANSFORMER_XL, WORDS, tiny_model_folder
from tests.token_streams import play, stream


class PlainTransformerXL:
    """Transformer-XL with the memory as the paper writes it: slots of layer inputs."""

    def __init__(self, published, mem_len):
        self.config = published.config()
        self.mem_len = mem_len
        named = published.weights().items()
        self.weights = {name.removeprefix("transformer."): tensor for name, tensor in named}

    def initial_memory(self, n_envs):
        return torch.zeros(self.config["n_layer"], n_envs, self.mem_len, self.config["d_model"])

    @torch.no_grad()
    def step(self, tokens, slots, is_first):
        """Read tokens [N, K, D] and return the hidden state [N, D] and the new slots."""
        slots[:, is_first] = 0
        hidden = tokens
        inputs = []
        for layer in range(self.config["n_layer"]):
            seen = torch.cat([slots[layer], hidden], dim=1)
            inputs.append(seen[:, -self.mem_len :])
            hidden = self._layer(layer, hidden, seen)
        return hidden[:, -1], torch.stack(inputs)

    def _layer(self, layer, hidden, seen):
        mixed = self._attention(layer, seen, hidden.shape[1])
        mixed = mixed @ self._get(layer, "dec_attn.o_net").T
        hidden = self._norm(layer, "dec_attn", hidden + mixed)
        inner = functional.linear(hidden, *self._linear(layer, "pos_ff.CoreNet.0")).relu()
        change = functional.linear(inner, *self._linear(layer, "pos_ff.CoreNet.3"))
        return self._norm(layer, "pos_ff", hidden + change)

    def _attention(self, layer, seen, n_new):
        """Return the outputs of the heads of the last `n_new` of the seen tokens [N, M+K, D]."""
        n_seen, n_head, width = seen.shape[1], self.config["n_head"], self.config["d_head"]
        qkv = functional.linear(seen, self._get(layer, "dec_attn.qkv_net"))
        queries, keys, values = qkv.unflatten(-1, (3, n_head, width)).unbind(2)
        queries = queries[:, -n_new:]
        waves = self._sinusoids(n_seen)
        positions = functional.linear(waves, self._get(layer, "dec_attn.r_net"))
        positions = positions.unflatten(-1, (n_head, width))
        content = queries + self.weights[f"layers.{layer}.dec_attn.r_w_bias"]
        placed = queries + self.weights[f"layers.{layer}.dec_attn.r_r_bias"]
        scores = torch.einsum("nihd,njhd->nhij", content, keys)
        # Distance of column j from new token i; all but the last M are masked.
        distances = torch.arange(n_new)[:, None] + n_seen - n_new - torch.arange(n_seen)
        by_distance = torch.einsum("nihd,mhd->nhim", placed, positions)
        index = distances.clamp(0, n_seen - 1).expand_as(scores)
        scores = (scores + by_distance.gather(-1, index)) / math.sqrt(width)
        hidden_columns = (distances < 0) | (distances >= self.mem_len)
        weights = scores.masked_fill(hidden_columns, -math.inf).softmax(-1)
        return torch.einsum("nhij,njhd->nihd", weights, values).flatten(2)

    def _sinusoids(self, n_distances):
        width = self.config["d_model"]
        distances = torch.arange(float(n_distances)).clamp(max=self.config["clamp_len"])
        angles = distances[:, None] / 10000 ** (torch.arange(0.0, width, 2) / width)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def _get(self, layer, name):
        return self.weights[f"layers.{layer}.{name}.weight"]

    def _linear(self, layer, name):
        return self._get(layer, name), self.weights[f"layers.{layer}.{name}.bias"]

    def _norm(self, layer, name, rows):
        weight, bias = self._linear(layer, f"{name}.layer_norm")
        epsilon = self.config["layer_norm_epsilon"]
        return functional.layer_norm(rows, weight.shape, weight, bias, epsilon)


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


@pytest.mark.parametrize("name", ["roberta", "distilbert"])
def test_other_encoders_read_sentences_as_the_transformers_library_does(name, decoders):
    from transformers import AutoModel

    with torch.no_grad():
        outputs = AutoModel.from_pretrained(decoders[name])(torch.tensor([[3, 8, 5]]))
    found = load_sentence_encoder(str(decoders[name]))([" word0 word5 word2"])
    torch.testing.assert_close(found, outputs.last_hidden_state.mean(1), atol=1e-5, rtol=0)


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
