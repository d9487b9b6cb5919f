import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from envs import vector
from envs.random_maze import RandomMazeVectorEnv
from envs.vector import EpisodeStatistics, NumpyVectorEnv
from tests.runs import same
from utils.environments import NOT_SHOWN, Wrapped

MAZE = "RandomMaze-v0"


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
        ("actions", lambda actions: actions + 1, r"actions that are not of Discrete\(4\)"),
        ("lengths", lambda lengths: lengths + 1, "holds 7 steps, episodes have"),
    ],
)
def test_a_state_of_other_environments_is_refused(name, change, message):
    state = saved_after(7)
    state["actions"][0, 0] = 3
    state[name] = change(state[name])
    with pytest.raises(ValueError, match=message):
        EpisodeStatistics(RandomMazeVectorEnv(3, 0), MAZE).load_state_dict(state)


def test_no_more_actions_are_kept_than_the_longest_episode_has(monkeypatch):
    lengths = [len(saved_after(n_steps)["actions"]) for n_steps in (99, 100, 103)]
    assert lengths == [99, 0, 3]  # the time limit
    monkeypatch.setattr(vector, "LONGEST_REPLAY", 5)  # one without an end is not played again
    assert saved_after(5)["resumable"]
    assert saved_after(6) == {"resumable": False}


class Counter(NumpyVectorEnv):
    """Environment i ends after i + 1 steps; it shows (episode, step)."""

    def __init__(self, n_envs, seed=0):
        super().__init__(n_envs, seed, image_shape=(2, 1, 1), n_actions=2)
        self.counts = np.zeros((n_envs, 2), np.uint8)
        self.draws = [[] for _ in range(n_envs)]

    def begin(self, row, generator):
        self.counts[row] = self.counts[row, 0] + 1, 0
        self.draws[row].append(int(generator.integers(2**62)))

    def advance(self, actions):
        self.counts[:, 1] += 1
        ended = self.counts[:, 1] > np.arange(self.num_envs)
        return actions.astype(np.float32), ended, np.zeros_like(ended)

    def observe(self, rows):
        return self.counts[rows, :, None, None].copy()


def test_an_ended_episode_leaves_no_trace_but_its_last_observation():
    env = Counter(3)
    env.reset()
    env.step(np.zeros(3))
    images, rewards, terminated, truncated, info = env.step(np.array([0, 1, 1]))
    assert images[:, :, 0, 0].tolist() == [[3, 0], [2, 0], [1, 2]]
    images[:] = 9  # the last observation is a copy
    assert rewards.tolist() == [0, 1, 1]
    assert terminated.tolist() == [True, True, False]
    assert not truncated.any()
    assert info["_final_obs"].tolist() == [True, True, False]
    assert info["final_obs"][1][:, 0, 0].tolist() == [1, 2]
    assert info["final_obs"][2] is None


class Told(NumpyVectorEnv):
    """Tells everything that a run may ask of environments."""

    has_success = True

    def __init__(self, n_seen=0):
        super().__init__(2, 0, image_shape=(3, 9, 9))
        self.n_seen = n_seen

    def begin(self, row, generator): ...

    def advance(self, actions):
        self.n_seen += 1
        nothing = np.zeros(2, bool)
        return np.zeros(2), nothing, nothing

    def observe(self, rows):
        return np.full((len(rows), 3, 9, 9), self.n_seen % 256, np.uint8)

    def metrics(self):
        return {"n_seen": self.n_seen}

    def fingerprints(self):
        return {"reader": "abc"}

    def cues(self):
        return [self.n_seen, None]

    def state_dict(self):
        return {"n_seen": self.n_seen}

    def load_state_dict(self, state):
        self.n_seen = state["n_seen"]
        return True


def test_a_wrapper_hands_on_all_that_a_run_asks_for():
    plain, wrapped = (EpisodeStatistics(env, "") for env in (Told(), Wrapped(Told())))
    for env in (plain, wrapped):
        env.reset(seed=4)
        env.step(np.zeros(2, int))
        assert (env.has_success, env.metrics(), env.fingerprints()) == (
            True,
            {"n_seen": 1},
            {"reader": "abc"},
        )
        assert env.cues().tolist() == [1, NOT_SHOWN]
    saved = wrapped.state_dict()
    assert saved["resumable"]
    again = EpisodeStatistics(Wrapped(Told()), "")
    again.reset(seed=0)
    assert again.load_state_dict(saved)
    assert same(again.state_dict(), saved)


def test_a_vector_environment_of_another_library_has_the_defaults():
    env = EpisodeStatistics(Wrapped(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])), "")
    env.reset(seed=0)
    assert (env.has_success, env.metrics(), env.fingerprints()) == (False, {}, {})
    assert env.cues() is None
    assert env.state_dict() == {"resumable": False}
