import pytest

from analysis.run_data import Progress, read_progress

HEADER = "env_steps,train/loss,rollout/return_mean,time/steps_per_second\r\n"


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
