import pytest
import torch

from models.language.layers import DenseEmbeddings
from models.observation_to_language import ColourHopfield, FrozenHopfield, random_projection
from tests import golden_data

HOPFIELD = golden_data.under(golden_data.load("networks"), "hopfield.")


def retrieval(beta):
    return FrozenHopfield(HOPFIELD["projection"], DenseEmbeddings(HOPFIELD["embeddings"]), beta)


@pytest.mark.parametrize("name", [key for key in HOPFIELD if key.startswith("tokens.")])
def test_the_tokens_agree_with_the_original(name):
    beta = float(name.removeprefix("tokens.beta"))
    tokens = retrieval(beta)(HOPFIELD["observations"])
    torch.testing.assert_close(tokens.squeeze(1), HOPFIELD[name], atol=1e-5, rtol=0)


def test_a_large_beta_is_the_single_most_similar_token():
    hopfield = retrieval(1e7)
    nearest = hopfield.similarities(HOPFIELD["observations"]).argmax(-1)
    tokens = hopfield(HOPFIELD["observations"]).squeeze(1)
    torch.testing.assert_close(tokens, HOPFIELD["embeddings"][nearest], atol=1e-5, rtol=0)


def test_a_black_image_gives_finite_tokens():
    black = torch.zeros_like(HOPFIELD["observations"][:1])
    assert retrieval(100.0)(black).isfinite().all()


def test_each_colour_is_read_like_a_pixel_of_its_own():
    images, embeddings = torch.rand(5, 3, 4, 4), DenseEmbeddings(torch.randn(30, 8))
    projection = random_projection(8, 3 * 4 * 4)
    in_one_row = images.reshape(5, 1, 1, 48)
    expected = FrozenHopfield(projection, embeddings, 9.0)(in_one_row)
    torch.testing.assert_close(
        ColourHopfield(projection, embeddings, 9.0)(images), expected, atol=1e-6, rtol=0
    )


def test_colours_as_bright_as_each_other_are_told_apart_where_each_is_read():
    images = torch.eye(3)[:, :, None, None].expand(3, 3, 2, 2)  # red, green and blue
    embeddings = DenseEmbeddings(torch.randn(30, 8))
    published = FrozenHopfield(random_projection(8, 4), embeddings, 100.0)(images)
    torch.testing.assert_close(published, published[:1].expand_as(published), atol=1e-5, rtol=0)
    tokens = ColourHopfield(random_projection(8, 12), embeddings, 100.0)(images)[:, 0]
    assert torch.pdist(tokens).min() > 1e-2


def test_the_projections_entries_have_the_variance_of_the_paper():
    projection = random_projection(64, 3136)
    assert projection.shape == (64, 3136)
    assert projection.var().item() == pytest.approx(1 / 64, rel=0.05)
