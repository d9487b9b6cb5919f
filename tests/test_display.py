import io

import pytest
from rich.console import Console
from rich.live import Live

from sweeps.display import Lines, LiveTable, print_table, summary
from sweeps.estimates import Estimates
from sweeps.grid import make_grid
from sweeps.jobs import Job, State
from sweeps.worker import Ending
from tests.test_progress import write_metrics


@pytest.fixture
def jobs(in_empty_folder):
    """Three runs of 1,000 steps, the first of which has 600 behind it at 10 steps a second."""
    runs = make_grid([], {"n_steps": ["1000"], "seed": ["0", "1", "2"]})
    write_metrics(runs[0].folder, "600,0.1,0.5,10.0\r\n")
    return [Job(run) for run in runs]


def test_the_time_left_is_taken_from_runs_of_the_same_kind(jobs):
    estimates = Estimates()
    assert [estimates.seconds_left(job) for job in jobs] == [40, 100, 100]
    assert estimates.until_all_are_done(jobs, 2) == 120


def test_the_time_left_is_unknown_until_something_has_run(in_empty_folder):
    jobs = [Job(run) for run in make_grid([], {"seed": ["0"]})]
    assert Estimates().until_all_are_done(jobs, 1) is None


def test_the_summary_counts_and_tells_the_time(jobs):
    estimates = Estimates()
    jobs[0].state, jobs[1].state, jobs[2].state = State.RUNNING, State.RUNNING, State.DONE
    assert summary(jobs, estimates) == "3 runs: 1 done, 2 running; time left: 2 min"


def test_elsewhere_than_on_a_terminal_each_change_is_a_line(jobs, capsys):
    lines = Lines(Estimates())
    lines.show(jobs)
    assert capsys.readouterr().out == ""
    jobs[0].state = State.RUNNING
    lines.show(jobs)
    lines.show(jobs)
    assert capsys.readouterr().out.count("\n") == 1
    jobs[0].settle(Ending(-9), retries=1, stopping=False)
    lines.show(jobs)
    printed = capsys.readouterr().out
    assert "waiting" in printed
    assert "600 steps, return 0.500  attempt 1: killed by SIGKILL" in printed


def test_all_runs_are_printed_whole(jobs, capsys):
    jobs[2].note = "[red] is no markup"
    print_table(jobs, Estimates())
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    assert printed[1].split() == [
        str(jobs[0].run.folder),
        *("waiting", "600", "1,000", "0.500", "10", "40", "s"),
    ]
    assert printed[3].rstrip().endswith("[red] is no markup")


def test_a_table_that_is_too_long_shows_the_running_ones(jobs):
    jobs[2].state = State.RUNNING
    console = Console(file=io.StringIO(), force_terminal=True, width=200, height=8)
    with Live(console=console, auto_refresh=False) as live:
        LiveTable(live, Estimates()).show(jobs * 2)
    drawn = console.file.getvalue()
    assert "3 more not shown" in drawn
    assert "seed=2" in drawn
