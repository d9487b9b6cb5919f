"""Control tasks that show a part: the kept numbers, and a time limit that is no end."""

import sys
from types import ModuleType

import gymnasium
import mujoco  # noqa: F401  before MUJOCO_GL is a wrong one
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from envs import check_env_name, make_vector_env
from utils.errors import UserError
from utils.given_settings import load_config

SHOWN = {"Pendulum": (2, 1, 1), "Hopper": (5, 6, 3), "HalfCheetah": (8, 9, 6)}
SHOWN |= {"Walker2d": (8, 9, 6), "Ant": (13, 14, 8)}


def made(name, **drawn):
    check_env_name(name)
    return make_vector_env(load_config(None, [f"env={name}", "model=CNN", "n_envs=2"]), 0, **drawn)


def test_pendulum_shows_the_angle_or_its_velocity_and_ends_at_a_limit():
    whole = gymnasium.make_vec("Pendulum-v1", 2, vectorization_mode="sync")
    parts = {kind: made(f"Pendulum{kind}-v0") for kind in "PV"}
    for env in parts.values():
        env.reset(seed=0)
    seeds = [one.np_random_seed for one in parts["P"].unwrapped.envs]
    shown, _ = whole.reset(seed=seeds)
    for t in range(200):
        actions = np.full((2, 1), 0.25, np.float32)
        shown, rewards, *_ = whole.step(2 * actions)
        found = {kind: env.step(actions) for kind, env in parts.items()}
        last = {
            kind: result[0] if t < 199 else np.stack(result[4]["final_obs"])
            for kind, result in found.items()
        }
        np.testing.assert_array_equal(np.concatenate((last["P"], last["V"]), 1), shown)
        np.testing.assert_allclose(found["P"][1], rewards)
    for _, _, terminated, truncated, _ in found.values():
        assert truncated.all()
        assert not terminated.any()


@pytest.mark.parametrize("task", SHOWN)
@pytest.mark.parametrize("kind", "PV")
def test_a_task_shows_as_many_numbers_as_the_documentation_says(task, kind):
    env = made(f"{task}{kind}-v0")
    n_positions, n_velocities, n_numbers = SHOWN[task]
    assert env.single_observation_space.shape == ({"P": n_positions, "V": n_velocities}[kind],)
    assert env.single_action_space.shape == (n_numbers,)
    shown, _ = env.reset(seed=0)
    assert shown.shape == (2, *env.single_observation_space.shape)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ["egl", "no-such-way"])
def test_a_robot_is_drawn_without_a_display_or_says_why_not(way, request, monkeypatch, caplog):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("MUJOCO_GL", way)
    if way == "egl":
        request.getfixturevalue("opengl")
        monkeypatch.delenv("MUJOCO_GL")  # it is found by itself
    with caplog.at_level("INFO"):
        env = made("HopperP-v0", drawn=True)
    env.reset(seed=0)
    assert ("HopperP-v0 is not drawn: RuntimeError: " in caplog.text) == (way != "egl")
    assert env.render_mode == ("rgb_array" if way == "egl" else None)
    if way == "egl":
        assert {picture.shape for picture in env.render()} == {(200, 200, 3)}


def numbered(n_numbers):
    """Return a stand-in for a robot of PyBullet; each number shown is its own index."""
    env, endless = gymnasium.Env(), gymnasium.spaces.Box(-np.inf, np.inf, (n_numbers,))
    env.observation_space, env.action_space = endless, gymnasium.spaces.Box(-1, 1, (3,))
    env.reset = lambda **_: (np.arange(n_numbers, dtype=np.float32), {})
    return env


@pytest.mark.parametrize(
    ("task", "joints_end", "n_numbers"),
    [("Hopper", 14, 15), ("Walker2D", 20, 22), ("Ant", 24, 28), ("HalfCheetah", 20, 26)],
)
def test_a_robot_of_pybullet_shows_the_numbers_of_memory_rl(
    task, joints_end, n_numbers, monkeypatch
):
    name = f"{task}BulletEnv-v0"
    spec = EnvSpec(name, lambda **_: numbered(n_numbers))
    monkeypatch.setitem(gymnasium.registry, name, spec)
    monkeypatch.setitem(sys.modules, "pybullet_envs_gymnasium", ModuleType("no such package"))
    velocities = {3, 4, 5, *range(9, joints_end, 2)}
    for kind, numbers in (("P", {*range(n_numbers)} - velocities), ("V", velocities)):
        shown, _ = made(f"{task}Bullet{kind}-v0").reset(seed=0)
        assert shown.tolist() == 2 * [sorted(numbers)]


def test_a_robot_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pybullet_envs_gymnasium", None)
    with pytest.raises(UserError, match=r"env: 'HopperBulletP-v0' .*pip install pybullet"):
        made("HopperBulletP-v0")
