import pytest
import torch

from models.language.layers import AdaptiveEmbeddings, DenseEmbeddings

SIZES = [(50, 12), (30, 6), (9000, 3), (7, 1)]


def adaptive():
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randn(size, generator=generator) for size in SIZES]
    projections = [torch.randn(12, width, generator=generator) for _, width in SIZES]
    whole = 3.0 * torch.cat([t @ p.T for t, p in zip(tables, projections, strict=True)])
    return AdaptiveEmbeddings(tables, projections, scale=3.0), whole


def dense():
    whole = torch.randn(9000, 12, generator=torch.Generator().manual_seed(0)) + 2
    return DenseEmbeddings(whole), whole


@pytest.fixture(params=[adaptive, dense])
def both(request):
    """Return the embeddings and E [V, D] written out."""
    return request.param()


def test_sizes_are_known(both):
    embeddings, whole = both
    assert (embeddings.n_tokens, embeddings.width) == whole.shape


def test_every_id_is_looked_up(both):
    embeddings, whole = both
    ids = torch.randperm(len(whole)).view(-1, 1, 1)
    torch.testing.assert_close(embeddings.lookup(ids), whole[ids], atol=1e-5, rtol=1e-5)


def test_products_with_every_embedding(both):
    embeddings, whole = both
    vectors = torch.randn(4, 12)
    torch.testing.assert_close(embeddings.dot(vectors), vectors @ whole.T, atol=1e-4, rtol=1e-5)


def test_weighted_sums_of_all_embeddings(both):
    embeddings, whole = both
    weights = torch.rand(4, len(whole)).softmax(-1)
    torch.testing.assert_close(embeddings.average(weights), weights @ whole, atol=1e-5, rtol=1e-5)


def test_lengths_of_all_embeddings(both):
    embeddings, whole = both
    torch.testing.assert_close(embeddings.norms, whole.norm(dim=1), atol=1e-4, rtol=1e-5)


def test_statistics_of_every_feature(both):
    embeddings, whole = both
    torch.testing.assert_close(embeddings.mean, whole.mean(0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(embeddings.std, whole.std(0), atol=1e-5, rtol=1e-5)


def test_the_whole_table_is_never_built(monkeypatch):
    embeddings, whole = adaptive()
    largest = max(parameter.numel() for parameter in embeddings.parameters())
    assert largest < whole.numel() / 3
    assert sum(parameter.numel() for parameter in embeddings.parameters()) < whole.numel() / 3


def test_embeddings_are_frozen(both):
    embeddings, _ = both
    assert not any(parameter.requires_grad for parameter in embeddings.parameters())
    assert not embeddings.norms.requires_grad
