from types import SimpleNamespace

import numpy as np
import pytest

from envs import SUITES, envpool_vector
from utils.errors import UserError

pytestmark = pytest.mark.slow

if not envpool_vector.pool_tasks():
    pytest.skip("Procgen is played by envpool", allow_module_level=True)


def make(game, n_envs=2, seed=0):
    return envpool_vector.Procgen().make(SimpleNamespace(env=game, n_envs=n_envs), seed)


GAMES = [key for key in SUITES if SUITES[key] == "envs.envpool_vector:Procgen"]


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_every_memory_game_plays(game):
    env = make(game)
    images, _ = env.reset(seed=1)
    assert images.shape == (2, 3, 64, 64)
    assert images.dtype == np.uint8
    assert env.single_action_space.n == 15
    actions = np.random.default_rng(0).integers(0, 15, (30, 2))
    following = [env.step(step)[0] for step in actions]
    assert (following[-1] != images).any()


def test_procgen_without_qt_is_refused_in_one_line(monkeypatch):
    """As EnvPool refuses it where neither the system nor a package has Qt."""

    def refuse(*_, **options):
        raise ImportError("EnvPool Procgen requires the system Qt 5 runtime")

    monkeypatch.setattr(envpool_vector, "open_pool", refuse)
    with pytest.raises(UserError, match=r"^env: 'maze' needs Qt 5.* pip install PyQt5-Qt5.*$"):
        make("maze")


def test_channels_come_first():
    images, _ = make("maze", n_envs=4).reset(seed=0)
    smooth_rows = np.abs(np.diff(images.astype(int), axis=2)).mean()
    across_channels = np.abs(np.diff(images.astype(int), axis=1)).mean()
    assert smooth_rows < across_channels


def test_levels_are_played_in_memory_mode_from_all_there_are():
    config = envpool_vector.open_procgen("heist", [3, 4]).config
    assert (config["env_name"], config["distribution_mode"]) == ("heist", 10)
    assert (config["num_levels"], config["start_level"]) == (0, 0)


def test_resetting_an_ended_game_at_once_skips_no_level():
    """EnvPool left to itself, and reset right after each last step, play the same levels."""
    left_alone, reset_at_once = (envpool_vector.open_procgen("maze", [3]) for _ in range(2))
    levels = ([left_alone.reset()[1]["level_seed"][0]], [reset_at_once.reset()[1]["level_seed"][0]])
    stay = np.array([4])
    for _ in range(1100):
        levels[0].append(left_alone.step(stay)[4]["level_seed"][0])
        _, _, terminated, truncated, info = reset_at_once.step(stay)
        levels[1].append(info["level_seed"][0])
        if (terminated | truncated)[0]:
            levels[1].append(reset_at_once.reset(np.array([0]))[1]["level_seed"][0])
    different = [list(dict.fromkeys(seeds)) for seeds in levels]
    assert different[0] == different[1]
    assert len(different[0]) == 3
