import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envs.episodes import one_process_each
from utils.errors import RunError

TASK = functools.partial(gymnasium.make, "CartPole-v1")

KILLED = """
import functools, gymnasium, multiprocessing, os, signal
from envs.episodes import one_process_each
if __name__ == "__main__":
    env = one_process_each([functools.partial(gymnasium.make, "CartPole-v1")] * 2)
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_the_processes_end_with_a_killed_parent():
    parent = subprocess.run(
        [sys.executable, "-c", KILLED],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    children = parent.stdout.split()
    assert len(children) == 2
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{int(child)}").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_signals_are_left_to_the_trainer_and_the_death_of_a_process_is_one_line():
    assert isinstance(one_process_each([TASK]), SyncVectorEnv)
    env = one_process_each([TASK] * 2)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    env.reset(seed=0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        for process in env.processes:
            os.kill(process.pid, number)
    env.step(np.zeros(2, int))
    env.processes[1].kill()
    env.processes[1].join()
    with pytest.raises(RunError, match=r"environment 1 \(exit code -9\) died"):
        env.step(np.zeros(2, int))
    assert not any(process.is_alive() for process in env.processes)
    env.close()
