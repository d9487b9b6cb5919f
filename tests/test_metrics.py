import csv

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from utils.metrics import MetricsWriter


def test_csv_and_tensorboard_carry_the_same_names_and_numbers(tmp_path):
    with MetricsWriter(tmp_path) as writer:
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
    with MetricsWriter(tmp_path) as writer:
        writer.write(16, {"train/loss": 0.5})
        assert (tmp_path / "metrics.csv").read_text().splitlines() == [
            "env_steps,train/loss",
            "16,0.5",
        ]
