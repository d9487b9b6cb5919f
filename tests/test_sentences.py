"""Sentences: their table, a reader of theirs, and the frozen encoder."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Text
from minigrid.core.mission import MissionSpace

from models.helm import SentenceTokens
from models.language.files import find_model, read_tokenizer
from models.language.load import BLOCK, SentenceEncoder, load_language_model, load_sentence_encoder
from models.observations import ObservationPreprocessor, SentenceTable, SentenceVectors
from tests.bad_inputs.harness import in_one_line
from tests.golden_data import GOLDEN
from tests.published_models import TRANSFORMER_XL, tiny_model_folder, tiny_sentence_encoder
from utils.errors import UserError

TEXTS = ["go to the red ball", "", "go to a key", "\ud800 é", "go to the red ball"]


def test_a_number_is_that_of_one_sentence_whatever_else_was_met():
    first, second = SentenceTable(), SentenceTable()
    numbers = first.numbers(TEXTS)
    assert len(first) == len(set(numbers)) == 4
    assert second.numbers(reversed(TEXTS)) == numbers[::-1]
    second.numbers(["something else"])
    assert first.texts(torch.tensor([numbers])).tolist() == [TEXTS]


def test_a_table_is_saved_as_texts_and_knows_no_others_when_restored(tmp_path):
    saved, other = SentenceTable(), SentenceTable()
    numbers = saved.numbers(TEXTS)
    torch.save(saved.state_dict(), tmp_path / "table.pt")
    unsaved = other.numbers(["of another run"])
    other.load_state_dict(torch.load(tmp_path / "table.pt", weights_only=True))
    assert other.state_dict() == saved.state_dict()
    other.check(torch.tensor([numbers]))
    with pytest.raises(ValueError, match="not in the table"):
        other.check(torch.tensor([numbers[:1] + unsaved]))
    for state in (("a",), ["a", 1], {"a": 1}, "a"):
        with pytest.raises(ValueError, match="not a list of texts"):
            other.load_state_dict(state)


def test_each_sentence_is_read_once_and_its_row_stays_however_many_come_or_are_restored():
    table, read = SentenceTable(), []
    vectors = SentenceVectors(table, lambda text: read.append(text) or torch.tensor([float(text)]))
    met = 0
    for n_new in (1, 40, 3, 1, 17, 200):
        table.numbers(map(str, range(met, met + n_new)))
        met += n_new
        if n_new == 17:
            table.load_state_dict(table.state_dict()[::-1])
        numbers = torch.tensor(table.numbers(map(str, range(met))))
        assert vectors(numbers)[:, 0].tolist() == list(range(met))
    assert sorted(map(int, read)) == list(range(met))
    assert copy.deepcopy(vectors) is vectors


def test_a_reader_reads_texts_of_any_container_in_the_order_of_their_keys():
    mission = MissionSpace(lambda: "go")
    image = Box(0, 255, (3, 9, 9), np.uint8)
    space = Dict({"z": Text(9), "image": image, "a": Dict(told=mission)})  # sorts its keys
    reader = ObservationPreprocessor(space)
    assert (reader.n_texts, reader.n_numbers, reader.image_shape) == (2, 0, (3, 9, 9))
    texts = {"z": np.array(["x", "yy"]), "a": {"told": ("u", "v")}}
    seen = reader(texts | {"image": np.zeros((2, 3, 9, 9))})
    assert reader.sentences.texts(seen.text).tolist() == [["u", "x"], ["v", "yy"]]
    assert ObservationPreprocessor(Text(9))(("one", "two")).text.shape == (2, 1)


@pytest.fixture(scope="module")
def language_model():
    return load_language_model(TRANSFORMER_XL)


def test_a_sentence_becomes_its_own_tokens_or_means_of_them(language_model):
    table, text = SentenceTable(), "the word238 , word239 ."
    numbers = torch.tensor([table.numbers([text, ""])])
    ids = [language_model.vocabulary.index(word) for word in text.split()]
    own = language_model.embed(torch.tensor(ids))  # [5, D]
    for n_tokens, expected in ((5, own), (1, own.mean(0)[None])):
        sentence, nothing = SentenceTokens(table, language_model, n_tokens)(numbers)[0]
        torch.testing.assert_close(sentence, expected)
        assert nothing.shape == expected.shape
        assert not nothing.any()
    halves = SentenceTokens(table, language_model, 2)(numbers)[0, 0]
    torch.testing.assert_close(halves, torch.stack([own[:3].mean(0), own[2:].mean(0)]))


def test_texts_are_cut_by_whatever_a_model_was_published_with(tmp_path, language_model):
    unknown = language_model.vocabulary.index("<unk>")
    comma, word = (language_model.vocabulary.index(token) for token in (",", "word238"))
    assert language_model.published.tokenize("word238, unheard") == [word, comma, unknown]
    bert = find_model(tiny_model_folder(tmp_path / "bert", "bert"))
    assert bert.tokenize("Word3 word27 x") == [5, 29, 1]
    assert find_model("all-MiniLM-L6-v2").tokenize("Red ball!") == [2417, 3608, 999]
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "\u0120": 3}')
    (tmp_path / "merges.txt").write_text("a b\n")
    with pytest.raises(UserError, match=r"not a readable tokenizer, fetch it again\.$"):
        read_tokenizer(tmp_path / "tokenizer.json")
    assert read_tokenizer(tmp_path / "vocab.json").encode("ab ba").ids == [2, 3, 1, 0]


@pytest.mark.parametrize("kind", ["transfo-xl", "bert", "no bert", "decoder"])
def test_what_cannot_read_sentences_is_refused_in_one_line(kind, tmp_path):
    folder, reason = tmp_path, "tokenizer.json is missing"
    if kind == "transfo-xl":
        folder = TRANSFORMER_XL
    elif kind == "bert":
        tiny_model_folder(tmp_path, "bert")
    elif kind == "decoder":
        tiny_model_folder(tmp_path, "gpt2")
        reason = "is no published BERT"
    else:
        tiny_sentence_encoder(tmp_path)
        (tmp_path / "config.json").write_text('{"max_position_embeddings": 12}')
        reason = r"is no published BERT \(KeyError"
    with in_one_line(reason):
        load_sentence_encoder(str(folder))


NAME = "all-MiniLM-L6-v2"
READ = ["key", "a red key and a closed blue door", "door", "An Empty room, unforgettably!", ""]


@cache
def encoder():
    return SentenceEncoder(find_model(NAME))


def test_it_agrees_with_mean_pooling_by_the_transformers_library():
    # BertModel's last hidden state of the padded texts, averaged under the attention mask; kept
    # as numbers because importing the library takes longer than all tests of this file.
    golden = np.load(GOLDEN / "minilm_sentences.npz")
    expected = torch.from_numpy(golden["vectors"])
    found = encoder()(golden["texts"].tolist())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_text_is_read_the_same_in_any_company():
    alone = torch.cat([encoder()([text]) for text in READ])
    torch.testing.assert_close(encoder()(READ), alone, atol=1e-5, rtol=0)


def test_long_texts_are_cut_and_more_texts_than_fit_a_block_keep_their_order():
    long = " ".join(["key"] * 300)
    vectors = encoder()(["key"] * BLOCK + ["door", "key", long, long + " door"])
    torch.testing.assert_close(vectors[-3], vectors[0])
    torch.testing.assert_close(vectors[-2], vectors[-1])
    assert (vectors[-4] - vectors[0]).abs().max() > 0.1


def test_a_text_without_a_token_is_zeros_and_harms_no_other(tmp_path):
    bare = SentenceEncoder(find_model(str(tiny_sentence_encoder(tmp_path))))
    assert not bare([""]).any()
    alone = bare(["go to the red ball"])[0]
    torch.testing.assert_close(bare(["", "go to the red ball", ""])[1], alone)
    assert alone.any()
