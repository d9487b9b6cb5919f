from functools import cache

import numpy as np
import torch

from models.language.files import find_model
from models.sentence_encoder import BLOCK, SentenceEncoder
from tests.published_models import GOLDEN, tiny_sentence_encoder

NAME = "all-MiniLM-L6-v2"
TEXTS = ["key", "a red key and a closed blue door", "door", "An Empty room, unforgettably!", ""]


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
    alone = torch.cat([encoder()([text]) for text in TEXTS])
    torch.testing.assert_close(encoder()(TEXTS), alone, atol=1e-5, rtol=0)


def test_more_texts_than_fit_a_block_keep_their_order():
    texts = ["key"] * BLOCK + ["door", "key"]
    vectors = encoder()(texts)
    torch.testing.assert_close(vectors[-1], vectors[0])
    assert (vectors[-2] - vectors[0]).abs().max() > 0.1


def test_texts_are_cut_where_the_model_stops_reading():
    long = " ".join(["key"] * 300)
    torch.testing.assert_close(encoder()([long]), encoder()([long + " door"]))


def test_a_text_without_a_token_is_zeros_and_harms_no_other(tmp_path):
    bare = SentenceEncoder(find_model(str(tiny_sentence_encoder(tmp_path))))
    assert not bare([""]).any()
    torch.testing.assert_close(
        bare(["", "go to the red ball", ""])[1], bare(["go to the red ball"])[0]
    )
    assert bare(["go to the red ball"]).any()
