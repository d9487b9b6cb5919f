"""Whole runs of DQN and SAC: order of exploration, updates and evaluations."""

import json

import numpy as np
import pytest
import torch

from envs import make_vector_env
from models import build_agent
from models.baselines import LstmAgent
from models.q_networks import SacAgent
from tests import golden_data
from tests.agents import small_config, spaces
from tests.runs import CNN, HELM, LSTM, MAZE, PPO, REPLAY, SAC, outcome, train_row
from trainers.checkpoint import LAST, load_checkpoint
from trainers.dqn import DQN
from utils.given_settings import load_config

TINY = REPLAY | {"n_envs": 1, "batch_size": 2, "replay_ratio": 0.25}
TINY |= {"observation_embedding": 8, "action_embedding": 8}


SHORT = CNN | {
    **{"n_envs": 2, "warmup_episodes": 2, "replay_ratio": 0.1},
    **{"env": "VisualMatch-v0", "length": 2, "n_steps": 192},
}


@pytest.mark.slow
@pytest.mark.parametrize("n_steps", [40, 170])
@pytest.mark.parametrize("learner", ["DQN", "SAC"])
def test_a_run_ends_with_its_steps_though_no_episode_does(
    learner, n_steps, in_empty_folder, caplog
):
    folder = train_row("run", TINY | SHORT | {"algorithm": learner, "n_steps": n_steps})
    rows = outcome(folder)["metrics"]
    assert int(rows[-1]["env_steps"]) == n_steps  # episodes of two times 32 steps end elsewhere
    has_learned = float(rows[-1]["train/n_gradient_steps"]) > 0
    assert has_learned == (n_steps == 170)
    told = "nothing was learned: the 40 steps were over before the warm-up's 2 episodes. Choose"
    assert (told in caplog.text) == (not has_learned)
    assert "finished" in json.loads((folder / "run.json").read_text())


@pytest.mark.parametrize(
    ("agent", "settings"),
    [(LstmAgent, PPO | LSTM), (SacAgent, SAC | HELM | MAZE)],
)
def test_looking_ahead_draws_nothing(agent, settings, in_empty_folder, monkeypatch):
    act, drawn = agent.act, []

    def watched(self, *given, **how):
        before = torch.get_rng_state()
        step = act(self, *given, **how)
        if not how.get("advance", True):
            drawn.append(not torch.equal(before, torch.get_rng_state()))
        return step

    monkeypatch.setattr(agent, "act", watched)
    train_row("run", settings)
    # Or the actions to come would be others than without it.
    assert drawn
    assert not any(drawn)


FACTS = golden_data.load("memory_rl/facts")
ORIGINAL_RUNS = sorted({name.split(".")[1] for name in FACTS if name.startswith("training.")})
OUR_TASKS = {
    "tmaze_passive": "TMazePassive-v0",
    "tmaze_active": "TMazeActive-v0",
    "visual_match": "VisualMatch-v0",
    "key_to_door": "KeyToDoor-v0",
}


DQN_OF_LSTM = {"algorithm": "DQN"} | LSTM


def as_original(name):
    arrays = golden_data.under(FACTS, f"training.{name}.")
    given = {k: v.item() for k, v in arrays.items() if getattr(v, "ndim", 1) == 0}
    n_episodes = given["start_training"] + given["train_episodes"]
    n_steps = given["episode_length"]
    explores = "epsilon_counter" in given
    ours = {
        **(DQN_OF_LSTM if explores else {"algorithm": "SAC"} | CNN),
        **{"n_steps": n_episodes * n_steps, "warmup_episodes": given["start_training"]},
        **{"replay_ratio": given["updates_per_step"], "eval_episodes": given["eval_episodes"]},
        "eval_steps": given["eval_interval"] * n_steps,
    }
    folder = train_row("run", TINY | task_of(given) | ours)
    return arrays, given, folder


def task_of(given):
    """Return our name of an original's task, and the length that gives its episodes theirs."""
    env = OUR_TASKS[given["env_type"]]
    shortest = make_vector_env(load_config(None, [f"env={env}", "length=1"]), 0)
    return {"env": env, "length": 1 + given["episode_length"] - shortest.unwrapped.episode_length}


def events_of(rows, n_warmup):
    """Return the events of a run with one environment, as the original lists them."""
    events, n_updates, steps = [], 0, 0
    for number, row in enumerate(rows):
        now = int(row["env_steps"])
        events.append(("random" if number < n_warmup else "policy", now, now - steps))
        new = int(float(row["train/n_gradient_steps"])) - n_updates
        if new:
            events.append(("updates", now, new))
        if row["eval/return_mean"]:
            events.append(("evaluate", now, None))
        n_updates, steps = n_updates + new, now
    return events


@pytest.mark.slow
@pytest.mark.parametrize("name", ORIGINAL_RUNS)
def test_a_run_explores_learns_and_evaluates_in_the_originals_order(name, in_empty_folder):
    arrays, given, folder = as_original(name)
    rows = outcome(folder)["metrics"]
    # We evaluate while warming up, too; the original does not, not even right after it.
    n_warmup_steps = given["start_training"] * given["episode_length"]
    ours = [
        (name, now, count)
        for name, now, count in events_of(rows, given["start_training"])
        if name != "evaluate" or now > n_warmup_steps
    ]
    names, steps, counts = (arrays[f"event{part}"] for part in ("s", "_env_steps", "_counts"))
    theirs = [
        (name, step, None if name == "evaluate" else count)
        for name, step, count in zip(names.tolist(), steps.tolist(), counts.tolist(), strict=True)
    ]
    assert ours == theirs
    learner = load_checkpoint(folder / LAST)["learner"]
    assert learner["counts"]["n_updates"] == given["total_updates"]
    if "epsilon_counter" in given:
        assert learner["counts"]["n_explored"] == given["epsilon_counter"]
    # A row has what the original's has; training and evaluation share a row here.
    by_step, is_training = {int(row["env_steps"]): row for row in rows}, arrays["csv_filled"][:, 1]
    for env_steps, learned in zip(arrays["csv_env_steps"].tolist(), is_training, strict=True):
        assert by_step[env_steps]["train/critic_loss" if learned else "eval/return_mean"] != ""


@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_epsilon_falls_as_the_originals(case):
    arrays = golden_data.under(FACTS, f"epsilon.{case}.")
    n_steps, n_episodes = arrays["episode_length"].item(), arrays["train_episodes"].item()
    n_warmup = 10 * n_steps
    config = small_config(
        algorithm="DQN",
        model="CNN",
        n_steps=n_warmup + n_episodes * n_steps,
        exploration_fraction=arrays["schedule_end"].item(),
    )
    learner = DQN(config, build_agent(config, *spaces()))
    learner.n_warmup_steps, learner.longest = n_warmup, n_steps
    ours = [learner.epsilon_after(k) for k in range(len(arrays["values"]))]
    np.testing.assert_allclose(ours, arrays["values"], atol=1e-7)  # theirs are float32
    assert ours[-1] == pytest.approx(arrays["final"].item())
