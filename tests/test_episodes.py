"""Seeds of episodes, and episodes that are played again."""

import gymnasium
import numpy as np
import pytest

from envs.episodes import SeededEnv, SingleEnvs, checksum
from utils.seeding import episode_seed


def test_a_seed_belongs_to_a_run_an_environment_and_an_episode():
    seeds = {episode_seed(*numbers) for numbers in np.ndindex(8, 8, 8)}
    assert len(seeds) == 512
    assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([1, 2]), np.array([2, 1])),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        (("a", "bc"), ("a", "cb")),
        (np.array(["a", None], object), np.array(["a", "b"], object)),
        (1.0, np.nextafter(1.0, 2)),
    ],
)
def test_a_checksum_tells_what_differs(one, other):
    assert checksum(one) == checksum(one)
    assert checksum(one) != checksum(other)


class Recalling(gymnasium.Env):
    """Shows a number first and nothing later; which number may be chance alone."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    ends = False

    def __init__(self, generator=None):
        self.generator = generator

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue = (self.generator or self.np_random).random()
        self.options = options
        return np.array([self.cue, 1], np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float(action), self.ends, False, {}


def test_every_reset_has_the_seed_of_its_episode():
    env = SeededEnv(Recalling(), row=2, seed=5)
    found = [env.reset()[0][0] for _ in range(2)]
    found += [env.reset(seed=8, options={"first_env": 4, "hard": True})[0][0]]
    assert env.unwrapped.options == {"hard": True}
    found += [env.reset()[0][0]]
    episodes = (5, 2, 0), (5, 2, 1), (8, 6, 0), (8, 6, 1)
    drawn = [np.random.default_rng(episode_seed(*each)).random() for each in episodes]
    np.testing.assert_allclose(found, drawn, rtol=1e-6)


@pytest.mark.parametrize("generator", [None, np.random.default_rng(0)])
def test_what_was_shown_long_ago_is_compared_too(generator):
    env = SingleEnvs(lambda: Recalling(generator), 2, seed=0)
    env.reset()
    actions = np.random.default_rng(0).integers(0, 2, (2, 9))
    for step in actions.T:
        env.step(step)
    running = env.running()
    assert env.replay(running, list(actions)) == (generator is None)
    assert not env.replay(running, list(1 - actions))


def test_an_episode_that_ends_when_it_is_played_again_is_another(monkeypatch):
    env = SingleEnvs(Recalling, 1, seed=0)
    env.reset()
    env.step(np.zeros(1, np.int64))
    running, actions = env.running(), [np.zeros(1, np.int64)]
    assert env.replay(running, actions)
    monkeypatch.setattr(Recalling, "ends", True)
    assert not env.replay(running, actions)
