import dataclasses

import numpy as np
import pytest

from models.word_embeddings import (
    PROMPTS,
    PromptEmbeddings,
    configured_embeddings,
    embeddings_file,
    file_name,
    suite_of,
)
from tests.agents import small_config
from utils.errors import UserError


def some_embeddings(**changes):
    fields = {
        "tokens": np.array(["key", "dôor"]),
        "ids": np.array([7, 9]),
        "embeddings": np.ones((2, 3), dtype=np.float32),
        "prompts": np.array(["{}"]),
        "encoder": np.array("ViT-B-16"),
        "encoder_fingerprint": np.array("a" * 64),
        "language_model": np.array("all-MiniLM-L6-v2"),
        "language_model_fingerprint": np.array("b" * 64),
        "versions": np.array(["torch 2"]),
    }
    return PromptEmbeddings(**(fields | changes))


def shelm_config(**changes):
    settings = {"model": "SHELM", "clip_encoder": "ViT-B-16", "env": "MiniWorld-Sign-v0"}
    return small_config(**(settings | changes))


def test_a_file_gives_back_what_was_written_and_needs_no_pickle(tmp_path):
    written = some_embeddings()
    written.write(tmp_path / "some.npz")
    read = PromptEmbeddings.read(tmp_path / "some.npz")
    for field in dataclasses.fields(PromptEmbeddings):
        before, after = getattr(written, field.name), getattr(read, field.name)
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)
    assert [path.name for path in tmp_path.iterdir()] == ["some.npz"]


@pytest.mark.parametrize("content", [b"", b"hello", "other"])
def test_another_file_is_one_line(content, tmp_path):
    path = tmp_path / "some.npz"
    if content == "other":
        np.savez(path, tokens=np.array(["key"]))
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match="not a file of prepare_embeddings") as caught:
        PromptEmbeddings.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["embeddings", "tokens", "ids", "versions"])
def test_a_file_that_has_changed_is_refused(name, tmp_path):
    path = tmp_path / "some.npz"
    some_embeddings().write(path)
    with np.load(path) as arrays:
        changed = dict(arrays)
    changed[name] = changed[name][::-1].copy() if name != "versions" else np.array(["torch 3"])
    changed["embeddings"][0, 0] += name == "embeddings"
    np.savez(path, **changed)
    with pytest.raises(UserError, match="damaged, its content does not have its checksum"):
        PromptEmbeddings.read(path)


def test_an_embedding_of_zeros_is_refused(tmp_path):
    embeddings = np.array([[1, 2, 3], [0, 0, 0]], dtype=np.float32)
    some_embeddings(embeddings=embeddings).write(tmp_path / "some.npz")
    with pytest.raises(UserError, match="not a file of prepare_embeddings"):
        PromptEmbeddings.read(tmp_path / "some.npz")


def test_files_agree_if_models_words_and_prompts_do():
    first = some_embeddings()
    assert first.agrees(some_embeddings(embeddings=np.zeros((0, 3)), versions=np.array(["new"])))
    for name in ("encoder", "encoder_fingerprint", "language_model_fingerprint", "prompts"):
        assert not first.agrees(some_embeddings(**{name: np.array("other")}))
    assert not first.agrees(some_embeddings(tokens=np.array(["key", "ball"])))


def test_every_environment_has_the_prompts_of_a_suite():
    suites = {
        "MiniGrid-Unlock-v0": "minigrid",
        "RandomMaze-v0": "minigrid",
        "maze": "minigrid",
        "MiniWorld-Sign-v0": "miniworld",
        "psychlab_continuous_recognition": "psychlab",
        "ContinuousRecognition-v0": "psychlab",
    }
    assert {env: suite_of(env) for env in suites} == suites
    assert {suite: len(prompts) for suite, prompts in PROMPTS.items()} == {
        "minigrid": 1,
        "miniworld": 1,
        "psychlab": 6,
        "avalon": 7,
    }


def test_names_of_files_are_safe(tmp_path):
    (tmp_path / "my model").mkdir()
    assert file_name(str(tmp_path / "my model") + "/") == "my model"
    assert file_name("someone/some-bert") == "someone-some-bert"
    path = embeddings_file("RN50", "someone/some-bert", "avalon", tmp_path)
    assert path == tmp_path / "RN50_someone-some-bert_avalon.npz"


def test_a_missing_file_is_one_line_with_the_command_that_makes_it(in_empty_folder):
    with pytest.raises(UserError) as caught:
        configured_embeddings(shelm_config())
    assert str(caught.value) == (
        "data/ViT-B-16_all-MiniLM-L6-v2_miniworld.npz is missing. Run: python "
        "prepare_embeddings.py --suite miniworld --clip-encoder ViT-B-16 "
        "--language-model all-MiniLM-L6-v2"
    )


def test_the_command_names_the_weights_and_a_file_of_the_users(in_empty_folder):
    config = shelm_config(embeddings="my.npz", clip_pretrained="my weights.pt")
    with pytest.raises(UserError, match=r"my\.npz is missing") as caught:
        configured_embeddings(config)
    assert "--clip-pretrained 'my weights.pt'" in str(caught.value)
    assert str(caught.value).endswith("set embeddings=data/ViT-B-16_all-MiniLM-L6-v2_miniworld.npz")


@pytest.mark.parametrize("name", ["encoder", "language_model"])
def test_a_file_for_models_of_other_names_is_refused_with_the_command(name, in_empty_folder):
    some_embeddings(**{name: np.array("other")}).write(in_empty_folder / "my.npz")
    with pytest.raises(UserError, match=r"was made for .*other.*Run: python prepare_embeddings"):
        configured_embeddings(shelm_config(embeddings="my.npz"))
    some_embeddings().write(in_empty_folder / "my.npz")
    assert configured_embeddings(shelm_config(embeddings="my.npz")).tokens[0] == "key"
