from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from envs.envpool_vector import EnvPoolVectorEnv
from envs.episodes import episode_seed

LIMITS = np.array([2, 3, 3, 5])


class CountingPool:
    """Stands in for EnvPool: observations are (row, episode, step); answers in reverse order."""

    action_space = SimpleNamespace(n=5)

    opened: ClassVar[list[list[int]]] = []

    def __init__(self, seeds):
        self.opened.append(seeds)
        self.rows = np.arange(len(seeds))
        self.episodes = np.zeros(len(seeds), int)
        self.steps = np.zeros(len(seeds), int)

    def reset(self, env_id=None):
        ids = self.rows if env_id is None else np.asarray(env_id)[::-1]
        self.episodes[ids] += 1
        self.steps[ids] = 0
        return self.observe()[ids], {"env_id": ids}

    def step(self, actions):
        self.steps += 1
        ended = self.steps >= LIMITS[: len(self.steps)]
        truncated = ended & (actions == 1)
        return self.observe(), np.array(actions, float), ended & ~truncated, truncated, {}

    def observe(self):
        return np.stack([self.rows, self.episodes, self.steps], 1).astype(np.uint8)


def make(n_envs=4, seed=10):
    return EnvPoolVectorEnv(CountingPool, n_envs, seed, lambda o: o[:, :, None, None], (3, 1, 1))


def test_an_ended_environment_shows_its_next_episode_and_its_neighbours_go_on():
    env = make()
    env.reset()
    env.step(np.zeros(4))
    images, rewards, terminated, truncated, info = env.step(np.array([1, 2, 3, 4]))
    expected = [[0, 2, 0], [1, 1, 2], [2, 1, 2], [3, 1, 2]]
    np.testing.assert_array_equal(images[:, :, 0, 0], expected)
    np.testing.assert_array_equal(rewards, [1, 2, 3, 4])
    np.testing.assert_array_equal(terminated, [False] * 4)
    np.testing.assert_array_equal(truncated, [True, False, False, False])
    np.testing.assert_array_equal(info["_final_obs"], [True, False, False, False])
    np.testing.assert_array_equal(info["final_obs"][0][:, 0, 0], [0, 1, 2])
    assert list(info["final_obs"][1:]) == [None] * 3


def test_environments_that_end_together_are_not_mixed_up():
    env = make()
    env.reset()
    for _ in range(3):
        images, _, terminated, _, info = env.step(np.zeros(4))
    np.testing.assert_array_equal(terminated, [False, True, True, False])
    np.testing.assert_array_equal(images[1:3, :, 0, 0], [[1, 2, 0], [2, 2, 0]])
    np.testing.assert_array_equal(info["final_obs"][2][:, 0, 0], [2, 1, 3])


def test_no_step_is_lost_at_an_episodes_end():
    env = make(n_envs=1)
    env.reset()
    steps = [env.step(np.zeros(1))[0][0, 1:, 0, 0].tolist() for _ in range(5)]
    assert steps == [[1, 1], [2, 0], [2, 1], [3, 0], [3, 1]]


def test_a_seed_opens_a_new_pool_and_no_seed_continues():
    env = make(n_envs=2)
    assert env.reset()[0][:, :2, 0, 0].tolist() == [[0, 1], [1, 1]]
    assert env.reset()[0][:, :2, 0, 0].tolist() == [[0, 2], [1, 2]]
    assert env.reset(seed=30)[0][:, :2, 0, 0].tolist() == [[0, 1], [1, 1]]
    env.reset(seed=30, options={"first_env": 2})
    expected = [(10, 0), (10, 1)], [(30, 0), (30, 1)], [(30, 2), (30, 3)]
    assert CountingPool.opened[-3:] == [
        [episode_seed(seed, number, 0) for seed, number in pool] for pool in expected
    ]
