"""Training and evaluation through the command lines: every agent, every suite."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import eval as eval_program
import main as main_program
from tests.agents import BY_PPO
from tests.tiny_clip import tiny_settings

TASKS = {
    "MiniGrid-Empty-5x5-v0": (3, 56, 56),
    "RandomMaze-v0": (3, 9, 9),
    "maze": (3, 64, 64),
    "MiniWorld-Sign-v0": (3, 60, 80),
    "psychlab_continuous_recognition": (3, 80, 80),
    "ContinuousRecognition-v0": (3, 80, 80),
    "VisualMatch-v0": (3, 5, 5),
    "KeyToDoor-v0": (3, 5, 5),
}
# With images, with words of them; other memories see what these see.
PAIRS = [(name, task) for task in TASKS for name in ("CNN", "SHELM")]
PAIRS += [(name, "RandomMaze-v0") for name in BY_PPO if name not in ("CNN", "SHELM")]
TINY = {"device": "cpu", "n_steps": 8, "n_envs": 1, "n_rollout_steps": 8, "n_batches": 2}


def trained_and_played(model, task, **own):
    """Return the folder of a short run and the arrays of an episode played by its agent."""
    settings = TINY | {"model": model, "env": task} | own
    command = [f"--var={key}={value}" for key, value in settings.items()]
    assert main_program.main([*command, "--run-id", "tiny"]) == 0
    folder = Path("experiments", model, task, "tiny")
    assert eval_program.main(["--ckpt-path", str(folder), "--n-episodes", "1"]) == 0
    (recording,) = Path("episodes", task, model).glob("*.npz")
    with np.load(recording, allow_pickle=False) as arrays:
        return folder, dict(arrays)


@pytest.mark.parametrize("model", ["CNN", "LSTM", "GPT"])
@pytest.mark.parametrize("task", ["TMazePassive-v0", "TMazeActive-v0"])
def test_an_agent_that_reads_vectors_is_trained_and_played(model, task, in_empty_folder):
    _, arrays = trained_and_played(model, task, length=3)
    assert arrays["observations"].shape == (4 if "Passive" in task else 6, 2)
    assert arrays["observations"].dtype == np.float32


@pytest.mark.parametrize(("task", "own"), [
    ("Crafter-v1", {}),
    ("CrafterText-v0", {"crafter_actions": "good", "use_text": "false"}),
])  # fmt: skip
def test_crafter_is_trained_in_played_and_its_achievements_logged(task, own, in_empty_folder):
    folder, arrays = trained_and_played("CNN", task, crafter_length=4, **own)
    assert len(arrays["observations"]) == 4
    with (folder / "metrics.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["rollout/length_mean"]) == 4
    mean = sum(float(row[name]) for name in row if name.startswith("achievements/"))
    assert float(row["rollout/achievements_mean"]) == pytest.approx(mean)
    assert float(row["rollout/achievements_total"]) >= mean


@pytest.mark.parametrize(("name", "task"), PAIRS)
def test_an_agent_is_trained_and_played(name, task, in_empty_folder, lab, request):
    if task.startswith("MiniWorld-"):
        request.getfixturevalue("opengl")
    folder, arrays = trained_and_played(name, task, **tiny_settings(name))
    (result,) = folder.glob("*_eval_*.json")
    (length,) = json.loads(result.read_text())["lengths"]
    assert arrays["observations"].shape == (length, *TASKS[task])
    assert arrays["observations"].dtype == np.uint8
    if name == "SHELM":
        assert arrays["words"].shape == arrays["similarities"].shape == (length, 2)
        assert (np.diff(arrays["similarities"]) <= 0).all()
