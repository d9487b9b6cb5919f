"""Replay against the original's rows and batches, and its files."""

import pytest
import torch

from models.observations import Observations
from tests import golden_data
from tests.robustness.memory_growth import resident_bytes
from trainers.sequence_replay import WHOLE, EpisodeSteps, Replay, ReplayFiles
from utils.errors import RunError

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
    context = torch.full((n_steps + 1, 3), float(number))
    return EpisodeSteps(Observations(vectors=seen.float()), context, actions, seen[1:, 1] / 8, ends)


def replay_of(lengths, capacity, context_length=WHOLE):
    """Return a replay with episodes of these lengths, numbered in their order."""
    replay = Replay(capacity, context_length, episode(lengths[0]))
    for number, n_steps in enumerate(lengths):
        replay.add(episode(n_steps, number))
    return replay


@pytest.mark.parametrize("case", CASES)
def test_the_rows_are_the_originals(case):
    arrays = golden(case)
    replay = filled(arrays)
    theirs, ours = golden_data.under(arrays, "rows."), replay.rows
    assert len(replay) == arrays["rows_filled"]
    assert replay.n_written % replay.capacity == arrays["next_row"]
    n_rows = len(replay)  # from the first on, in a ring that is full all of them
    assert torch.equal(ours["vectors"], theirs["observations"])
    assert torch.equal(ours["actions"].long(), theirs["actions"])
    assert torch.equal(ours["rewards"], theirs["rewards"])
    assert torch.equal(ours["remaining"][:n_rows] == 0, theirs["ends"][:n_rows])
    # The original calls the last row, behind which nothing is ever read, an end as well.
    assert torch.equal(ours["terminated"], theirs["terminals"] & ~theirs["ends"])


@pytest.mark.parametrize("case", CASES)
def test_sequences_start_where_the_originals_do_and_as_often(case):
    arrays = golden(case)
    replay, theirs = filled(arrays), golden_data.under(arrays, "rows.")
    assert torch.equal(replay.rows["starts"], theirs["start_weights"] > 0)
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


def test_whole_episodes_are_as_long_as_the_longest_among_them():
    replay = replay_of([3, 7, 5], 100)
    assert replay.start_rows.tolist() == [0, 4, 12]
    for rows, lengths in (([0, 4, 12], [3, 7, 5]), ([0, 12], [3, 5])):
        sequences = replay.sequences(torch.tensor(rows))
        assert sequences.mask.sum(0).tolist() == lengths
        assert len(sequences.mask) == max(lengths)
        shown = sequences.observations.vectors.unflatten(0, (max(lengths) + 1, len(lengths)))
        for column, n_steps in enumerate(lengths):
            number = rows[column] // 4 if rows[column] < 12 else 2
            expected = episode(n_steps, number)
            own = slice(n_steps + 1)
            assert torch.equal(shown[own, column], expected.observations.vectors)
            assert torch.equal(sequences.context[own, column], expected.context)
            assert torch.equal(sequences.terminated[:n_steps, column], expected.terminated.float())


def test_an_episode_that_has_lost_its_beginning_is_drawn_as_windows_only():
    lengths = [6, 6, 6]  # 21 rows in a ring of 18: three rows of the first are gone
    assert replay_of(lengths, 18).start_rows.tolist() == [7, 14]
    windows = replay_of(lengths, 18, context_length=2)
    assert windows.start_rows.tolist() == [0, 3, 4, *range(7, 12), *range(14, 18)]
    assert (windows.sequences(windows.start_rows).mask == 1).all()


@pytest.mark.parametrize("shape", [(2,), (3, 5, 5)])
def test_a_row_takes_no_more_memory_than_the_originals(shape):
    kind = torch.zeros(7, *shape, dtype=torch.float32 if len(shape) == 1 else torch.uint8)
    seen = Observations(vectors=kind) if len(shape) == 1 else Observations(images=kind)
    steps = torch.zeros(6)
    replay = Replay(1000, WHOLE, EpisodeSteps(seen, torch.zeros(7, 0), steps, steps, steps.bool()))
    ours = sum(row.nbytes for row in replay.rows.values()) / replay.capacity
    theirs = kind[0].nbytes + BYTES_BESIDE_OBSERVATION
    assert ours <= 1.1 * theirs


def test_an_episode_longer_than_the_ring_is_one_line():
    replay = replay_of([4], 8)
    replay.add(episode(7))
    with pytest.raises(RunError, match=r"replay_capacity: an episode of 8 steps takes 9 rows"):
        replay.add(episode(8))


def loaded(folder, state, like):
    """Return a fresh replay, loaded from files."""
    replay = Replay(like.capacity, like.context_length, episode(4))
    ReplayFiles(folder).load(replay, state)
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


@pytest.mark.parametrize("context_length", [WHOLE, 3])
def test_a_ring_that_has_wrapped_is_saved_and_loaded_at_any_time(tmp_path, context_length):
    replay, files = replay_of([4], 20, context_length), ReplayFiles(tmp_path)
    for number in range(1, 15):
        replay.add(episode(3 + number % 4, number))
        if number % 3 == 0:
            assert_same(replay, loaded(tmp_path, files.save(replay), replay))
    assert replay.n_written > 3 * replay.capacity


def test_a_ring_written_several_times_over_between_two_savings_is_saved_once(tmp_path):
    replay, files = replay_of([4], 20), ReplayFiles(tmp_path)
    files.save(replay)
    for number in range(1, 15):
        replay.add(episode(6, number))
    state = files.save(replay)
    assert list(state["files"]) == ["rows_000000000083.pt"]
    assert_same(replay, loaded(tmp_path, state, replay))


def test_files_that_the_last_states_do_not_name_leave(tmp_path):
    replay, files = replay_of([4], 20), ReplayFiles(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    states = []
    for number in range(1, 30):
        states.append(files.save(replay)["files"].keys())
        replay.add(episode(4, number))
    named = set().union(*states[-3:])
    assert {path.name for path in tmp_path.iterdir()} == {*named, "notes.txt"}


HOSTILE_ROWS = {
    "an end far away": ("remaining", 1, 2**31 - 1),
    "an end that was before": ("remaining", 1, -3),
    "no end": ("remaining", 4, 1),
    "a start behind the end": ("starts", 4, True),
    "no start": ("starts", 0, False),
}


@pytest.mark.parametrize("name", HOSTILE_ROWS)
def test_rows_that_are_no_episodes_are_refused(tmp_path, name):
    replay = replay_of([4], 20)
    kind, row, value = HOSTILE_ROWS[name]
    replay.rows[kind][row] = value
    state = ReplayFiles(tmp_path).save(replay)
    with pytest.raises(ValueError, match="replay: the rows are no whole episodes"):
        loaded(tmp_path, state, replay)


def test_files_of_other_episodes_or_of_too_few_are_refused(tmp_path):
    replay = replay_of([4], 20)
    state = ReplayFiles(tmp_path).save(replay)
    other = Replay(20, WHOLE, episode(4)._replace(context=torch.zeros(5, 7)))
    with pytest.raises(ValueError, match="context"):
        ReplayFiles(tmp_path).load(other, state)
    with pytest.raises(ValueError, match="5 rows are saved, and 9 were there"):
        loaded(tmp_path, state | {"n_written": 9}, replay)
    with pytest.raises(ValueError, match=r"of shape \(5, 2\), not .*\(4, 2\)"):
        loaded(tmp_path, state, replay_of([2], 4))


def test_a_ring_takes_memory_only_where_it_is_written():
    big = Observations(images=torch.ones(3, 3, 56, 56, dtype=torch.uint8))
    steps = torch.zeros(2)
    one = EpisodeSteps(big, torch.zeros(3, 0), steps.long(), steps, steps.bool())
    before = resident_bytes()
    replay = Replay(400_000, WHOLE, one)
    replay.add(one)
    assert replay.rows["images"].numel() > 3e9
    assert resident_bytes() - before < 100e6
