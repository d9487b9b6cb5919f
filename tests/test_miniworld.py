import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from envs import miniworld
from envs.episodes import episode_seed
from envs.vector import EpisodeStatistics
from utils.errors import UserError

SIGN = "MiniWorld-Sign-v0"
SIGN_TIME_LIMIT = 20
TURN_LEFT = 0

pytestmark = pytest.mark.usefixtures("opengl")


def make(n_envs, seed=0, task=SIGN):
    return miniworld.make(SimpleNamespace(env=task, n_envs=n_envs), seed)


@pytest.mark.slow
def test_every_registered_task_is_named():
    registered = {name for name in gymnasium.registry if name.startswith("MiniWorld-")}
    assert set(miniworld.names()) == registered


@pytest.mark.slow
def test_two_environments_keep_the_contract_in_their_processes():
    env = make(2, seed=5)
    alone = make(1)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert env.single_observation_space == gymnasium.spaces.Box(0, 255, (3, 60, 80), np.uint8)
    images, _ = env.reset()
    again, _ = env.reset(seed=5)
    np.testing.assert_array_equal(images, again)
    first, _ = alone.reset(seed=5, options={"first_env": 1})
    np.testing.assert_array_equal(images[1], first[0])
    for step in range(1, 2 * SIGN_TIME_LIMIT + 1):
        images, _, terminated, truncated, info = env.step(np.full(2, TURN_LEFT))
        expected = alone.step(np.full(1, TURN_LEFT))
        np.testing.assert_array_equal(images[1], expected[0][0])
        assert env.observation_space.contains(images)
        assert not terminated.any()
        assert truncated.all() == (step % SIGN_TIME_LIMIT == 0)
    assert info["_final_obs"].all()
    np.testing.assert_array_equal(info["final_obs"][1], expected[4]["final_obs"][0])
    assert (info["final_obs"][1] != images[1]).any()
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_saved_episode_goes_on_to_the_bit(n_envs):
    first, second = (EpisodeStatistics(make(n_envs, seed), SIGN) for seed in (0, 1))
    actions = np.random.default_rng(0).integers(0, first.single_action_space.n, (70, n_envs))
    for env in (first, second):
        env.reset()
    for step in actions[:33]:
        first.step(step)
    assert second.load_state_dict(first.state_dict())
    for step in actions[33:]:
        for one, other in zip(first.step(step)[:4], second.step(step)[:4], strict=True):
            np.testing.assert_array_equal(one, other)
    for env in (first, second):
        env.close()


def test_images_are_miniworlds_own_with_channels_first():
    images, _ = make(1, task="MiniWorld-Hallway-v0").reset(seed=0)
    plain, _ = gymnasium.make("MiniWorld-Hallway-v0").reset(seed=episode_seed(0, 0, 0))
    np.testing.assert_array_equal(images[0], plain.transpose(2, 0, 1))


def test_missing_opengl_is_a_users_error_that_names_the_packages(monkeypatch):
    monkeypatch.delitem(sys.modules, "miniworld")
    monkeypatch.setattr(sys, "meta_path", [NoOpenGL()])
    with pytest.raises(UserError, match=r'Library "EGL" not found.*apt-get install libegl1'):
        make(2)


class NoOpenGL:
    def find_spec(self, name, path=None, target=None):
        raise ImportError('Library "EGL" not found.')
