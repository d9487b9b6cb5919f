"""Training and evaluation through the command lines: every agent, every suite."""

import json
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Dict

import eval as eval_program
from envs import make_vector_env
from tests.runs import train_row
from utils.run_folder import load_run_config

pytestmark = pytest.mark.slow

IMAGES = (
    *("MiniGrid-Empty-5x5-v0", "RandomMaze-v0", "maze", "MiniWorld-Sign-v0", "VisualMatch-v0"),
    *("psychlab_continuous_recognition", "ContinuousRecognition-v0", "KeyToDoor-v0"),
)
CRAFTER, VECTORS = ("Crafter-v1", "CrafterText-v0"), ("TMazePassive-v0", "TMazeActive-v0")
OWN: dict[str, dict[str, object]] = {
    "Crafter-v1": {"crafter_length": 4},
    "CrafterText-v0": {"crafter_length": 4, "crafter_actions": "good", "use_text": "false"},
    **{task: {"length": 3} for task in VECTORS},
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
    settings = TINY | {"model": name, "env": task} | OWN.get(task, {})
    folder = train_row("tiny", settings)
    assert eval_program.main(["--ckpt-path", str(folder), "--n-episodes", "1"]) == 0
    (result,) = folder.glob("*_eval_*.json")
    (length,) = json.loads(result.read_text())["lengths"]
    (recording,) = Path("episodes", task, name).glob("*.npz")
    with np.load(recording, allow_pickle=False) as file:
        arrays = dict(file)
    space = make_vector_env(load_run_config(folder), 0).single_observation_space
    space = space["image"] if isinstance(space, Dict) else space
    assert arrays["observations"].shape == (length, *space.shape)
    assert arrays["observations"].dtype == (np.float32 if task in VECTORS else np.uint8)
    if name == "SHELM":
        assert arrays["words"].shape == arrays["similarities"].shape == (length, 2)
        assert (np.diff(arrays["similarities"]) <= 0).all()
    assert task not in CRAFTER or length == 4
