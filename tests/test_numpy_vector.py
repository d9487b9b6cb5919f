import numpy as np
import pytest
from gymnasium.spaces import Box

from envs.episodes import episode_seed
from envs.numpy_vector import NumpyVectorEnv, final_observations


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
    assert rewards.tolist() == [0, 1, 1]
    assert terminated.tolist() == [True, True, False]
    assert not truncated.any()
    assert info["_final_obs"].tolist() == [True, True, False]
    assert info["final_obs"][1][:, 0, 0].tolist() == [1, 2]
    assert info["final_obs"][2] is None


def test_each_episode_draws_from_its_own_generator():
    together, alone = Counter(3, seed=5), Counter(1)
    together.reset()
    alone.reset(seed=5, options={"first_env": 2})
    assert together.draws[2] == alone.draws[0]
    together.reset(seed=5)
    assert together.draws[2][0] == together.draws[2][1]
    together.reset()
    assert len(set(together.draws[2])) == 2
    drawn = [int(np.random.default_rng(episode_seed(5, 2, k)).integers(2**62)) for k in (0, 0, 1)]
    assert together.draws[2] == drawn


def test_final_observations_are_copies():
    images = np.zeros((2, 1, 1, 1), np.uint8)
    final = final_observations(images, [1])
    images[1] = 9
    assert final[0] is None
    assert final[1].item() == 0


class Passing(Counter):
    """Succeeds where the last action was 1."""

    has_success = True

    def advance(self, actions):
        self.right = actions == 1
        return super().advance(actions)

    def succeeded(self):
        return self.right


def test_success_is_told_of_the_episodes_that_ended():
    env = Passing(3)
    env.reset()
    info = env.step(np.array([1, 1, 1]))[-1]
    assert info["success"].tolist() == [True, False, False]
    assert info["_success"].tolist() == [True, False, False]
    info = env.step(np.array([0, 1, 0]))[-1]
    assert info["success"].tolist() == [False, True, False]
    assert info["_success"].tolist() == [True, True, False]
    assert "success" not in Counter(1).step(np.zeros(1))[-1]


def test_an_environment_shows_images_or_something_else_and_not_both():
    space = Box(-1, 1, (2,), np.float32)
    assert NumpyVectorEnv(1, 0, n_actions=2, observation_space=space).observation_space.shape == (
        1,
        2,
    )
    for shown in ({}, {"image_shape": (3, 9, 9), "observation_space": space}):
        with pytest.raises(TypeError, match="either image_shape or observation_space"):
            NumpyVectorEnv(1, 0, n_actions=2, **shown)
