"""Attempts as Ray tasks, of a small program instead of main.py."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sweeps import jobs
from sweeps.jobs import ray_pool
from tests.test_worker import WAITING_RUN, wait_for
from utils.errors import UserError

PATIENCE = 60.0


def job(name):
    """Return as much of a job as a pool needs."""
    desk = jobs.DESK / name
    return SimpleNamespace(run=SimpleNamespace(folder=Path("runs", name)), desk=desk)


def endings(pool, n):
    """Return how the first n attempts that end do so, by their run's name."""
    found, end = {}, time.monotonic() + PATIENCE
    while len(found) < n and time.monotonic() < end:
        found |= {job.desk.name: ending for job, ending in pool.ended(1.0)}
    return found


def test_attempts_are_carried_out_and_asked_to_save(in_empty_folder, monkeypatch):
    program = in_empty_folder / "program.py"
    monkeypatch.setattr(jobs, "PROGRAM", program)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    jobs.DESK.mkdir(parents=True)
    with ray_pool(None, cpus=1, gpus=0) as pool:
        names = "['OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES']"
        program.write_text(f"import os; print('has', *map(repr, map(os.environ.get, {names})))")
        pool.submit(job("quick"))
        assert endings(pool, 1) == {"quick": "has '1' ''"}
        program.write_text(WAITING_RUN)
        pool.submit(job("running"))
        assert wait_for(Path("ready"))
        pool.submit(job("waiting"))
        pool.stop()
        assert endings(pool, 2).keys() == {"running", "waiting"}
        assert Path("saved").exists()
    assert not list(jobs.DESK.glob("stop-*"))


def test_a_cluster_that_is_not_there_gets_one_line():
    with pytest.raises(UserError, match="Ray cannot be reached"), ray_pool("auto", 1, 0):
        pass
