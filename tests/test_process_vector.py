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

FAULTY = """
import functools, gymnasium, numpy
from envs.episodes import one_process_each
from utils.errors import EnvFault
class Faulty(gymnasium.Wrapper):
    def step(self, action):
        raise EnvFault("it is broken")
def make(kind):
    return kind(gymnasium.make("CartPole-v1"))
if __name__ == "__main__":
    kinds = Faulty, gymnasium.Wrapper
    env = one_process_each([functools.partial(make, kind) for kind in kinds])
    env.reset(seed=0)
    try:
        env.step(numpy.zeros(2, int))
    except EnvFault as error:
        print(error, any(process.is_alive() for process in env.processes))
"""


@pytest.mark.slow
def test_a_fault_of_one_environment_ends_the_others_without_a_word():
    done = subprocess.run(
        [sys.executable, "-c", FAULTY],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("it is broken False\n", "")


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


@pytest.mark.slow
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
