import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from analysis import while_training as showcase
from models import build_agent
from models.observations import AgentInput, Observations
from tests.agents import percept, random_images, small_config, spaces
from tests.test_program import metrics, train
from tests.tiny_clip import tiny_settings


@pytest.fixture
def shown(monkeypatch):
    """Collect the episodes that would be drawn, by the red of their first pixels."""
    found = []
    monkeypatch.setattr(showcase, "media", lambda agent, episode, _: found.append(reds(episode)))
    return found


def reds(episode):
    return episode.images[:, 0, 0, 0].tolist()


def see(show, first, is_first, is_last=False):
    """Let a first environment show first, first + 1, ... as its pixels; then ask for media."""
    for t, start in enumerate(is_first):
        images = random_images(2)
        images[0] = first + t
        seen = percept(images, torch.tensor([bool(start), True]))
        show.follow(SimpleNamespace(percept=seen, step=SimpleNamespace(read=None)))
    show.media(is_last)


def test_whole_episodes_are_shown_across_rollouts(shown):
    show = showcase.Showcase(agent=None, minutes=0)
    for first, is_first, expected in (
        (0, [1, 0, 0], []),
        (3, [0, 1, 0], [[0, 1, 2, 3]]),
        (6, [1, 0, 1], [[6, 7]]),
        (9, [1, 0, 0], [[8]]),
    ):
        see(show, first, is_first)
        assert shown == expected
        shown.clear()
    show = showcase.Showcase(agent=None, minutes=0)
    see(show, 0, [0, 0, 1])
    see(show, 3, [0, 1, 0])
    assert shown == [[2, 3]], "the begin of an earlier one was not seen"


def test_the_first_episode_is_shown_then_one_an_interval_and_the_last(shown):
    seconds = [0.0]
    show = showcase.Showcase(agent=None, minutes=1, clock=lambda: seconds[0])
    for now in range(0, 130, 10):
        seconds[0] = now
        see(show, now, [1, 1, 1])
    assert shown == [[1], [61], [121]]
    see(show, 200, [1, 1, 1], is_last=True)
    assert shown[3:] == [[201]]
    see(show, 0, [0, 0, 0], is_last=True)
    assert len(shown) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("CNN-PPO", {"movie"}),
        ("HELM", {"movie", "attention"}),
        ("SHELM", {"movie", "attention", "words", "word_counts"}),
    ],
)
def test_an_agent_shows_what_it_has_and_is_left_as_it_was(model, names):
    agent = build_agent(small_config(model=model, **tiny_settings(model)), *spaces())
    seen = percept(random_images(5), torch.ones(5).bool())
    step, random_state = agent.act(seen, agent.initial_memory(5)), torch.get_rng_state()
    media = showcase.media(agent, seen.observations, step.read)
    assert set(media) == {f"episode/{name}" for name in names}
    assert torch.equal(torch.get_rng_state(), random_state)
    assert agent.training
    images = {name: item for name, item in media.items() if not isinstance(item, str)}
    for item in images.values():
        opened = Image.open(io.BytesIO(item.data))
        assert (opened.format.lower(), opened.size) == (item.format, (item.width, item.height))
    movie = Image.open(io.BytesIO(images["episode/movie"].data))
    assert (movie.n_frames, movie.size) == (5, (225, 225)), "every step, enlarged"


def test_an_agent_of_vectors_shows_its_numbers():
    space = Box(-1, 1, (3,), np.float32)
    config = small_config(model="HELM", **tiny_settings("HELM"))
    agent = build_agent(config, space, Discrete(4))
    show = showcase.Showcase(agent, minutes=0)
    for t in range(6):
        vectors = Observations(vectors=torch.rand(2, 3))
        is_first, nothing = torch.tensor([t in (0, 5), True]), torch.zeros(2)
        seen = AgentInput(vectors, is_first, nothing.long(), nothing)
        step = agent.act(seen, agent.initial_memory(2))
        show.follow(SimpleNamespace(percept=seen, step=step))
    media = show.media(is_last=False)
    assert set(media) == {"episode/numbers", "episode/attention"}
    assert Image.open(io.BytesIO(media["episode/numbers"].data)).format == "PNG"


@pytest.mark.slow
def test_a_run_that_is_shown_learns_the_same(in_empty_folder):
    shown = train("HELM", "shown", showcase_minutes=0, n_steps=256, env="RandomMaze-v0")
    hidden = train("HELM", "hidden", showcase_minutes="null", n_steps=256, env="RandomMaze-v0")
    assert metrics(shown) == metrics(hidden)
    images = [EventAccumulator(str(run)).Reload().Tags()["images"] for run in (shown, hidden)]
    assert images == [["episode/movie", "episode/attention"], []]
