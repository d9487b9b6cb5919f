"""Replay of frames against the original's samples, and its files."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.observations import Observations
from tests import golden_data
from trainers import frame_replay
from trainers.frame_replay import FrameReplay
from trainers.losses import n_step_returns
from utils.given_settings import load_config

CASES = ("n3", "n1", "n5", "n3_unclipped")


def config_of(**changes):
    config = load_config(None, ["model=ELLM", "algorithm=EllmDQN"])
    return config.replace(**changes)


def add_episode(replay, frames, actions, rewards, discounts):
    """Let the one environment have an episode: frames [L+1, ...], all else [L]."""
    for step in range(len(actions)):
        each = (value[step : step + 1] for value in (actions, rewards.float(), discounts <= 0))
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
            rows, done = (slice(n, first + length + 1) for n in (first, first + 1))
            # Theirs belong to the step before the frame.
            told = (arrays[name][done] for name in ("action", "reward", "discount"))
            add_episode(replay, arrays["frames"][rows], *told)
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
    told = (episode[name][1:] for name in ("action", "reward", "discount"))
    add_episode(replay, episode["frame_gray"], *told)
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


THEN = st.sampled_from(["go on", "go on", "save", "resume", "resume the one before"])


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 12), THEN), min_size=1, max_size=40))
def test_the_newest_episodes_are_there_whatever_is_saved_and_resumed(steps):
    capacity, kept, saved = 40, [], []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_replay, "LEAST_ROWS", 7)  # of a file
        replay = filled_with(Path(folder), [], replay_capacity=capacity)
        for number, (length, then) in enumerate(steps):
            more(replay, number, length)
            kept.append((number, length))
            while sum(length + 1 for _, length in kept) > capacity:
                kept.pop(0)
            if then == "save":  # the last checkpoint and the one before it can be gone on from
                saved = [*saved[-1:], (replay.state_dict(), tuple(kept))]
            elif then != "go on" and saved:
                state, before = saved[-1 if then == "resume" else 0]
                kept = list(before)
                replay = FrameReplay(replay.config, 4, Path(folder), Observations(frames_of(0, 0)))
                replay.load_state_dict(state)
                assert replay.state_dict()["logs"] == state["logs"]
            found = []
            for place in replay.episodes:
                start = replay.episodes.n_starts(place.length) - 1
                stack = replay.steps([(place, start)]).observations.images.view(4, 2).tolist()
                assert [step for _, step in stack] == [max(0, start - n) for n in (3, 2, 1, 0)]
                found.append((stack[0][0], place.length))
            assert found == kept


def test_a_resumed_replay_keeps_the_files_of_the_checkpoint_before(tmp_path, monkeypatch):
    monkeypatch.setattr(frame_replay, "LEAST_ROWS", 7)
    replay = filled_with(tmp_path, [9] * 3, replay_capacity=40)
    before = replay.state_dict()
    for number in range(3, 12):
        more(replay, number, 9)
    now = replay.state_dict()
    resumed = FrameReplay(replay.config, 4, tmp_path, Observations(frames_of(0, 0)))
    resumed.load_state_dict(now)
    resumed.state_dict()
    assert before["files"].keys() - now["files"].keys()
    assert all((tmp_path / name).is_file() for name in before["files"])


def test_a_state_that_leads_to_rows_that_are_not_there_is_refused(tmp_path):
    replay = filled_with(tmp_path, [9] * 3)
    for episodes in ([[1, 0, 9]], [[0, 25, 9]], [[0, -1, 3]], [[0, 0, 0]]):
        state = replay.state_dict() | {"episodes": torch.tensor(episodes)}
        with pytest.raises(ValueError, match="replay: an episode that"):
            replay.load_state_dict(state)
    with pytest.raises(ValueError, match="running episode"):
        replay.load_state_dict(replay.state_dict() | {"begins": [31]})
