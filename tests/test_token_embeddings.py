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


def assert_close(found, expected, atol=1e-5):
    torch.testing.assert_close(found, expected, atol=atol, rtol=1e-5)


def test_products_sums_lengths_and_statistics_are_those_of_the_whole_table(both):
    embeddings, whole = both
    assert (embeddings.n_tokens, embeddings.width) == whole.shape
    ids = torch.randperm(len(whole)).view(-1, 1, 1)
    vectors, weights = torch.randn(4, 12), torch.rand(4, len(whole)).softmax(-1)
    assert_close(embeddings.lookup(ids), whole[ids])
    assert_close(embeddings.dot(vectors), vectors @ whole.T, atol=1e-4)
    assert_close(embeddings.average(weights), weights @ whole)
    assert_close(embeddings.norms, whole.norm(dim=1), atol=1e-4)
    assert_close(embeddings.mean, whole.mean(0))
    assert_close(embeddings.std, whole.std(0))


def test_the_whole_table_is_never_built_and_nothing_is_trained(both):
    embeddings, whole = both
    parameters = list(embeddings.parameters())
    assert not any(each.requires_grad for each in (*parameters, embeddings.norms))
    if isinstance(embeddings, AdaptiveEmbeddings):
        assert sum(parameter.numel() for parameter in parameters) < whole.numel() / 3
