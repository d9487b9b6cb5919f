"""Attempts as Ray tasks, of a small program instead of main.py."""

import os
import time

import pytest

from sweeps.cluster import ray_pool
from tests.test_worker import WAITING_RUN, order, wait_for
from utils.errors import UserError

PATIENCE = 60.0


def endings(pool, n):
    """Return the first n attempts that end, by job."""
    found, end = {}, time.monotonic() + PATIENCE
    while len(found) < n and time.monotonic() < end:
        found |= pool.ended(1.0)
    return found


def test_attempts_are_carried_out_and_asked_to_save(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    with ray_pool(None, cpus=1, gpus=0) as pool:
        pool.submit("quick", order(tmp_path, "print('bye')"))
        assert str(endings(pool, 1)["quick"]) == "bye"
        pool.submit("running", order(tmp_path, WAITING_RUN))
        assert wait_for(tmp_path / "ready")
        pool.submit("waiting", order(tmp_path, WAITING_RUN))
        (tmp_path / "stop").touch()
        assert endings(pool, 2).keys() == {"running", "waiting"}
        assert (tmp_path / "saved").exists()


def test_a_cluster_that_is_not_there_gets_one_line():
    with pytest.raises(UserError, match="Ray cannot be reached"), ray_pool("auto", 1, 0):
        pass
