import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("agent", ["PPO HELM", "DQN GPT"])
def test_a_few_runs_broken_in_every_way_end_as_if_nothing_had_been(agent):
    command = [sys.executable, "-m", "tests.robustness.faults", "--rounds", "1", "--agents", agent]
    command += ["--faults", "killed", "killed in a checkpoint", "disk full"]
    done = subprocess.run(
        command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 of 1 as if undisturbed") >= 2
