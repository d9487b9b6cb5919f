import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from models import word_embeddings
from models.language.files import find_model
from models.word_embeddings import (
    PROMPTS,
    PromptEmbeddings,
    prepare,
    prompt_means,
    shared_vocabulary,
)
from tests.published_models import TRANSFORMER_XL
from tests.tiny_clip import tiny_encoder
from utils.errors import UserError

SHARED = [",", "the", ".", "key", "door", "ball", "box", "wall", "red", "blue", "green", "room"]


class CountingEncoder:
    """Features that say how long a text is; it fails after a number of calls if told to."""

    name, width, fingerprint = "counting", 2, "f" * 64

    def __init__(self, vocabulary, fails_after=None):
        self.vocabulary, self.fails_after, self.texts = vocabulary, fails_after, []

    def embed_texts(self, texts):
        if self.fails_after is not None and len(self.texts) >= self.fails_after:
            raise KeyboardInterrupt
        self.texts += texts
        return torch.tensor([[len(text), sum(map(ord, text))] for text in texts]).float()


class SlowEncoder(CountingEncoder):
    """Lets other calls have their turn."""

    def embed_texts(self, texts):
        time.sleep(0.01)
        return super().embed_texts(texts)


class WordList:
    """A language model's files, as far as they matter here."""

    name = "words"

    def __init__(self, words):
        self.words = words

    def vocabulary(self):
        return self.words

    def fingerprint(self):
        return "e" * 64


def test_words_are_shared_by_their_stripped_strings():
    retrievable = ["key", "door", "[", "##", "[sep]", "##ing", "ing", "<eos>", "the"]
    tokens = ["[SEP]", "[sep]", " key ", "##ing", "<eos>", "Door", "door", "key", "[", "##", "ing"]
    assert shared_vocabulary(retrievable, tokens) == {
        "key": 2,
        "door": 6,
        "[": 8,
        "##": 9,
        "ing": 10,
    }


def test_a_words_embedding_is_the_mean_over_its_prompts_of_unnormalised_features():
    encoder, words, prompts = tiny_encoder(), ["key", "{}", "red door"], PROMPTS["psychlab"]
    expected = []
    for word in words:
        texts = [prompt.replace("{}", word) for prompt in prompts]
        expected.append(sum(encoder.clip.encode_text(encoder.tokenizer([t]))[0] for t in texts) / 6)
    means = prompt_means(encoder, words, prompts)
    torch.testing.assert_close(means, torch.stack(expected), atol=1e-5, rtol=0)


def test_the_file_holds_every_shared_word_in_the_order_of_the_language_models_ids(tmp_path):
    encoder, language_model = tiny_encoder(), find_model(TRANSFORMER_XL)
    path = prepare(encoder, language_model, "avalon", tmp_path)
    assert path == tmp_path / "tiny-vit_transfo_xl_k1_avalon.npz"
    found = PromptEmbeddings.read(path)
    assert found.tokens.tolist()[:12] == SHARED
    assert [language_model.vocabulary()[number] for number in found.ids] == found.tokens.tolist()
    assert found.ids.tolist() == sorted(found.ids)
    expected = prompt_means(encoder, found.tokens.tolist(), PROMPTS["avalon"])
    np.testing.assert_allclose(found.embeddings, expected, atol=1e-5)
    assert tuple(found.prompts) == PROMPTS["avalon"]
    assert str(found.encoder_fingerprint) == encoder.fingerprint
    assert str(found.language_model_fingerprint) == language_model.fingerprint()
    assert any(text.startswith("torch ") for text in found.versions)


def test_a_second_call_does_nothing_and_other_weights_do_it_again(tmp_path):
    language_model = find_model(TRANSFORMER_XL)
    path = prepare(tiny_encoder(), language_model, "minigrid", tmp_path)
    before = path.read_bytes()
    assert prepare(tiny_encoder(), language_model, "minigrid", tmp_path) is None
    assert path.read_bytes() == before
    assert prepare(tiny_encoder(seed=1), language_model, "minigrid", tmp_path) == path
    assert path.read_bytes() != before


def test_an_interrupted_call_is_taken_up_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(word_embeddings, "BLOCK", 4)
    words = WordList([f"{'x' * number}" for number in range(1, 12)])
    with pytest.raises(KeyboardInterrupt):
        prepare(CountingEncoder(words.words, fails_after=8), words, "minigrid", tmp_path)
    (begun,) = tmp_path.iterdir()
    fewer = CountingEncoder(words.words[1:])
    prepare(fewer, words, "minigrid", tmp_path).unlink()  # of other words nothing is taken up
    assert fewer.texts == words.words[1:]
    assert list(tmp_path.iterdir()) == [begun]
    later = CountingEncoder(words.words)
    path = prepare(later, words, "minigrid", tmp_path)
    assert later.texts == words.words[8:]
    assert list(tmp_path.iterdir()) == [path]
    found = PromptEmbeddings.read(path)
    assert found.embeddings[:, 0].tolist() == list(range(1, 12))


def test_two_calls_at_once_make_one_right_file(tmp_path, monkeypatch):
    monkeypatch.setattr(word_embeddings, "BLOCK", 4)
    words = WordList([f"{'x' * number}" for number in range(1, 40)])
    encoders = [SlowEncoder(words.words) for _ in range(4)]
    with ThreadPoolExecutor(len(encoders)) as pool:
        calls = [pool.submit(prepare, e, words, "minigrid", tmp_path) for e in encoders]
    (written,) = [path for path in (call.result() for call in calls) if path]
    assert sum(len(encoder.texts) for encoder in encoders) == 39
    assert list(tmp_path.iterdir()) == [written]
    found = PromptEmbeddings.read(written)
    assert found.embeddings[:, 0].tolist() == list(range(1, 40))


def test_models_without_a_common_word_are_refused(tmp_path):
    with pytest.raises(UserError, match="counting and words have no word in common"):
        prepare(CountingEncoder(["key"]), WordList(["Key"]), "minigrid", tmp_path)
