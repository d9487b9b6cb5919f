"""Replay of frames against the original's samples, and what is kept of it in files."""

import dataclasses

import pytest
import torch

from models.observations import Observations
from settings import load_config
from tests import golden_data
from trainers.frame_log import FrameLog
from trainers.frame_replay import FrameReplay, Place
from trainers.n_step_dqn import FLOATS
from trainers.targets import n_step_returns
from utils.errors import RunError, UserError

CASES = ("n3", "n1", "n5", "n3_unclipped")


def config_of(**changes):
    config = load_config(None, ["model=ELLM", "algorithm=NStepDQN"])
    return dataclasses.replace(config, **changes)


def add_episode(replay, frames, actions, rewards, goes_on, env=0, n_envs=1):
    """Let one environment have an episode: frames [L+1, ...], all else [L]."""
    for step in range(len(actions)):
        shown = Observations(frames[step].expand(n_envs, *frames.shape[1:]))
        each = (value[step].expand(n_envs) for value in (actions, rewards.float(), ~goes_on))
        replay.add(shown, *each)
    replay.end(env, Observations(frames[-1].expand(n_envs, *frames.shape[1:])))


@pytest.fixture
def golden(tmp_path):
    """Return a function that stores the original's episodes in a replay."""
    arrays = golden_data.load("ellm/replay")

    def filled(n_step):
        example = Observations(arrays["frames"][:1])
        replay = FrameReplay(config_of(n_step=n_step), 4, tmp_path / f"replay{n_step}", example)
        first = 0
        for length in arrays["episode_length"].tolist():
            rows = slice(first, first + length + 1)
            done = slice(first + 1, first + length + 1)  # theirs belong to what led to the frame
            goes_on = arrays["discount"][done] > 0
            add_episode(
                replay, arrays["frames"][rows], arrays["action"][done], arrays["reward"][done], goes_on
            )
            first += length + 1
        return replay

    return arrays, filled


@pytest.mark.parametrize("case", CASES)
def test_samples_are_the_originals(case, golden):
    arrays, filled = golden
    expected = golden_data.under(arrays, f"{case}.")
    n_step, gamma, clip = expected["settings"].tolist()
    replay = filled(int(n_step))
    lengths = arrays["episode_length"].tolist()
    assert [replay.episodes.n_starts(n) for n in lengths] == expected["number_of_starts"].tolist()
    places = zip(expected["episode"].tolist(), expected["start"].tolist(), strict=True)
    steps = replay.steps([(replay.episodes[episode], start) for episode, start in places])
    rewards = steps.rewards.clamp(-1, 1) if clip else steps.rewards
    returns, discounts = n_step_returns(rewards, steps.goes_on, gamma, torch.float16)
    assert torch.equal(returns, expected["n_step_return"])
    assert torch.equal(discounts, expected["discount"])
    assert torch.equal(steps.actions, expected["action"])
    assert torch.equal(steps.observations.images, expected["observation"])
    counts = discounts > 0
    assert torch.equal(steps.following.images[counts], expected["next_observation"][counts])


def test_the_stacks_of_an_episode_are_those_the_original_has_acted_on(tmp_path):
    episode = golden_data.load("ellm/pipeline")
    replay = FrameReplay(config_of(), 4, tmp_path, Observations(episode["frame_gray"][:1]))
    goes_on = episode["discount"][1:] > 0
    add_episode(replay, episode["frame_gray"], episode["action"][1:], episode["reward"][1:], goes_on)
    length = len(episode["action"]) - 1
    n_starts = replay.episodes.n_starts(length)
    steps = replay.steps([(replay.episodes[0], start) for start in range(n_starts)])
    assert torch.equal(steps.observations.images, episode["stacked"][:n_starts])
    assert torch.equal(steps.following.images, episode["stacked"][3:])
    assert steps.goes_on[:-1].all()
    assert not steps.goes_on[-1, -1]
    assert torch.equal(steps.actions, episode["action"][1 : n_starts + 1])
