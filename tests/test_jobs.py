import dataclasses
from pathlib import Path

import pytest

from sweeps.grid import make_grid
from sweeps.jobs import Job, Jobs, State, run_jobs, show, summary
from tests.test_run_data import write_metrics
from utils.given_settings import load_config
from utils.run_folder import create_run_folder, mark_finished

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


def carried_out(runs, pool, stop_after=99):
    jobs, rounds = [Job(run) for run in runs], []
    for _ in run_jobs(Jobs(jobs), pool, 2, lambda: len(rounds) >= stop_after):
        rounds.append(1)
    return jobs


DONE, FAILED, STOPPED = State.DONE, State.FAILED, State.STOPPED


@pytest.mark.parametrize(
    ("plan", "stop_after", "states", "attempts"),
    [
        ({1: [KILLED, "disk full"]}, 99, [DONE] * 3, [0, 1, 2, 1, 1]),
        # An attempt that ends well, but without a complete run.
        ({0: ["nothing to do"] * 9}, 99, [FAILED, DONE, DONE], [0, 1, 2, 0, 0]),
        ({0: [KILLED]}, 1, [STOPPED] * 3, [0]),
    ],
)
def test_a_run_is_tried_until_it_is_complete_or_all_stops(plan, stop_after, states, attempts, runs):
    pool = FakePool(plan)
    jobs = carried_out(runs, pool, stop_after)
    assert [job.state for job in jobs] == states
    assert pool.attempts == attempts
    if DONE in states:
        assert [job.n_attempts for job in jobs] == [attempts.count(n) for n in range(3)]


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
    other = runs[0].config.replace(model="CNN-PPO")
    jobs = [Job(run) for run in (*runs, dataclasses.replace(runs[0], config=other))]
    assert len({job.desk for job in jobs}) == 4


@pytest.fixture
def three(in_empty_folder):
    """Three runs of 1,000 steps, the first of which has 600 behind it."""
    runs = make_grid([], {"n_steps": ["1000"], "seed": ["0", "1", "2"]})
    write_metrics(runs[0].folder, "600,0.1,0.5,10.0\r\n")
    return [Job(run) for run in runs]


def test_each_change_is_a_line(three, capsys):
    def seconds():
        yield three
        assert capsys.readouterr().out == ""
        three[0].state = State.RUNNING
        yield three
        yield three
        assert capsys.readouterr().out.count("\n") == 1
        assert summary(three, 2) == "5 runs: 2 waiting, 1 running, 2 to come"
        three[0].settle("killed by SIGKILL \x1b[31m", retries=1, stopping=False)
        yield three

    show(Jobs(three), seconds())
    printed = capsys.readouterr().out
    assert "waiting" in printed
    assert "600 of 1,000 steps, return 0.500, 10 steps/s  attempt 1: killed by SIG" in printed
    assert "\x1b" not in printed
