"""From images to tokens: HELM's and SHELM's retrieval."""

import math

import pytest
import torch
from torch import nn

from models.language.layers import DenseEmbeddings
from models.observation_to_language import (
    ColourHopfield,
    FrozenHopfield,
    TokenRetrieval,
    random_projection,
)
from tests import golden_data
from tests.tiny_clip import tiny_encoder

HOPFIELD = golden_data.under(golden_data.load("networks"), "hopfield.")


def retrieval(beta):
    return FrozenHopfield(HOPFIELD["projection"], DenseEmbeddings(HOPFIELD["embeddings"]), beta)


@pytest.mark.parametrize("name", [key for key in HOPFIELD if key.startswith("tokens.")])
def test_the_tokens_agree_with_the_original(name):
    beta = float(name.removeprefix("tokens.beta"))
    tokens = retrieval(beta)(HOPFIELD["observations"])
    torch.testing.assert_close(tokens.squeeze(1), HOPFIELD[name], atol=1e-5, rtol=0)


def test_each_colour_is_read_like_a_pixel_of_its_own():
    images, embeddings = torch.rand(5, 3, 4, 4), DenseEmbeddings(torch.randn(30, 8))
    projection = random_projection(8, 3 * 4 * 4)
    in_one_row = images.reshape(5, 1, 1, 48)
    expected = FrozenHopfield(projection, embeddings, 9.0)(in_one_row)
    found = ColourHopfield(projection, embeddings, 9.0)(images)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_the_projections_entries_have_the_variance_of_the_paper():
    projection = random_projection(64, 3136)
    assert projection.shape == (64, 3136)
    assert projection.var().item() == pytest.approx(1 / 64, rel=0.05)


class ColourEncoder(nn.Module):
    """An image's feature is its mean colour, any length."""

    images_at_a_time, width = 1, 3

    def forward(self, images):
        return 7 * images.mean((2, 3))


def colours(*rows):
    """Return images [N, 3, 2, 2] of one colour each."""
    return torch.tensor(rows, dtype=torch.float32)[:, :, None, None].expand(-1, 3, 2, 2)


def plain_retrieval(features, text_features, topk):
    """Return the numbers of the topk most similar texts, one by one, the straightforward way."""
    found = []
    for feature in features.tolist():
        cosines = [
            sum(a * b for a, b in zip(feature, text, strict=True))
            / math.sqrt(sum(a * a for a in feature) * sum(b * b for b in text))
            for text in text_features.tolist()
        ]
        order = sorted(range(len(cosines)), key=lambda number: (-round(cosines[number], 6), number))
        found.append([(number, cosines[number]) for number in order[:topk]])
    return found


@pytest.mark.parametrize("topk", [1, 3, 40])
def test_the_most_similar_words_come_first_as_in_a_plain_search(topk):
    encoder = tiny_encoder()
    text_features, token_vectors = torch.randn(40, 16), torch.randn(40, 6)
    words = [f"word{number}" for number in range(40)]
    retrieval = TokenRetrieval(encoder, text_features, token_vectors, words, topk)
    images = torch.rand(7, 3, 9, 9)
    encoded = retrieval(images)
    expected = torch.tensor(plain_retrieval(encoder(images), text_features, topk))  # [N, K, 2]
    torch.testing.assert_close(encoded, expected, atol=2e-6, rtol=0)
    tokens = retrieval.read(encoded).tokens
    assert torch.equal(tokens, token_vectors[expected[..., 0].long()])
    assert tokens.shape == (7, topk, 6)


def test_of_equally_similar_words_the_lower_number_comes_first():
    # Equal directions, at lengths and places that let rounding tell them apart.
    directions = torch.tensor([[1.0, 0.3, 0.7], [0.2, 0.9, 0.4]])
    lengths = torch.rand(61, 1) + 0.1
    text_features = directions[torch.arange(61) % 2] * lengths
    words = [str(number) for number in range(61)]
    retrieval = TokenRetrieval(ColourEncoder(), text_features, torch.randn(61, 4), words, 61)
    for n_images in (1, 2, 16):
        numbers = retrieval(colours(*[[1, 0.3, 0.7]] * n_images))[..., 0]
        assert numbers.tolist() == [[*range(0, 61, 2), *range(1, 61, 2)]] * n_images
