import pytest

from sweeps.grid import make_grid
from sweeps.jobs import Job, Jobs, State, show, summary, told
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
    assert "600 of 1,000 steps, return 0.500, 10 steps/s  attempt 1: killed by SIG" in printed


def test_a_run_is_a_line(jobs):
    jobs[2].note = "a failure \x1b[31m"
    assert told(jobs[0]) == (
        f"waiting {jobs[0].run.folder}  600 of 1,000 steps, return 0.500, 10 steps/s"
    )
    assert "a failure" in told(jobs[2])
    assert "\x1b" not in told(jobs[2])
