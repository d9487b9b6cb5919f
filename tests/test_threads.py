"""How many threads a run uses, and how they wait."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models import build_agent
from tests.agents import small_config, spaces
from tests.runs import same
from utils.errors import COMMANDS
from utils.starting import let_waiting_threads_sleep, number_of_threads

ROOT = Path(__file__).parent.parent
MODULES = ("analysis", "benchmarks", "benchmarks.training", "benchmarks.gpu")
ON_IMPORT = """
import os, runpy, sys
class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Spy())
"""


@pytest.fixture
def free(monkeypatch):
    """Let PyTorch begin with four threads, and put one back; the fixture to change more with."""
    torch.set_num_threads(4)
    yield monkeypatch
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("given", "environment", "number"),
    [(None, None, 1), (None, "3", 3), (2, "3", 2), (None, "3,2", 1), (None, "0", 1)],
)
def test_a_run_has_one_thread_unless_the_user_says_otherwise(given, environment, number, free):
    free.delenv("OMP_NUM_THREADS", raising=False)
    if environment:
        free.setenv("OMP_NUM_THREADS", environment)
    assert number_of_threads(given) == number


def test_a_seed_gives_the_same_weights_with_any_number_of_threads(free):
    drawn = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        torch.manual_seed(0)
        drawn.append(build_agent(small_config(model="CNN-PPO"), *spaces((3, 56, 56))).state_dict())
        assert torch.get_num_threads() == n_threads
    assert same(*drawn)


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(given, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    let_waiting_threads_sleep()
    assert os.environ["OMP_WAIT_POLICY"] == (given or "PASSIVE")


@pytest.mark.slow
@pytest.mark.parametrize("program", [*COMMANDS, *MODULES])
def test_how_threads_wait_is_settled_before_pytorch_is_imported(program):
    run = f"runpy.run_path({program!r}, run_name='__main__')"
    if program in MODULES:
        run = f"runpy.run_module({program!r}, run_name='__main__', alter_sys=True)"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    finished = subprocess.run(
        [sys.executable, "-c", ON_IMPORT + run],
        **{"cwd": ROOT, "env": environment | {"PYTHONPATH": "."}},
        **{"capture_output": True, "text": True},
    )
    # A mistake of the command, such as a missing FOLDER, is told without PyTorch.
    is_told_before = program in ("plot.py", "eval.py", "analysis")
    assert finished.stdout == ("" if is_told_before else "PASSIVE\n"), finished.stderr
    assert "Traceback" not in finished.stderr
