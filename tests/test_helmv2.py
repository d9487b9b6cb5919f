import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import build_agent
from models.helm import HelmV2
from models.language.layers import DenseEmbeddings
from models.observation_to_language import ClipProjection, RunningStandardization
from tests.agents import percept, random_images, small_config, spaces
from tests.tiny_clip import tiny_encoder, tiny_settings
from utils.errors import UserError


def build(**changes):
    config = small_config(model="HELMv2", **tiny_settings("HELMv2"), **changes)
    return build_agent(config, *spaces())


def play(agent, frames):
    """Let the agent see frames [T, N, 3, 9, 9]; return its hidden states [T, N, D]."""
    memory = agent.initial_memory(frames.shape[1])
    is_first = torch.ones(frames.shape[1], dtype=torch.bool)
    percepts = [percept(images, is_first & (t == 0)) for t, images in enumerate(frames)]
    return torch.stack([agent.act(each, memory).stored_state for each in percepts])


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6))
def test_statistics_are_those_of_all_rows_at_once(sizes):
    rows = 3 + 0.2 * torch.randn(max(2, sum(sizes)), 5)
    standardize = RunningStandardization(5)
    for batch in rows.split([*sizes[1:], len(rows) - sum(sizes[1:])]):
        standardize.update(batch)
    exact = rows.double()
    assert standardize.count == len(rows)
    torch.testing.assert_close(standardize.mean, exact.mean(0), atol=1e-12, rtol=0)
    torch.testing.assert_close(standardize.deviation, exact.std(0), atol=1e-12, rtol=0)
    expected = (exact - exact.mean(0)) / (exact.std(0) + 1e-8)
    torch.testing.assert_close(standardize(rows), expected.float())


@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_single_frame_and_equal_frames_give_finite_tokens(n_envs):
    agent = build()
    language, image = agent.frozen_memory, random_images(1).expand(n_envs, -1, -1, -1)
    assert play(agent, image.expand(4, -1, -1, -1, -1)).isfinite().all()
    assert language.to_language.standardize.count == 4 * n_envs
    (token,), *_ = language.to_language.read(language.cache(image)).tokens
    # A feature that never varied is at its mean.
    expected = language.language_model.embeddings.mean
    torch.testing.assert_close(token, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["tiny-vit", "tiny-resnet"])  # of width 16 and 24
def test_a_token_is_the_worked_formula(name):
    encoder, table = tiny_encoder(name), torch.randn(50, 24)
    projection = ClipProjection(encoder, DenseEmbeddings(table))
    assert (projection.projection is None) == (name == "tiny-resnet")
    images = torch.rand(10, 3, 9, 9)
    features = encoder(images)
    if projection.projection is not None:
        features = features @ projection.projection.T
    features = features.double()  # those of a random network hardly differ
    for batch in projection(images).split(4):
        projection.observe(batch)
    mean, std = features.mean(0), features.std(0)
    expected = (features - mean) / (std + 1e-8) * table.std(0) + table.mean(0)
    tokens = projection.read(projection(images)).tokens
    assert tokens.shape == (10, 1, 24)
    torch.testing.assert_close(tokens[:, 0], expected.float(), atol=1e-4, rtol=1e-4)


def test_statistics_follow_acting_while_training_and_nothing_else():
    agent, images, is_first = build(), random_images(3), torch.ones(3, dtype=torch.bool)
    memory, standardize = agent.initial_memory(3), agent.frozen_memory.to_language.standardize
    agent.act(percept(images, is_first), memory, advance=False)
    assert standardize.count == 0
    agent.act(percept(images, is_first), memory)
    agent.act(percept(images, ~is_first), memory)  # every frame counts, seen before or not
    assert standardize.count == 6
    agent.eval()
    agent.act(percept(random_images(3), ~is_first), memory)
    assert standardize.count == 6
    saved = {f"standardize.{name}" for name in ("mean", "squares", "count")} | {"projection"}
    names = {name for name in agent.state_dict() if name.startswith("language")}
    assert names == {f"language.to_language.{name}" for name in saved}


def test_all_mistakes_are_told_before_anything_is_loaded():
    changes = {"language_model": "all-MiniLM-L6-v2", "clip_encoder": "ViT-B16"}
    config = small_config(model="HELMv2", n_layer=9, **changes)
    with pytest.raises(UserError, match=r"n_layer: 9 is more(.|\n)*Did you mean 'ViT-B-16'"):
        HelmV2.check(config)
