"""Replay against the original's rows and batches, and its files."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.observations import Observations
from tests import golden_data
from trainers.sequence_replay import EpisodeSteps, Replay, ReplayFiles
from trainers.settings import WHOLE
from utils.errors import RunError

CONTEXTS = st.sampled_from([WHOLE, 1, 2, 5])
CASES = ("equal", "wrapped", "windows")
BYTES_BESIDE_OBSERVATION = 4 + 4 + 1 + 1 + 4  # action, reward, terminal, end and start weight


def golden(case):
    """Return the arrays of one ring of the original."""
    return golden_data.under(golden_data.load("memory_rl/facts"), f"replay.{case}.")


def episodes_of(arrays):
    """Return the episodes that were stored, in their order."""
    lengths = arrays["episode_lengths"].tolist()
    steps = {name: arrays[name].split(lengths) for name in ("actions", "rewards", "terminals")}
    shown = arrays["observations"].split([length + 1 for length in lengths])
    return [
        EpisodeSteps(
            Observations(vectors=seen), torch.zeros(len(seen), 0), *(s[n] for s in steps.values())
        )
        for n, seen in enumerate(shown)
    ]


def filled(arrays, context_length=None):
    """Return a replay that has stored the original's episodes."""
    if context_length is None:
        context_length = arrays["sampled_seq_len"].item()
    episodes = episodes_of(arrays)
    replay = Replay(arrays["capacity_rows"].item(), context_length, episodes[0])
    for episode in episodes:
        replay.add(episode)
    return replay


def episode(n_steps, number=0):
    """Return an episode that shows its number and the step."""
    seen = torch.stack((torch.full((n_steps + 1,), number), torch.arange(n_steps + 1)), 1)
    actions = torch.arange(n_steps) % 4
    ends = torch.arange(n_steps) == n_steps - 1
    stored_state = torch.full((n_steps + 1, 3), float(number))
    return EpisodeSteps(
        Observations(vectors=seen.float()), stored_state, actions, seen[1:, 1] / 8, ends
    )


def replay_of(lengths, capacity, context_length=WHOLE):
    """Return a replay with episodes of these lengths, numbered in their order."""
    replay = Replay(capacity, context_length, episode(lengths[0]))
    for number, n_steps in enumerate(lengths):
        replay.add(episode(n_steps, number))
    return replay


@pytest.mark.parametrize("case", CASES)
def test_the_rows_and_the_starts_of_sequences_are_the_originals(case):
    arrays = golden(case)
    replay = filled(arrays)
    theirs, ours = golden_data.under(arrays, "rows."), replay.rows
    assert len(replay) == arrays["rows_filled"]
    assert replay.n_written % replay.capacity == arrays["next_row"]
    n_rows = len(replay)  # from the first on, in a ring that is full all of them
    for name, expected in {
        "vectors": theirs["observations"],
        "actions": theirs["actions"].to(ours["actions"].dtype),
        "rewards": theirs["rewards"],
        # The original calls the last row, behind which nothing is ever read, an end as well.
        "terminated": theirs["terminals"] & ~theirs["ends"],
        "starts": theirs["start_weights"] > 0,
    }.items():
        assert torch.equal(ours[name], expected), name
    assert torch.equal(ours["remaining"][:n_rows] == 0, theirs["ends"][:n_rows])
    assert torch.equal(replay.start_rows, arrays["batch.starts"].sort().values)
    probabilities = torch.zeros(replay.capacity, dtype=torch.float64)
    probabilities[replay.start_rows] = 1 / len(replay.start_rows)
    torch.testing.assert_close(probabilities, theirs["start_probabilities"])


def test_a_batch_is_drawn_uniformly_from_all_starts():
    arrays = golden("windows")
    replay = filled(arrays)
    drawn = []
    replay.sequences = drawn.append  # only the request matters
    replay.sample(20_000)
    rows, counts = drawn[0].unique(return_counts=True)
    assert torch.equal(rows, replay.start_rows)
    expected = 20_000 / len(rows)
    assert ((counts - expected).abs() < 6 * expected**0.5).all()


WHOLE_TOO = ("equal", "wrapped")  # the original has no whole episodes of different lengths


@pytest.mark.parametrize(
    ("case", "context_length"), [*((c, None) for c in CASES), *((c, WHOLE) for c in WHOLE_TOO)]
)
def test_the_batches_are_the_originals(case, context_length):
    arrays = golden(case)
    batch = golden_data.under(arrays, "batch.")
    sequences = filled(arrays, context_length).sequences(batch["starts"])
    shape = batch["masks"].shape
    shown = sequences.observations.vectors.unflatten(0, (shape[0] + 1, shape[1]))
    counts = batch["masks"] > 0
    assert torch.equal(sequences.mask, batch["masks"])
    assert torch.equal(shown[:-1], batch["observations"])
    assert torch.equal(shown[1:], batch["next_observations"])
    assert torch.equal(sequences.actions, batch["actions"])
    assert torch.equal(sequences.rewards, batch["rewards"])
    assert torch.equal(sequences.terminated[counts], batch["terminals"][counts].float())
    assert torch.equal(sequences.last_actions[1:], batch["actions"])
    assert (sequences.last_actions[0] == 0).all()
    assert sequences.is_first[0].all()
    assert not sequences.is_first[1:].any()


@pytest.mark.parametrize("kind", [torch.zeros(7, 2), torch.zeros(7, 3, 5, 5).byte()])
def test_a_row_takes_no_more_memory_than_the_originals(kind):
    seen = Observations(**{"vectors" if kind.is_floating_point() else "images": kind})
    steps = torch.zeros(6)
    replay = Replay(1000, WHOLE, EpisodeSteps(seen, torch.zeros(7, 0), steps, steps, steps.bool()))
    ours = sum(row.nbytes for row in replay.rows.values()) / replay.capacity
    assert ours <= 1.1 * (kind[0].nbytes + BYTES_BESIDE_OBSERVATION)


def test_an_episode_longer_than_the_ring_is_one_line():
    replay = replay_of([4], 8)
    replay.add(episode(7))
    with pytest.raises(RunError, match=r"replay_capacity: an episode of 8 steps takes 9 rows"):
        replay.add(episode(8))


def loaded(folder, state, like):
    """Return a fresh replay, loaded from files."""
    replay = Replay(like.capacity, like.sequence_length, episode(4))
    ReplayFiles(folder, 2).load(replay, state)
    return replay


def assert_same(one, other):
    assert one.n_written == other.n_written
    at = torch.arange(one.n_written - len(one), one.n_written) % one.capacity
    for name, row in one.rows.items():
        assert torch.equal(row[at], other.rows[name][at]), name
    torch.manual_seed(0)
    first = one.sample(16)
    torch.manual_seed(0)
    second = other.sample(16)
    assert torch.equal(first.observations.vectors, second.observations.vectors)
    assert torch.equal(first.mask, second.mask)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(10, 40), CONTEXTS)
def test_a_sequence_is_a_part_of_one_episode(lengths, capacity, context_length):
    """Episodes show their numbers and steps, and these end up in no ring but side by side."""
    replay = replay_of(lengths, capacity, context_length)
    if not len(replay.start_rows):
        assert context_length != WHOLE
        return
    sequences, found = replay.sequences(replay.start_rows), []
    shown = sequences.observations.vectors.unflatten(0, (-1, len(replay.start_rows)))
    for column, mask in enumerate(sequences.mask.T.bool()):
        number, first = map(int, shown[0, column])
        last = first + int(mask.sum())
        assert mask[: last - first].all()
        own = episode(lengths[number], number)
        seen = own.observations.vectors[first : last + 1]
        assert torch.equal(shown[: len(seen), column], seen)
        for name in ("actions", "rewards", "terminated"):
            steps = getattr(sequences, name)[: last - first, column]
            assert torch.equal(steps, getattr(own, name)[first:last].to(steps.dtype)), name
        assert torch.equal(
            sequences.stored_state[: len(seen), column], own.stored_state[first : last + 1]
        )
        assert sequences.last_actions[1 : len(seen), column].equal(own.actions[first:last])
        found.append((number, first, last))
    assert len(set(found)) == len(found)
    rows = torch.tensor(lengths[::-1]).add(1).cumsum(0)
    held = [n for n, end in zip(range(len(lengths))[::-1], rows, strict=True) if end <= capacity]
    if context_length == WHOLE:
        assert sorted(found) == sorted((n, 0, lengths[n]) for n in held)
        assert len(sequences.mask) == max(lengths[n] for n in held)
    else:
        assert {n for n in held if lengths[n] >= context_length} <= {n for n, _, _ in found}


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=25), CONTEXTS)
def test_a_ring_is_saved_and_loaded_at_any_time(steps, context_length):
    replay = replay_of([9], 20, context_length)
    with tempfile.TemporaryDirectory() as place:
        files, named = ReplayFiles(folder := Path(place), 2), []
        (folder / "notes.txt").write_text("mine")
        for number, (n_steps, is_saved) in enumerate(steps, 1):
            replay.add(episode(n_steps, number))
            if is_saved:
                state = files.save(replay)
                assert_same(replay, loaded(folder, state, replay))
                named.append(state["files"].keys())
        kept = {path.name for path in folder.iterdir()}
        assert kept == set().union(["notes.txt"], *named[-3:])


@given(st.integers(0, 4), st.integers(-(2**31), 2**31 - 1) | st.none())
def test_rows_that_are_no_episodes_are_refused(row, remaining):
    replay = replay_of([4], 20)
    if remaining is None:  # the only start is gone, or one stands behind the end
        replay.rows["starts"][4 * (row % 2)] ^= True
    elif remaining != 4 - row:
        replay.rows["remaining"][row] = remaining
    else:
        return
    with tempfile.TemporaryDirectory() as place:
        state = ReplayFiles(Path(place), 2).save(replay)
        with pytest.raises(ValueError, match="replay: the rows are no whole episodes"):
            loaded(Path(place), state, replay)


def test_files_of_other_episodes_or_of_too_few_are_refused(tmp_path):
    replay = replay_of([4], 20)
    state = ReplayFiles(tmp_path, 2).save(replay)
    other = Replay(20, WHOLE, episode(4)._replace(stored_state=torch.zeros(5, 7)))
    with pytest.raises(ValueError, match="context"):
        ReplayFiles(tmp_path, 2).load(other, state)
    with pytest.raises(ValueError, match="5 rows are saved, and 9 were there"):
        loaded(tmp_path, state | {"n_written": 9}, replay)
    with pytest.raises(ValueError, match=r"of shape \(5, 2\), not .*\(4, 2\)"):
        loaded(tmp_path, state, replay_of([2], 4))


def resident_bytes():
    """Return the resident memory of this process, as Linux counts it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_ring_takes_memory_only_where_it_is_written():
    big = Observations(images=torch.ones(3, 3, 56, 56, dtype=torch.uint8))
    steps = torch.zeros(2)
    one = EpisodeSteps(big, torch.zeros(3, 0), steps.long(), steps, steps.bool())
    before = resident_bytes()
    replay = Replay(400_000, WHOLE, one)
    replay.add(one)
    assert replay.rows["images"].numel() > 3e9
    assert resident_bytes() - before < 100e6
