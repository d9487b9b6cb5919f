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
OF_VECTORS = ("TMazePassive-v0", "TMazeActive-v0")
CRAFTER = {
    "Crafter-v1": ((3, 64, 64), {}),
    "CrafterText-v0": ((1, 84, 84), {"crafter_actions": "good", "use_text": "false"}),
}
# With images, with words of them; other memories see what these see.
RUNS = [(name, task, shape, {}) for task, shape in TASKS.items() for name in ("CNN", "SHELM")]
RUNS += [
    (name, "RandomMaze-v0", TASKS["RandomMaze-v0"], {})
    for name in BY_PPO
    if name not in ("CNN", "SHELM")
]
RUNS += [
    (name, task, (2,), {"length": 3}) for task in OF_VECTORS for name in ("CNN", "LSTM", "GPT")
]
RUNS += [
    ("CNN", task, shape, own | {"crafter_length": 4}) for task, (shape, own) in CRAFTER.items()
]
TINY = {"device": "cpu", "n_steps": 8, "n_envs": 1, "n_rollout_steps": 8, "n_batches": 2}


@pytest.mark.parametrize(("name", "task", "shape", "own"), RUNS)
def test_an_agent_is_trained_and_played(name, task, shape, own, in_empty_folder, lab, request):
    if task.startswith("MiniWorld-"):
        request.getfixturevalue("opengl")
    settings = TINY | {"model": name, "env": task} | own | tiny_settings(name)
    command = [f"--var={key}={value}" for key, value in settings.items()]
    assert main_program.main([*command, "--run-id", "tiny"]) == 0
    folder = Path("experiments", name, task, "tiny")
    assert eval_program.main(["--ckpt-path", str(folder), "--n-episodes", "1"]) == 0
    (result,) = folder.glob("*_eval_*.json")
    (length,) = json.loads(result.read_text())["lengths"]
    (recording,) = Path("episodes", task, name).glob("*.npz")
    with np.load(recording, allow_pickle=False) as file:
        arrays = dict(file)
    assert arrays["observations"].shape == (length, *shape)
    assert arrays["observations"].dtype == (np.float32 if task in OF_VECTORS else np.uint8)
    if name == "SHELM":
        assert arrays["words"].shape == arrays["similarities"].shape == (length, 2)
        assert (np.diff(arrays["similarities"]) <= 0).all()
    if task in CRAFTER:
        with (folder / "metrics.csv").open(newline="") as file:
            (row,) = csv.DictReader(file)
        assert float(row["rollout/length_mean"]) == length == 4
        mean = sum(float(row[name]) for name in row if name.startswith("achievements/"))
        assert float(row["rollout/achievements_mean"]) == pytest.approx(mean)
        assert float(row["rollout/achievements_total"]) >= mean
