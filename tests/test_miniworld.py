import sys

import gymnasium
import numpy as np
import pytest

from envs import miniworld
from tests.agents import small_config
from utils.errors import UserError
from utils.seeding import episode_seed

pytestmark = [pytest.mark.usefixtures("opengl"), pytest.mark.slow]


@pytest.mark.slow
def test_every_registered_task_is_named():
    registered = {name for name in gymnasium.registry if name.startswith("MiniWorld-")}
    assert set(miniworld.MiniWorld().names()) == registered


def test_images_are_miniworlds_own_with_channels_first():
    config = small_config(env="MiniWorld-Hallway-v0", n_envs=1)
    images, _ = miniworld.MiniWorld().make(config, 0).reset(seed=0)
    plain, _ = gymnasium.make("MiniWorld-Hallway-v0").reset(seed=episode_seed(0, 0, 0))
    np.testing.assert_array_equal(images[0], plain.transpose(2, 0, 1))


def test_missing_opengl_is_a_users_error_that_names_the_packages(monkeypatch):
    monkeypatch.delitem(sys.modules, "miniworld")
    monkeypatch.setattr(sys, "meta_path", [NoOpenGL()])
    with pytest.raises(UserError, match=r'Library "EGL" not found.*apt-get install libegl1'):
        miniworld.MiniWorld().make(small_config(env="MiniWorld-Sign-v0"), 0)


class NoOpenGL:
    def find_spec(self, name, path=None, target=None):
        raise ImportError('Library "EGL" not found.')
