"""Whole runs of DQN and SAC: who acts when, what is learned when, and what is evaluated."""

import contextlib
import csv
import json
from pathlib import Path

import numpy as np
import pytest

import main as main_program
from envs import make_vector_env
from models import build_agent
from settings import load_config
from tests import golden_data
from tests.agents import small_config, spaces
from tests.tiny_clip import tiny_settings
from trainers.checkpoint import LAST, load_checkpoint
from trainers.dqn import DQN

TINY = {
    "device": "cpu",
    "n_envs": 1,
    "learning_rate": 1e-3,
    "batch_size": 2,
    "head_width": 8,
    "observation_embedding": 8,
    "action_embedding": 8,
    "media_minutes": "null",
    "checkpoint_minutes": 60,
}
SMALL_MEMORY = {"LSTM": {"memory_width": 8}, "GPT": {"memory_width": 8, "memory_heads": 2}}


def train(run_id="run", **changes):
    """Train with tiny settings and return the run folder."""
    model = changes["model"]
    settings = TINY | SMALL_MEMORY.get(model, {}) | tiny_settings(model) | changes
    command = [f"--var={key}={value}" for key, value in settings.items()]
    assert main_program.main([*command, "--run-id", run_id]) == 0
    (folder,) = Path("experiments").glob(f"*/*/{run_id}")
    return folder


def rows_of(folder):
    """Return the rows of a run's metrics, without what the clock says."""
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


SHORT = {
    **{"n_envs": 2, "warmup_episodes": 2, "updates_per_step": 0.1},
    **{"env": "VisualMatch-v0", "length": 2, "n_steps": 192},
}


@pytest.mark.parametrize("n_steps", [40, 170])
@pytest.mark.parametrize("learner", ["DQN", "SAC"])
def test_a_run_ends_with_its_steps_though_no_episode_does(
    learner, n_steps, in_empty_folder, caplog
):
    folder = train(model="CNN", **(SHORT | {"algorithm": learner, "n_steps": n_steps}))
    rows = rows_of(folder)
    assert int(rows[-1]["env_steps"]) == n_steps  # episodes of two times 32 steps end elsewhere
    has_learned = float(rows[-1]["train/n_updates"]) > 0
    assert has_learned == (n_steps == 170)
    told = "nothing was learned: the 40 steps were over before the warm-up's 2 episodes. Choose"
    assert (told in caplog.text) == (not has_learned)
    assert "finished" in json.loads((folder / "run.json").read_text())


FACTS = golden_data.load("memory_rl/facts")
ORIGINAL_RUNS = sorted({name.split(".")[1] for name in FACTS if name.startswith("training.")})
OUR_TASKS = {
    "tmaze_passive": "TMazePassive-v0",
    "tmaze_active": "TMazeActive-v0",
    "visual_match": "VisualMatch-v0",
    "key_to_door": "KeyToDoor-v0",
}


@pytest.fixture(scope="module", params=ORIGINAL_RUNS)
def original_run(request, tmp_path_factory):
    """Return the golden arrays of a short run and the folder of the same run here."""
    with contextlib.chdir(place := tmp_path_factory.mktemp("runs")):
        arrays, given, folder = as_original(request.param)
    return arrays, given, place / folder


def as_original(name):
    arrays = golden_data.under(FACTS, f"training.{name}.")
    given = {k: v.item() for k, v in arrays.items() if getattr(v, "ndim", 1) == 0}
    n_episodes = given["start_training"] + given["train_episodes"]
    n_steps = given["episode_length"]
    explores = "epsilon_counter" in given
    folder = train(
        algorithm="DQN" if explores else "SAC",
        model="LSTM" if explores else "CNN",
        **task_of(given),
        n_steps=n_episodes * n_steps,
        warmup_episodes=given["start_training"],
        updates_per_step=given["updates_per_step"],
        eval_steps=given["eval_interval"] * n_steps,
        eval_episodes=given["eval_episodes"],
    )
    return arrays, given, folder


def task_of(given):
    """Return our name of an original's task, and the length that gives its episodes theirs."""
    env = OUR_TASKS[given["env_type"]]
    shortest = make_vector_env(load_config(None, [f"env={env}", "length=1"]), 0)
    return {"env": env, "length": 1 + given["episode_length"] - shortest.unwrapped.episode_length}


def events_of(rows, n_warmup):
    """Return what happened in a run with one environment, as the original lists it."""
    events, n_updates, steps = [], 0, 0
    for number, row in enumerate(rows):
        now = int(row["env_steps"])
        events.append(("random" if number < n_warmup else "policy", now, now - steps))
        new = int(float(row["train/n_updates"])) - n_updates
        if new:
            events.append(("updates", now, new))
        if row["eval/return_mean"]:
            events.append(("evaluate", now, None))
        n_updates, steps = n_updates + new, now
    return events


def test_a_run_explores_learns_and_evaluates_in_the_originals_order(original_run):
    arrays, given, folder = original_run
    ours = events_of(rows_of(folder), given["start_training"])
    names, steps, counts = (arrays[f"event{part}"] for part in ("s", "_env_steps", "_counts"))
    theirs = [
        (name, step, None if name == "evaluate" else count)
        for name, step, count in zip(names.tolist(), steps.tolist(), counts.tolist(), strict=True)
    ]
    # Where the warm-up ends with a multiple of `eval_steps` we evaluate, and the original does not.
    after_warmup = ("evaluate", given["start_training"] * given["episode_length"], None)
    assert [event for event in ours if event != after_warmup] == theirs
    learner = load_checkpoint(folder / LAST)["learner"]
    assert learner["counts"]["n_updates"] == given["total_updates"]
    if "epsilon_counter" in given:
        assert learner["counts"]["n_explored"] == given["epsilon_counter"]


def test_a_row_has_what_the_originals_row_has(original_run):
    arrays, given, folder = original_run
    rows = {int(row["env_steps"]): row for row in rows_of(folder)}
    is_training = arrays["csv_filled"][:, 1].tolist()
    for env_steps, learned in zip(arrays["csv_env_steps"].tolist(), is_training, strict=True):
        row = rows[env_steps]  # training and evaluation share a row here
        assert row["train/critic_loss" if learned else "eval/return_mean"] != ""
    warmup = [rows[step] for step in rows if step < min(arrays["csv_env_steps"].tolist())]
    assert [row["train/critic_loss"] for row in warmup] == [""] * (given["start_training"] - 1)


@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_epsilon_falls_as_the_originals(case):
    arrays = golden_data.under(FACTS, f"epsilon.{case}.")
    n_steps, n_episodes = arrays["episode_length"].item(), arrays["train_episodes"].item()
    n_warmup = 10 * n_steps
    config = small_config(
        algorithm="DQN",
        model="CNN",
        n_steps=n_warmup + n_episodes * n_steps,
        epsilon_share=arrays["schedule_end"].item(),
    )
    learner = DQN(config, build_agent(config, *spaces()))
    learner.n_warmup_steps, learner.longest = n_warmup, n_steps
    ours = [learner.epsilon_after(k) for k in range(len(arrays["values"]))]
    np.testing.assert_allclose(ours, arrays["values"], atol=1e-7)  # theirs are float32
    assert ours[-1] == pytest.approx(arrays["final"].item())
