"""Replay of frames against the original's samples, and its files."""

import dataclasses

import numpy as np
import pytest
import torch

from models.observations import Observations
from tests import golden_data
from trainers.frame_replay import FrameLog, FrameReplay
from trainers.losses import n_step_returns
from utils.settings import load_config

CASES = ("n3", "n1", "n5", "n3_unclipped")


def config_of(**changes):
    config = load_config(None, ["model=ELLM", "algorithm=EllmDQN"])
    return dataclasses.replace(config, **changes)


def add_episode(replay, frames, actions, rewards, not_done):
    """Let the one environment have an episode: frames [L+1, ...], all else [L]."""
    for step in range(len(actions)):
        each = (value[step : step + 1] for value in (actions, rewards.float(), ~not_done))
        replay.add(Observations(frames[step : step + 1]), *each)
    replay.end(0, Observations(frames[-1:]))


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
            done = slice(
                first + 1, first + length + 1
            )  # theirs belong to the step before the frame
            not_done = arrays["discount"][done] > 0
            add_episode(
                replay,
                arrays["frames"][rows],
                arrays["action"][done],
                arrays["reward"][done],
                not_done,
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
    returns, discounts = n_step_returns(rewards, steps.not_done, gamma, torch.float16)
    assert torch.equal(returns, expected["n_step_return"])
    assert torch.equal(discounts, expected["discount"])
    assert torch.equal(steps.actions, expected["action"])
    assert torch.equal(steps.observations.images, expected["observation"])
    counts = discounts > 0
    assert torch.equal(steps.following.images[counts], expected["next_observation"][counts])


def test_the_stacks_of_an_episode_are_those_the_original_has_acted_on(tmp_path):
    episode = golden_data.load("ellm/pipeline")
    replay = FrameReplay(config_of(), 4, tmp_path, Observations(episode["frame_gray"][:1]))
    not_done = episode["discount"][1:] > 0
    add_episode(
        replay, episode["frame_gray"], episode["action"][1:], episode["reward"][1:], not_done
    )
    length = len(episode["action"]) - 1
    n_starts = replay.episodes.n_starts(length)
    steps = replay.steps([(replay.episodes[0], start) for start in range(n_starts)])
    assert torch.equal(steps.observations.images, episode["stacked"][:n_starts])
    assert torch.equal(steps.following.images, episode["stacked"][3:])
    assert steps.not_done[:-1].all()
    assert not steps.not_done[-1, -1]
    assert torch.equal(steps.actions, episode["action"][1 : n_starts + 1])


def filled_with(folder, lengths, **changes):
    """Return a replay with episodes of frames that show their number and the step."""
    replay = FrameReplay(config_of(**changes), 4, folder, Observations(frames_of(0, 0)))
    for number, length in enumerate(lengths):
        more(replay, number, length)
    return replay


def frames_of(number, n_steps):
    steps = torch.arange(n_steps + 1)
    shown = torch.stack((torch.full_like(steps, number), steps), 1).to(torch.uint8)
    return shown.view(-1, 1, 1, 2)


def more(replay, number, length):
    actions, not_done = torch.arange(length), torch.arange(length) < length - 1
    add_episode(replay, frames_of(number, length), actions, actions / 8, not_done)


@pytest.mark.parametrize("uniform", ["episode", "step"])
def test_episodes_or_steps_are_drawn_uniformly(uniform, tmp_path):
    lengths = [3, 6, 1, 12]
    replay = filled_with(tmp_path, lengths, replay_sampling=uniform, replay_capacity=26)
    more(replay, 4, 3)  # the first leaves
    lengths = [*lengths[1:], 3]
    n_drawn = 20_000
    drawn = replay.episodes.draw(n_drawn, uniform)
    counts = dict.fromkeys(drawn, 0)
    for each in drawn:
        counts[each] += 1
    n_starts = [max(1, length - 2) for length in lengths]
    assert len(counts) == sum(n_starts)
    for (place, start), count in counts.items():
        n_here = max(1, place.length - 2)
        assert start < n_here
        share = 1 / sum(n_starts) if uniform == "step" else 1 / len(lengths) / n_here
        assert abs(count - share * n_drawn) < 6 * (share * n_drawn) ** 0.5


def test_the_oldest_episodes_leave_and_their_files_with_them(tmp_path):
    folder = tmp_path / "replay"
    replay = filled_with(folder, [9] * 100, replay_capacity=40)
    assert replay.n_rows == 40
    assert [replay.episodes[n].begin for n in range(4)] == [960, 970, 980, 990]
    # Nothing is named by a checkpoint: a file leaves with its last row.
    assert [path.name for path in sorted(folder.iterdir())] == ["env0000_000000000768.rows"]
    shown = replay.steps([(replay.episodes[0], 5)]).observations.images
    assert shown.view(4, 2).tolist() == [[96, 2], [96, 3], [96, 4], [96, 5]]


def test_files_that_a_checkpoint_names_stay_until_later_ones_do_not(tmp_path):
    folder = tmp_path / "replay"
    replay = filled_with(folder, [9] * 20, replay_capacity=40)
    states = [replay.state_dict()]
    for number in range(20, 120):
        more(replay, number, 9)
        if number % 25 == 0:
            states.append(replay.state_dict())
        kept = states[-2:]
        for state in kept:  # the last checkpoint and the one before it
            assert (folder / f"env0000_{state['logs'][0]['first'] // 256 * 256:012d}.rows").exists()
    assert not (folder / "env0000_000000000000.rows").exists()


def test_a_file_whose_rows_are_all_given_up_goes_on_growing(tmp_path):
    replay = filled_with(tmp_path, [9] * 3, replay_capacity=30)
    replay.logs[0].forget(30)
    replay.episodes, replay.n_rows = type(replay.episodes)(3), 0
    state = replay.state_dict()
    other = FrameReplay(replay.config, 4, tmp_path, Observations(frames_of(0, 0)))
    other.load_state_dict(state)
    more(other, 3, 9)
    shown = other.steps([(other.episodes[0], 3)]).observations.images
    assert shown.view(4, 2).tolist() == [[3, 0], [3, 1], [3, 2], [3, 3]]


@pytest.mark.parametrize("n_later", [0, 3, 30])
def test_a_replay_goes_on_from_any_state_whatever_was_written_since(n_later, tmp_path):
    replay = filled_with(tmp_path, [9] * 27, replay_capacity=100)
    state = replay.state_dict()
    expected = [replay.steps([(replay.episodes[n], 2)]) for n in range(10)]
    for number in range(n_later):
        more(replay, 200 + number, 7)
    replay.state_dict()
    other = FrameReplay(replay.config, 4, tmp_path, Observations(frames_of(0, 0)))
    other.load_state_dict(state)
    for n, steps in enumerate(expected):
        assert torch.equal(other.steps([(other.episodes[n], 2)]).rewards, steps.rewards)
        found = other.steps([(other.episodes[n], 2)]).observations.images
        assert torch.equal(found, steps.observations.images)
    for number in range(30):
        more(other, number, 9)
    again = other.state_dict()
    third = FrameReplay(replay.config, 4, tmp_path, Observations(frames_of(0, 0)))
    third.load_state_dict(again)
    assert third.state_dict()["logs"] == again["logs"]


def test_a_window_may_stand_in_two_files(tmp_path):
    log = FrameLog(tmp_path, "env", np.dtype([("a", np.int64)]), 5)
    for number in range(13):
        log.append(np.array([(number,)], log.dtype)[0])
    log.flush()
    assert log.read(3, 12)["a"].tolist() == list(range(3, 12))
    assert len(log.paths()) == 3


def test_a_state_that_leads_to_rows_that_are_not_there_is_refused(tmp_path):
    replay = filled_with(tmp_path, [9] * 3)
    for episodes in ([[1, 0, 9]], [[0, 25, 9]], [[0, -1, 3]], [[0, 0, 0]]):
        state = replay.state_dict() | {"episodes": torch.tensor(episodes)}
        with pytest.raises(ValueError, match="replay: an episode that"):
            replay.load_state_dict(state)
    with pytest.raises(ValueError, match="running episode"):
        replay.load_state_dict(replay.state_dict() | {"begins": [31]})


def test_returns_in_float32_are_those_in_float16_but_for_rounding():
    rewards, not_done = torch.rand(20, 3), torch.rand(20, 3) > 0.3
    fine, discounts = n_step_returns(rewards, not_done, 0.9, torch.float32)
    coarse, same = n_step_returns(rewards, not_done, 0.9, torch.float16)
    assert torch.equal(discounts, same)
    assert not torch.equal(fine, coarse.float())
    torch.testing.assert_close(fine, coarse.float(), atol=3 * 2**-11, rtol=2**-10)
    by_hand = rewards[:, 0] + 0.9 * not_done[:, 0] * (
        rewards[:, 1] + 0.9 * not_done[:, 1] * rewards[:, 2]
    )
    torch.testing.assert_close(fine, by_hand)
