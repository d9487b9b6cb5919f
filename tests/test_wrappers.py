import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs import wrappers
from envs.random_maze import RandomMazeVectorEnv
from envs.wrappers import EpisodeStatistics
from utils.errors import RunError

MAZE = "RandomMaze-v0"


class ScriptedEnv(VectorEnv):
    """Gives rewards and ends as they are written down.  [T, N] each"""

    def __init__(self, rewards, terminated=None, truncated=None):
        self.rewards = np.array(rewards, dtype=np.float32)
        nowhere = np.zeros(self.rewards.shape, dtype=bool)
        self.terminated = nowhere if terminated is None else np.array(terminated, dtype=bool)
        self.truncated = nowhere if truncated is None else np.array(truncated, dtype=bool)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = self.rewards.shape[1]
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (3, 1, 1), np.uint8)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self.t = 0
        return np.zeros((self.num_envs, 3, 1, 1), np.uint8), {}

    def step(self, actions):
        t, self.t = self.t, self.t + 1
        observations = np.full((self.num_envs, 3, 1, 1), t + 1, np.uint8)
        return observations, self.rewards[t], self.terminated[t], self.truncated[t], {}


def play(env):
    """Return every step of a scripted environment."""
    env.reset()
    return [env.step(np.zeros(env.num_envs, int)) for _ in range(len(env.unwrapped.rewards))]


def test_statistics_show_raw_returns_and_lengths_of_ended_episodes():
    ends = {"terminated": [[0, 0], [1, 0], [0, 0]], "truncated": [[0, 0], [0, 0], [1, 1]]}
    script = ScriptedEnv([[1, 10], [2, 20], [4, 40]], **ends)
    infos = [step[-1] for step in play(EpisodeStatistics(script, "Script"))]
    assert "episode" not in infos[0]
    assert infos[1]["_episode"].tolist() == [True, False]
    assert (infos[1]["episode"]["r"][0], infos[1]["episode"]["l"][0]) == (3, 2)
    assert infos[2]["_episode"].tolist() == [True, True]
    assert infos[2]["episode"]["r"].tolist() == [4, 70]
    assert infos[2]["episode"]["l"].tolist() == [1, 3]


def test_a_suite_that_cannot_save_its_episodes_says_so():
    env = EpisodeStatistics(ScriptedEnv([[1.0]]), "Script")
    assert env.state_dict() == {"resumable": False}
    assert not env.load_state_dict(env.state_dict())
    assert play(env)[0][1].tolist() == [1.0]


def saved_after(n_steps, n_envs=3):
    env = EpisodeStatistics(RandomMazeVectorEnv(n_envs, 0), MAZE)
    env.reset()
    for _ in range(n_steps):
        env.step(np.zeros(n_envs, int))
    return env.state_dict()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("actions", lambda actions: actions[:, :2], "3 environments, this is 3"),
        ("actions", lambda actions: actions + 1, "actions beyond those from 0 to 3"),
        ("actions", lambda actions: actions - 1, "actions beyond those from 0 to 3"),
        ("lengths", lambda lengths: lengths + 1, "holds 7 steps, episodes have"),
        ("lengths", lambda lengths: lengths[:2], "2 environments, this is 3"),
    ],
)
def test_a_state_of_other_environments_is_refused(name, change, message):
    state = saved_after(7)
    state["actions"][0, 0] = 3
    state[name] = change(state[name])
    with pytest.raises(ValueError, match=message):
        EpisodeStatistics(RandomMazeVectorEnv(3, 0), MAZE).load_state_dict(state)


def test_no_more_actions_are_kept_than_the_longest_episode_has():
    assert len(saved_after(99)["actions"]) == 99
    assert len(saved_after(100)["actions"]) == 0  # the time limit
    assert len(saved_after(103)["actions"]) == 3


def test_an_episode_without_an_end_is_not_played_again(monkeypatch):
    monkeypatch.setattr(wrappers, "LONGEST_REPLAY", 5)
    assert saved_after(5)["resumable"]
    assert saved_after(6) == {"resumable": False}


def leave():
    sys.exit(0)


def stumble():
    raise KeyError("a line\nand another")


@pytest.mark.parametrize(("fault", "said"), [(leave, "SystemExit: 0"), (stumble, "KeyError: ")])
def test_what_an_environment_raises_is_one_line_with_its_name_and_step(fault, said):
    script = ScriptedEnv([[1.0]] * 3)
    env = EpisodeStatistics(script, "Mine-v0")
    env.reset()
    env.step(np.zeros(1, int))
    script.step = lambda actions: fault()
    place = r"\(test_wrappers\.py, line \d+\) in vector step 2 of this process"
    with pytest.raises(RunError, match=rf"^env: 'Mine-v0' raised {said}.*{place}.*--resume$"):
        env.step(np.zeros(1, int))
