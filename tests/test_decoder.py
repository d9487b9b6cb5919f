"""Models of the transformers library against the library reading a whole episode at once."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.language import decoder
from models.language.decoder import score_mask
from models.language.load import describe_language_model, load_language_model
from tests.bad_inputs.harness import in_one_line
from tests.published_models import DECODERS, N_POSITIONS, WORDS, tiny_model_folder
from utils.errors import UserError

N_ENVS = 3
EVERYTHING_IN_SIGHT = ["gpt2", "llama", "qwen3", "bert", "roberta", "distilbert"]


def library(folder):
    """Return the model as the library loads it, nothing of ours around it."""
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, attn_implementation="eager").eval()


def episodes(n_calls, n_new):
    """Return token ids [N, T*K] and staggered starts [N, T] of several episodes."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(0, len(WORDS), (N_ENVS, n_calls * n_new), generator=generator)
    is_first = torch.zeros(N_ENVS, n_calls, dtype=torch.bool)
    is_first[:, 0] = is_first[0, 5] = is_first[1, 2] = is_first[1, 3] = True
    return ids, is_first


def read(model, ids, is_first):
    """Return the hidden states [N, T, D] of streams read call by call with a memory."""
    n_envs, n_calls = is_first.shape
    n_new = ids.shape[1] // n_calls
    memory = model.initial_memory(n_envs, n_new)
    calls = zip(ids.split(n_new, dim=1), is_first.unbind(1), strict=True)
    return torch.stack([model.step(model.embed(i), memory, s) for i, s in calls], dim=1)


@torch.no_grad()
def recomputed(plain, ids, is_first):
    """Return the same, each episode's whole context read anew for every call.  [N, T, D]"""
    n_envs, n_calls = is_first.shape
    n_new = ids.shape[1] // n_calls
    rows = []
    for env in range(n_envs):
        begin = 0
        for call in range(n_calls):
            begin = call if is_first[env, call] else begin
            context = ids[env : env + 1, begin * n_new : (call + 1) * n_new]
            rows.append(plain(input_ids=context, use_cache=False).last_hidden_state[0, -1])
    return torch.stack(rows).view(n_envs, n_calls, -1)


@torch.no_grad()
def windowed(plain, ids, n_new, window, last_position):
    """Return the hidden states [N, T, D] of one episode of which a call sees `window` tokens."""
    n_tokens = ids.shape[1]
    columns = torch.arange(n_tokens)
    last_of_call = columns // n_new * n_new + n_new - 1
    visible = (columns > last_of_call[:, None] - window) & (columns <= columns[:, None])
    mask = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    places = columns.clamp(max=last_position)
    if plain.config.model_type == "roberta":
        places += plain.config.pad_token_id + 1
    mask = mask.expand(len(ids), 1, n_tokens, n_tokens)
    read_at_once = plain(input_ids=ids, attention_mask=mask, position_ids=places[None])
    return read_at_once.last_hidden_state[:, n_new - 1 :: n_new]


@pytest.mark.quick("gpt2-1", "llama-2")
@pytest.mark.parametrize("n_new", [1, 2, 3])
@pytest.mark.parametrize("name", DECODERS)
def test_episodes_agree_with_recomputing_their_whole_context(decoders, name, n_new):
    longest = N_POSITIONS // n_new  # calls GPT-2's positions allow an episode
    ids, is_first = episodes(3 * longest, n_new)
    is_first[:, ::longest] = True
    expected = recomputed(library(decoders[name]), ids, is_first)
    found = read(load_language_model(decoders[name], mem_len=N_POSITIONS), ids, is_first)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.quick("llama-4-1", "llama-30-3", "bert-4-2", "roberta-30-1")
@pytest.mark.parametrize(
    ("mem_len", "n_new"), [(1, 1), (4, 1), (4, 2), (4, 3), (11, 2), (30, 1), (30, 3)]
)
@pytest.mark.parametrize("name", EVERYTHING_IN_SIGHT)
def test_the_oldest_tokens_leave_the_window(decoders, name, mem_len, n_new):
    n_positions = 10**6 if name in ("llama", "qwen3") else N_POSITIONS
    ids, is_first = episodes(36 // n_new, n_new)
    is_first[:] = False
    window = min(mem_len + n_new, n_positions)
    expected = windowed(library(decoders[name]), ids, n_new, window, n_positions - 1)
    found = read(load_language_model(decoders[name], mem_len=mem_len), ids, is_first)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", DECODERS)
def test_attention_is_the_librarys_own(decoders, name):
    ids, is_first = episodes(7, 1)
    is_first[:] = False
    model = load_language_model(decoders[name], mem_len=9)
    memory = model.initial_memory(N_ENVS)
    for token in ids[:, :-1].unbind(1):
        model.step(model.embed(token[:, None]), memory, is_first[:, 0])
    found = model.attention(model.embed(ids[:, -1:]), memory, is_first[:, 0])
    with torch.no_grad():
        maps = library(decoders[name])(input_ids=ids, output_attentions=True).attentions
    assert found.shape == (2, N_ENVS, 6, 1, 10)
    assert (found[..., :3] == 0).all()
    expected = torch.stack(maps)[..., -1:, :]
    torch.testing.assert_close(found[..., 3:], expected, atol=1e-5, rtol=0)


@pytest.mark.quick("llama")
@pytest.mark.parametrize("name", DECODERS)
def test_fewer_layers_are_the_first_ones_and_are_fed_the_librarys_embeddings(decoders, name):
    n_positions = N_POSITIONS if name == "gpt2" else None
    assert describe_language_model(decoders[name]) == (name, 2, 24, len(WORDS), n_positions)
    model, plain = load_language_model(decoders[name], n_layer=1), library(decoders[name])
    ids, is_first = episodes(6, 1)
    with torch.no_grad():
        torch.testing.assert_close(model.embed(ids), plain.get_input_embeddings()(ids))
    assert model.n_layer == 1
    del (plain.h if name == "gpt2" else plain.layers)[1:]
    plain.config.num_hidden_layers = 1
    expected = recomputed(plain, ids, is_first)
    torch.testing.assert_close(read(model, ids, is_first), expected, atol=1e-5, rtol=0)


def test_weights_split_over_files_are_one_model(decoders, tmp_path):
    folder = tiny_model_folder(tmp_path / "split", "llama", max_shard_size="10KB")
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 1
    ids, is_first = episodes(6, 1)
    whole, split = load_language_model(decoders["llama"]), load_language_model(folder)
    assert torch.equal(read(whole, ids, is_first), read(split, ids, is_first))
    before = split.fingerprint
    shards[-1].write_bytes(shards[-1].read_bytes() + b"x")
    assert load_language_model(decoders["llama"]).fingerprint == whole.fingerprint
    assert split.published.fingerprint() != before


def test_half_precision_weights_are_kept_as_published_until_packed(tmp_path, decoders):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(decoders["qwen3"], dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    ids, is_first = episodes(6, 1)
    expected = recomputed(library(tmp_path).float(), ids, is_first)
    found = read(load_language_model(tmp_path), ids, is_first)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    rounded = read(load_language_model(tmp_path, dtype=torch.bfloat16), ids, is_first)
    torch.testing.assert_close(rounded, expected, atol=0.1, rtol=0)


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
LAYERS = ["linear_attention", "full_attention"]
REFUSED = [
    ({"rope_parameters": DYNAMIC}, "type 'dynamic' change with the longest episode"),
    ({"model_type": "qwen3_next", "layer_types": LAYERS}, "layers of type linear_attention"),
    ({"model_type": "gptj", "rope_parameters": None}, "model_type 'gptj' has other positions"),
    ({"model_type": "lama"}, "Did you mean 'llama'"),
    ({"model_type": "albert"}, "'albert' is an encoder of another build"),
    ({"model_type": "vit"}, "'vit' reads images, not tokens"),
    ({"model_type": "gemma3"}, "'gemma3' reads images besides"),
    ({"model_type": "mamba"}, "'mamba' is recurrent: it has no keys"),
    ({"model_type": "rwkv"}, "'rwkv' is recurrent: it has no keys"),
    ({"model_type": "jamba"}, "'jamba' has layers of type linear_attention"),
    ({"hidden_size": "wide"}, "config.json: "),
]


@pytest.mark.parametrize(("settings", "line"), REFUSED)
def test_a_model_without_a_memory_is_refused_at_once(decoders, tmp_path, settings, line):
    config = json.loads((decoders["llama"] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | settings))
    with in_one_line(line):
        describe_language_model(tmp_path)


def test_a_model_whose_memory_differs_from_the_whole_context_is_refused(decoders, monkeypatch):
    monkeypatch.setattr(decoder, "score_mask", lambda hidden: score_mask(hidden & False))
    with pytest.raises(UserError, match=r"cannot serve as a memory: .* differs by \d+%"):
        load_language_model(decoders["llama"])


def test_weights_that_lack_some_are_refused_in_one_line(decoders, tmp_path):
    folder = shutil.copytree(decoders["llama"], tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with in_one_line("1 weights are missing"):
        load_language_model(folder)
