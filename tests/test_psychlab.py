import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from envs import psychlab
from envs.psychlab import ACTIONS, PsychlabEnv
from tests.fake_lab import N_DECISIONS
from utils.errors import UserError


def make(n_envs=1, seed=0):
    return psychlab.Psychlab().make(SimpleNamespace(env=psychlab.NAME, n_envs=n_envs), seed)


def test_the_actions_are_the_first_eleven_of_the_publication(lab):
    assert ACTIONS.shape == (11, 7)
    assert (ACTIONS[[0, 2, 8]] != 0).sum() == 3
    assert (ACTIONS[0, 3], ACTIONS[2, 2], ACTIONS[8, 1]) == (1, -1, 10)
    assert ACTIONS[[4, 6], 0].tolist() == [-10, -60]
    for one, other in ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)):
        np.testing.assert_array_equal(ACTIONS[one], -ACTIONS[other])
    np.testing.assert_array_equal(ACTIONS[10], ACTIONS[4] + ACTIONS[0])
    assert make().single_action_space == gymnasium.spaces.Discrete(11)
    assert psychlab.Psychlab.action_names[10] == "forward left 10"


def test_an_action_is_held_for_four_frames_and_images_are_channel_first(lab):
    env = make()
    assert env.single_observation_space == gymnasium.spaces.Box(0, 255, (3, 80, 80), np.uint8)
    env.reset()
    for number in (0, 6, 10):
        images, rewards, *_ = env.step(np.array([number]))
    assert images.shape == (1, 3, 80, 80)
    assert images.dtype == np.uint8
    assert images[0, 0, 0, 0] == 12
    assert rewards[0] == 1
    (opened,) = lab.opened
    assert opened.seconds == pytest.approx(3 * 4 / 30)
    assert opened.level == "contributed/dmlab30/psychlab_continuous_recognition"
    assert opened.names == ["RGB_INTERLEAVED"]
    assert opened.config == {"width": "80", "height": "80", "fps": "30"}
    assert opened.renderer == "software"
    assert lab.opened[0].actions == [tuple(ACTIONS[i].tolist()) for i in (0, 6, 10)]


def test_an_ended_episode_leaves_its_last_image_and_begins_the_next(lab):
    env = make()
    env.reset()
    for _ in range(N_DECISIONS - 1):
        assert not env.step(np.array([0]))[2].any()
    images, _, terminated, truncated, info = env.step(np.array([0]))
    assert (terminated[0], truncated[0]) == (True, False)
    assert images[0, 0, 0, 0] == 0
    assert info["final_obs"][0][0, 0, 0] == 4 * (N_DECISIONS - 1)
    assert [episode for episode, _ in lab.opened[0].resets] == [0, 0]
    assert len({seed for _, seed in lab.opened[0].resets}) == 2


def test_a_seed_repeats_an_episode(lab):
    env = PsychlabEnv()
    for seed in (3, 4, 3):
        env.reset(seed=seed)
    first, other, again = lab.opened[0].resets
    assert first == again
    assert other != first
    env.close()
    assert lab.opened[0].closed


def test_a_missing_lab_is_a_users_error_that_says_where_help_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(UserError, match=r"needs deepmind_lab.*See docs/how-to/.*#psychlab"):
        make()
