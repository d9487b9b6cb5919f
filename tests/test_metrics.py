import csv
import shutil
from contextlib import suppress

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.agents import small_config
from utils.metrics import MetricsWriter


def test_csv_and_tensorboard_carry_the_same_names_and_numbers(tmp_path):
    with MetricsWriter(tmp_path, small_config()) as writer:
        writer.write(16, {"train/loss": 0.5, "time/fps": 100.0})
        writer.write(32, {"train/loss": 0.25, "time/fps": 200.0})

    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["env_steps"] for row in rows] == ["16", "32"]
    events = EventAccumulator(str(tmp_path)).Reload()
    names = events.Tags()["scalars"]
    assert sorted(names) == ["time/fps", "train/loss"]
    for name in names:
        assert [event.step for event in events.Scalars(name)] == [16, 32]
        assert [event.value for event in events.Scalars(name)] == [float(row[name]) for row in rows]


def test_every_row_can_be_read_while_the_run_goes_on(tmp_path):
    with MetricsWriter(tmp_path, small_config()) as writer:
        writer.write(16, {"train/loss": 0.5})
        assert (tmp_path / "metrics.csv").read_text().splitlines() == [
            "env_steps,train/loss",
            "16,0.5",
        ]


def write_and_be_interrupted(folder, config):
    """Write three rows, and do not come to the run's end."""
    with suppress(KeyboardInterrupt), MetricsWriter(folder, config) as writer:
        for env_steps in (16, 32, 48):
            writer.write(env_steps, {"train/loss": 0.5})
        raise KeyboardInterrupt


def read_steps(folder):
    """Return the steps in metrics.csv and in TensorBoard."""
    with (folder / "metrics.csv").open() as file:
        steps = [int(row["env_steps"]) for row in csv.DictReader(file)]
    events = EventAccumulator(str(folder)).Reload()
    return steps, [event.step for event in events.Scalars("train/loss")]


def test_a_resumed_run_has_no_doubled_rows(tmp_path):
    with MetricsWriter(tmp_path, small_config()) as writer:
        for env_steps in (16, 32, 48):
            writer.write(env_steps, {"train/loss": 0.5})
    for _ in range(2):
        with MetricsWriter(tmp_path, small_config(), env_steps=32) as writer:
            writer.write(48, {"train/loss": 0.25})
            writer.write(64, {"train/loss": 0.25})
    assert read_steps(tmp_path) == ([16, 32, 48, 64], [16, 32, 48, 64])


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_what_a_crash_left_half_written_is_readable_and_taken_back(cut, tmp_path):
    write_and_be_interrupted(tmp_path, small_config())
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-cut])
    assert EventAccumulator(str(tmp_path)).Reload().Scalars("train/loss")[-1].step == 32
    with MetricsWriter(tmp_path, small_config(), env_steps=32) as writer:
        writer.write(48, {"train/loss": 0.25})
    assert read_steps(tmp_path) == ([16, 32, 48], [16, 32, 48])


def test_a_file_removed_while_the_run_goes_on_is_an_error(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with MetricsWriter(folder, small_config()) as writer:
        writer.write(16, {"train/loss": 0.5})
        shutil.rmtree(folder)
        with pytest.raises(OSError, match="removed while the run went on"):
            writer.write(32, {"train/loss": 0.5})


def test_what_there_is_nothing_to_say_of_leaves_its_cell_empty(tmp_path):
    with MetricsWriter(tmp_path, small_config()) as writer:
        writer.write(16, {"rollout/return_mean": float("nan"), "time/fps": 1.0})
        writer.write(32, {"rollout/return_mean": 0.5, "time/fps": 1.0})
    assert (tmp_path / "metrics.csv").read_text().splitlines()[1:] == ["16,,1.0", "32,0.5,1.0"]
    (event,) = EventAccumulator(str(tmp_path)).Reload().Scalars("rollout/return_mean")
    assert (event.step, event.value) == (32, 0.5)


def test_a_run_of_an_earlier_version_goes_on_under_the_columns_it_has(tmp_path):
    with MetricsWriter(tmp_path, small_config()) as writer:
        writer.write(16, {"train/loss": 0.5})
    with MetricsWriter(tmp_path, small_config(), env_steps=16) as writer:
        writer.write(32, {"train/entropy": 2.0, "train/loss": 0.25})
    assert (tmp_path / "metrics.csv").read_text().splitlines() == [
        "env_steps,train/loss",
        "16,0.5",
        "32,0.25",
    ]
