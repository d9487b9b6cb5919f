from types import SimpleNamespace

import numpy as np

from envs.envpool_vector import EnvPoolVectorEnv

LIMITS = np.array([2, 3, 3, 5])


class CountingPool:
    """Stands in for EnvPool: shows (row, episode, step); resets are answered in reverse order."""

    action_space = SimpleNamespace(n=5)

    def __init__(self, seeds):
        self.shown = np.zeros((len(seeds), 3), np.uint8)
        self.shown[:, 0] = np.arange(len(seeds))

    def reset(self, env_id=None):
        rows = np.arange(len(self.shown)) if env_id is None else env_id[::-1]
        self.shown[rows, 1] += 1
        self.shown[rows, 2] = 0
        return self.shown[rows], {"env_id": rows}

    def step(self, actions):
        self.shown[:, 2] += 1
        ended = self.shown[:, 2] >= LIMITS
        return self.shown.copy(), np.array(actions, float), ended, np.zeros(4, bool), {}


def test_environments_that_end_together_are_not_mixed_up_and_their_neighbours_go_on():
    env = EnvPoolVectorEnv(CountingPool, 4, 10, lambda shown: shown[:, :, None, None], (3, 1, 1))
    env.reset()
    for _ in range(3):
        images, rewards, terminated, _, info = env.step(np.array([1, 2, 3, 4]))
    expected = [[0, 2, 1], [1, 2, 0], [2, 2, 0], [3, 1, 3]]
    np.testing.assert_array_equal(images[:, :, 0, 0], expected)
    np.testing.assert_array_equal(rewards, [1, 2, 3, 4])
    np.testing.assert_array_equal(terminated, [False, True, True, False])
    last = [None if final is None else final.ravel().tolist() for final in info["final_obs"]]
    assert last == [None, [1, 1, 3], [2, 1, 3], None]
