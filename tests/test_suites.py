"""Training and evaluation through the command lines: every agent, every suite."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import eval as eval_program
import main as main_program
from tests.tiny_clip import tiny_settings

pytestmark = pytest.mark.slow

IMAGES = {
    "MiniGrid-Empty-5x5-v0": (3, 56, 56),
    "RandomMaze-v0": (3, 9, 9),
    "maze": (3, 64, 64),
    "MiniWorld-Sign-v0": (3, 60, 80),
    "psychlab_continuous_recognition": (3, 80, 80),
    "ContinuousRecognition-v0": (3, 80, 80),
    "VisualMatch-v0": (3, 5, 5),
    "KeyToDoor-v0": (3, 5, 5),
}
CRAFTER = {"Crafter-v1": (3, 64, 64), "CrafterText-v0": (1, 84, 84)}
VECTORS = {"TMazePassive-v0": (2,), "TMazeActive-v0": (2,)}
SHOWN: dict[str, tuple[int, ...]] = {**IMAGES, **CRAFTER, **VECTORS}
OWN: dict[str, dict[str, object]] = {
    "Crafter-v1": {"crafter_length": 4},
    "CrafterText-v0": {"crafter_length": 4, "crafter_actions": "good", "use_text": "false"},
    "TMazePassive-v0": {"length": 3},
    "TMazeActive-v0": {"length": 3},
}
# With images, with words of them; other memories see what these see, and are in tests/runs.py.
RUNS = [(name, task) for task in IMAGES for name in ("CNN", "SHELM")]
RUNS += [("CNN", task) for task in CRAFTER]
RUNS += [(name, task) for task in VECTORS for name in ("CNN", "LSTM", "GPT")]
TINY = {"device": "cpu", "n_steps": 8, "n_envs": 1, "n_rollout_steps": 8, "n_batches": 2}


@pytest.mark.parametrize(("name", "task"), RUNS)
def test_an_agent_is_trained_and_played(name, task, in_empty_folder, lab, request):
    if task.startswith("MiniWorld-"):
        request.getfixturevalue("opengl")
    settings = TINY | {"model": name, "env": task} | OWN.get(task, {}) | tiny_settings(name)
    command = [f"--var={key}={value}" for key, value in settings.items()]
    assert main_program.main([*command, "--run-id", "tiny"]) == 0
    folder = Path("experiments", name, task, "tiny")
    assert eval_program.main(["--ckpt-path", str(folder), "--n-episodes", "1"]) == 0
    (result,) = folder.glob("*_eval_*.json")
    (length,) = json.loads(result.read_text())["lengths"]
    (recording,) = Path("episodes", task, name).glob("*.npz")
    with np.load(recording, allow_pickle=False) as file:
        arrays = dict(file)
    assert arrays["observations"].shape == (length, *SHOWN[task])
    assert arrays["observations"].dtype == (np.float32 if task in VECTORS else np.uint8)
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
