import csv
import hashlib
import math
import shutil
from contextlib import suppress

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.agents import small_config
from utils.errors import UserError
from utils.loggers import CHANGED, MetricsWriter, are_as_saved, last_step

CONFIG = small_config()


def test_csv_and_tensorboard_carry_the_same_names_and_numbers_that_there_are(tmp_path):
    steps = {16: {"train/loss": math.nan, "time/seconds": 100.0}}
    steps[32] = {"train/loss": 0.25, "time/seconds": 200.0}
    with MetricsWriter(tmp_path, CONFIG) as writer:
        for n, (env_steps, metrics) in enumerate(steps.items(), 2):
            writer.write(env_steps, metrics)
            lines = (tmp_path / "metrics.csv").read_text().splitlines()
            assert len(lines) == n, "every row can be read at once"
    assert lines == ["env_steps,train/loss,time/seconds", "16,,100.0", "32,0.25,200.0"]
    events = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(events.Tags()["scalars"]) == ["time/seconds", "train/loss"]
    for name in ("time/seconds", "train/loss"):
        found = [(event.step, event.value) for event in events.Scalars(name)]
        told = [(step, row[name]) for step, row in steps.items() if not math.isnan(row[name])]
        assert found == told


def write_and_be_interrupted(folder, wandb=False):
    """Write three rows, then be interrupted; return the state saved after the first two."""
    with suppress(KeyboardInterrupt), MetricsWriter(folder, CONFIG, wandb=wandb) as writer:
        for env_steps in (16, 32):
            writer.write(env_steps, {"train/loss": 0.5})
        saved = writer.sync()
        writer.write(48, {"train/loss": 0.5})
        raise KeyboardInterrupt
    return saved


def read_steps(folder):
    """Return the steps in metrics.csv and in TensorBoard."""
    with (folder / "metrics.csv").open() as file:
        steps = [int(row["env_steps"]) for row in csv.DictReader(file)]
    events = EventAccumulator(str(folder)).Reload()
    return steps, [event.step for event in events.Scalars("train/loss")]


@pytest.mark.parametrize("cut", [0, 1, 2, 5])
def test_a_resumed_run_has_no_doubled_rows_and_none_that_a_crash_left_half_written(cut, tmp_path):
    saved = write_and_be_interrupted(tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
    last = EventAccumulator(str(tmp_path)).Reload().Scalars("train/loss")[-1].step
    assert last == (32 if cut else 48)
    for _ in range(2):
        with MetricsWriter(tmp_path, CONFIG, 32, saved) as writer:
            writer.write(48, {"train/loss": 0.25})
            writer.write(64, {"train/loss": 0.25})
    assert read_steps(tmp_path) == ([16, 32, 48, 64], [16, 32, 48, 64])


def test_a_file_removed_while_the_run_goes_on_or_a_folder_in_its_place_is_an_error(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with MetricsWriter(folder, CONFIG) as writer:
        writer.write(16, {"train/loss": 0.5})
        shutil.rmtree(folder)
        with pytest.raises(OSError, match="removed while the run went on"):
            writer.write(32, {"train/loss": 0.5})
    (folder / "metrics.csv").mkdir(parents=True)
    with pytest.raises(UserError, match="not a file"):
        MetricsWriter(folder, CONFIG)


WHOLE = b"env_steps,train/loss\r\n16,0.5\r\n32,0.5\r\n48,0.5\r\n"


def saved_of(rows):
    """Return a checkpoint's state of a file that begins with so many rows."""
    content = b"".join(WHOLE.splitlines(keepends=True)[: rows + 1])
    return {"n_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


DAMAGED = {
    "a digit flipped": WHOLE.replace(b"32,0.5", b"32,0.4"),
    "cut": WHOLE[:35],
    "empty": b"",
    "missing": None,
    "a row lost": WHOLE.replace(b"16,0.5\r\n", b""),
    "a row doubled": WHOLE.replace(b"16,0.5\r\n", b"16,0.25\r\n16,0.5\r\n"),
    "another step": WHOLE.replace(b"16,0.5", b"17,0.5"),
    "no heading": WHOLE.partition(b"\n")[2],
    "no text": bytes(range(128, 256)),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_history_is_kept_and_said(damage, tmp_path, caplog):
    path, earlier = tmp_path / "metrics.csv", tmp_path / "metrics.csv.damaged-1"
    earlier.write_bytes(b"of an earlier time")
    if DAMAGED[damage] is not None:
        path.write_bytes(DAMAGED[damage])
    assert not are_as_saved(tmp_path, saved_of(2))
    with MetricsWriter(tmp_path, CONFIG, 32, saved_of(2)) as writer:
        writer.write(48, {"train/loss": 0.25})
    (line,) = caplog.messages
    n_left = len(path.read_text().splitlines()) - 2
    assert f"{path}: {CHANGED}, {n_left} rows up to step 32 can be read" in line
    assert earlier.read_bytes() == b"of an earlier time"
    copies = [copy for copy in tmp_path.glob("metrics.csv.damaged-*") if copy != earlier]
    assert [copy.read_bytes() for copy in copies] == [DAMAGED[damage]] * bool(DAMAGED[damage])
    assert all(str(copy) in line for copy in copies)
    lines = path.read_text().splitlines()
    assert lines[0] == "env_steps,train/loss"
    assert lines[-1] == "48,0.25"
    assert set(lines[1:-1]) <= {"16,0.5", "17,0.5", "32,0.5", "32,0.4"}


def test_a_history_of_which_nothing_is_changed_is_cut_and_nothing_said(tmp_path, caplog):
    (tmp_path / "metrics.csv").write_bytes(WHOLE + b"64,0.")
    assert are_as_saved(tmp_path, saved_of(2))
    assert last_step(tmp_path) == 64
    with MetricsWriter(tmp_path, CONFIG, 32, saved_of(2)):
        pass
    assert (tmp_path / "metrics.csv").read_bytes() == WHOLE.replace(b"48,0.5\r\n", b"")
    assert caplog.messages == []


def test_a_version_that_logs_more_adds_columns_and_a_new_run_has_its_own(tmp_path, caplog):
    (tmp_path / "metrics.csv").write_bytes(WHOLE)
    with MetricsWriter(tmp_path, CONFIG, 48, saved_of(3)) as writer:
        writer.write(64, {"train/new": 1.0, "train/loss": 0.25})
        writer.write(80, {"train/new": 2.0})
    assert (tmp_path / "metrics.csv").read_text().splitlines() == [
        "env_steps,train/loss,train/new",
        *("16,0.5,", "32,0.5,", "48,0.5,", "64,0.25,1.0", "80,,2.0"),
    ]
    with MetricsWriter(tmp_path, CONFIG) as writer:  # it was killed before its first checkpoint
        writer.write(16, {"train/other": 1.0})
    assert (tmp_path / "metrics.csv").read_text() == "env_steps,train/other\n16,1.0\n"
    assert caplog.messages == []
