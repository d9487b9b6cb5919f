import pytest

from sweeps.grid import make_grid
from sweeps.jobs import Job, Jobs, State, print_table, show, summary
from tests.test_run_data import write_metrics


@pytest.fixture
def jobs(in_empty_folder):
    """Three runs of 1,000 steps, the first of which has 600 behind it."""
    runs = make_grid([], {"n_steps": ["1000"], "seed": ["0", "1", "2"]})
    write_metrics(runs[0].folder, "600,0.1,0.5,10.0\r\n")
    return [Job(run) for run in runs]


def test_the_summary_counts(jobs):
    jobs[0].state, jobs[1].state, jobs[2].state = State.RUNNING, State.RUNNING, State.DONE
    assert summary(jobs, 2) == "5 runs: 1 done, 2 running, 2 to come"


def test_each_change_is_a_line(jobs, capsys):
    def seconds():
        yield jobs
        assert capsys.readouterr().out == ""
        jobs[0].state = State.RUNNING
        yield jobs
        yield jobs
        assert capsys.readouterr().out.count("\n") == 1
        jobs[0].settle("killed by SIGKILL", retries=1, stopping=False)
        yield jobs

    show(Jobs(jobs), seconds())
    printed = capsys.readouterr().out
    assert "waiting" in printed
    assert "600 steps, return 0.500  attempt 1: killed by SIGKILL" in printed


def test_all_runs_are_printed_whole(jobs, capsys):
    jobs[2].note = "a failure \x1b[31m"
    print_table(jobs)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    row = [str(jobs[0].run.folder), *("waiting", "600", "1,000", "0.500", "10")]
    assert printed[1].split() == row
    assert "a failure" in printed[3]
    assert "\x1b" not in printed[3]
