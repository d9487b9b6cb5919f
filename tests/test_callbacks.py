"""What a Python program does while a run trains: ends it, and chooses the options of episodes."""

import csv
import json

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import helm
from tests.bad_inputs.harness import in_one_line
from tests.runs import folder_of, outcome, same, signal_at
from utils.errors import Interrupted

TINY = {"model": "LSTM", "device": "cpu", "n_steps": 128, "n_envs": 2, "n_rollout_steps": 8}
TINY |= {"memory_width": 8, "showcase_minutes": None, "checkpoint_minutes": 60}
BEGUN: list[int] = []  # lengths of the episodes that began


class Corridor(gymnasium.Env):
    """An episode has as many steps as its reset is told, and shows how many are left."""

    observation_space = gymnasium.spaces.Box(0, 100, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = (options or {}).get("length", 3)
        BEGUN.append(self.left)
        return self._look(), {}

    def step(self, action):
        self.left -= 1
        return self._look(), float(action), self.left == 0, False, {}

    def _look(self):
        return np.array([self.left, self.np_random.random()], np.float32)


class Longer(helm.Callback):
    """Every update makes the episodes longer."""

    def __init__(self):
        self.level = 0

    def after_update(self, step, metrics):
        self.level += 1

    def before_episode(self, env):
        return {"length": 3 + 2 * self.level + env}

    def state_dict(self):
        return {"level": self.level}

    def load_state_dict(self, state):
        self.level = state["level"]


class Ends(helm.Callback):
    def __init__(self, at):
        self.at, self.rows = at, []

    def after_update(self, step, metrics):
        self.rows.append((step, metrics["train/loss"]))
        return step == self.at


def test_a_callback_sees_the_metrics_and_ends_a_run_that_goes_on(in_empty_folder):
    whole = helm.train(TINY, env=Corridor, run_id="whole")
    ends = Ends(at=48)
    cut = helm.train(TINY, env=Corridor, run_id="cut", callbacks=[ends, helm.Callback()])
    with (cut / "metrics.csv").open(newline="") as file:
        logged = [(int(row["env_steps"]), float(row["train/loss"])) for row in csv.DictReader(file)]
    np.testing.assert_allclose(ends.rows, logged)
    assert [step for step, _ in ends.rows] == [16, 32, 48]
    assert "finished" not in json.loads((cut / "run.json").read_text())
    helm.resume(cut, env=Corridor, callbacks=[Ends(at=0), helm.Callback()])
    told = json.loads((cut / "run.json").read_text())
    assert told["resumed"][0]["exact"]
    assert "finished" in told
    assert same(outcome(cut), outcome(whole))


@pytest.mark.slow
@pytest.mark.parametrize("at", [21, 29])
def test_a_curriculum_goes_on_with_its_running_episodes(at, in_empty_folder, monkeypatch):
    BEGUN.clear()
    whole = helm.train(TINY, env=Corridor, run_id="whole", callbacks=[Longer()])
    assert {3, *(4 + 2 * level for level in range(4))} <= {*BEGUN}
    signal_at(monkeypatch, 2, at=at)
    with pytest.raises(Interrupted):
        helm.train(TINY, env=Corridor, run_id="cut", callbacks=[Longer()])
    BEGUN.clear()
    cut = helm.resume(folder_of("cut"), env=Corridor, callbacks=[Longer()])
    assert max(BEGUN) > 9
    assert json.loads((cut / "run.json").read_text())["resumed"][0]["exact"]
    assert same(outcome(cut), outcome(whole))


def test_a_run_that_goes_on_without_its_callbacks_is_not_exact(in_empty_folder):
    cut = helm.train(TINY, env=Corridor, run_id="cut", callbacks=[Ends(at=48)])
    helm.resume(cut, env=Corridor)
    (told,) = json.loads((cut / "run.json").read_text())["resumed"]
    assert told["differences"] == ["callbacks: none instead of Ends"]


class Fails(helm.Callback):
    def after_update(self, step, metrics):
        return metrics["nothing/of/this/name"]


def vector():
    return SyncVectorEnv([Corridor] * 2, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.mark.parametrize(
    ("callback", "env", "reason"),
    [
        (Longer(), "RandomMaze-v0", "before_episode chooses options of single Gymnasium env"),
        (Longer(), vector, "before_episode chooses options of single Gymnasium env"),
        (Longer, Corridor, "callbacks: type is no callback. Derive"),
        (Fails(), Corridor, "callbacks: Fails raised KeyError"),
    ],
)
def test_a_callback_that_cannot_be_is_told(callback, env, reason, in_empty_folder):
    env = env() if env is vector else env
    with in_one_line(reason):
        helm.train(TINY, env=env, callbacks=[callback])
