import pytest

from runs.run_data import Progress, read_progress
from sweeps.grid import make_grid
from sweeps.progress import duration, measured_speed, shared_out

HEADER = "env_steps,train/loss,rollout/return_mean,time/fps\r\n"


def write_metrics(folder, *rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.csv").write_bytes((HEADER + "".join(rows)).encode())


def test_the_last_whole_row_counts(tmp_path):
    write_metrics(tmp_path, "16,0.1,0.5,100.0\r\n", "32,0.1,0.75,200.0\r\n", "48,0.1,0.")
    assert read_progress(tmp_path) == Progress(32, 0.75, 200.0)


def test_before_an_episode_has_ended_a_run_has_steps_and_a_speed_and_no_return(tmp_path):
    write_metrics(tmp_path, "16,0.1,,100.0\r\n")
    assert read_progress(tmp_path) == Progress(16, None, 100.0)


def test_long_tables_are_read_from_their_end(tmp_path):
    write_metrics(tmp_path, *(f"{n},0.1,0.5,{n}.0\r\n" for n in range(1, 3000)))
    assert read_progress(tmp_path) == Progress(2999, 0.5, 2999.0)


@pytest.mark.parametrize("rows", [(), ("16,0.1,0.5",), ("a,b,c,d\r\n",), ("16\r\n",)])
def test_without_a_good_row_nothing_is_known(tmp_path, rows):
    write_metrics(tmp_path, *rows)
    assert read_progress(tmp_path) == Progress()
    assert read_progress(tmp_path / "nowhere") == Progress()


def test_an_agents_speed_is_the_median_of_its_earlier_runs(in_empty_folder):
    runs = make_grid([], {"seed": ["0", "1", "2"]})
    assert measured_speed(runs[0].config) is None
    for run, speed in zip(runs, (100, 300, 200), strict=True):
        write_metrics(run.folder, f"16,0.1,0.5,{speed}.0\r\n")
    assert measured_speed(runs[0].config) == 200


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "unknown"), (7.4, "7 s"), (90, "2 min"), (7500, "2 h 05 min"), (3599, "1 h 00 min")],
)
def test_a_duration_is_put_in_words(seconds, text):
    assert duration(seconds) == text


def test_work_is_shared_out_but_no_run_is_split():
    assert shared_out([10, 10, 10, 10], 2) == 20
    assert shared_out([30, 10], 4) == 30
    assert shared_out([10, None], 2) is None
    assert shared_out([], 0) == 0
