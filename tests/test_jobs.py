import dataclasses
from pathlib import Path

import pytest

from sweeps.grid import make_grid
from sweeps.jobs import Job, Jobs, State, run_jobs, show, summary, told
from tests.test_run_data import write_metrics
from utils.run_folder import create_run_folder, mark_finished
from utils.settings import load_config

KILLED = "killed by SIGKILL"


class FakePool:
    """Carries out one attempt after the other: the endings of a plan, then success."""

    n_places = 1

    def __init__(self, plan=()):
        self.plan = dict(plan)
        self.queue, self.attempts = [], []
        self.stopped = False

    def submit(self, job):
        assert load_config(Path(f"{job.desk}.json")) == job.run.config
        self.queue.append(job)

    def ended(self, seconds):
        job = self.queue.pop(0)
        if self.stopped:
            return [(job, "saved")]
        self.attempts.append(job.run.config.seed)
        with job.log.open("a") as log:
            log.write("an attempt\n")
        if not job.run.folder.exists():
            create_run_folder(job.run.config, job.run.run_id, [])
        endings = self.plan.get(job.run.config.seed)
        if endings:
            return [(job, endings.pop(0))]
        mark_finished(job.run.folder)
        return [(job, "bye")]

    def stop(self):
        self.stopped = True


@pytest.fixture
def runs(in_empty_folder):
    return make_grid([], {"seed": ["0", "1", "2"]})


def carried_out(runs, pool, retries=2, stop_after=None):
    jobs = [Job(run) for run in runs]
    rounds = []
    for _ in run_jobs(
        Jobs(jobs), pool, retries, lambda: stop_after is not None and len(rounds) >= stop_after
    ):
        rounds.append([job.state for job in jobs])
    return jobs


def test_a_killed_run_is_tried_again(runs):
    pool = FakePool({1: [KILLED, "disk full"]})
    jobs = carried_out(runs, pool)
    assert [job.state for job in jobs] == [State.DONE] * 3
    assert pool.attempts == [0, 1, 2, 1, 1]
    assert (jobs[1].n_attempts, jobs[1].note) == (3, "")


def test_a_sweep_asked_to_stop_tries_nothing_again(runs):
    jobs = carried_out(runs, FakePool(), stop_after=1)
    assert [job.state for job in jobs] == [State.DONE, State.STOPPED, State.STOPPED]


def test_a_run_whose_attempt_ends_well_but_is_not_complete_is_not_done(runs):
    pool = FakePool({0: ["nothing to do"] * 9})
    assert carried_out(runs, pool)[0].state == State.FAILED


def test_a_job_runs_once_its_attempt_has_printed_something(runs):
    job = Job(runs[0])
    job.log.parent.mkdir(parents=True)
    job.log.write_text("of an earlier attempt\n")
    job.prepare()
    job.refresh()
    assert job.state == State.WAITING
    job.log.write_text("of an earlier attempt\nof this one\n")
    job.refresh()
    assert job.state == State.RUNNING


def test_no_two_runs_share_a_file(runs):
    other = dataclasses.replace(runs[0].config, model="CNN-PPO")
    jobs = [Job(run) for run in (*runs, dataclasses.replace(runs[0], config=other))]
    assert len({job.desk for job in jobs}) == 4


@pytest.fixture
def three(in_empty_folder):
    """Three runs of 1,000 steps, the first of which has 600 behind it."""
    runs = make_grid([], {"n_steps": ["1000"], "seed": ["0", "1", "2"]})
    write_metrics(runs[0].folder, "600,0.1,0.5,10.0\r\n")
    return [Job(run) for run in runs]


def test_the_summary_counts(three):
    three[0].state, three[1].state, three[2].state = State.RUNNING, State.RUNNING, State.DONE
    assert summary(three, 2) == "5 runs: 1 done, 2 running, 2 to come"


def test_each_change_is_a_line(three, capsys):
    def seconds():
        yield three
        assert capsys.readouterr().out == ""
        three[0].state = State.RUNNING
        yield three
        yield three
        assert capsys.readouterr().out.count("\n") == 1
        three[0].settle("killed by SIGKILL", retries=1, stopping=False)
        yield three

    show(Jobs(three), seconds())
    printed = capsys.readouterr().out
    assert "waiting" in printed
    assert "600 of 1,000 steps, return 0.500, 10 steps/s  attempt 1: killed by SIG" in printed


def test_a_run_is_a_line(three):
    three[2].note = "a failure \x1b[31m"
    assert told(three[0]) == (
        f"waiting {three[0].run.folder}  600 of 1,000 steps, return 0.500, 10 steps/s"
    )
    assert "a failure" in told(three[2])
    assert "\x1b" not in told(three[2])
