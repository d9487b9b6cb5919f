"""EnvPool's running episodes are played again by resets and actions alone."""

import numpy as np
import pytest

from envs import SUITES, envpool_vector, make_vector_env
from envs.envpool_vector import DEPEND_ON_STEPS, EnvPoolVectorEnv, pool_tasks
from envs.episodes import checksum
from envs.vector import EpisodeStatistics
from tests.agents import small_config

if not pool_tasks():
    pytest.skip("EnvPool's environments are tested", allow_module_level=True)

TASKS = [name for name in pool_tasks() if name.startswith(("MiniGrid-", "BabyAI-"))]
TASKS += [key for key in SUITES if SUITES[key] == "envs.envpool_vector:Procgen"]
KEY_CORRIDOR, DOOR = "MiniGrid-KeyCorridorS3R1-v0", "MiniGrid-GoToDoor-5x5-v0"


def made(task, n_envs=3, seed=9):
    env = make_vector_env(small_config(env=task, n_envs=n_envs), seed).env
    return EpisodeStatistics(env, task)


def random_actions(env, n_steps, seed):
    shape = n_steps, env.num_envs
    return np.random.default_rng(seed).integers(0, env.single_action_space.n, shape)


def played(task, n_resets=12, n_steps=20):
    """Return environments in the middle of episodes; many have begun before and few have ended."""
    env = made(task)
    env.reset(seed=4, options={"first_env": 3})
    for number in range(n_resets):
        for actions in random_actions(env, n_steps, number):
            env.step(actions)
        if number < n_resets - 1:
            env.reset()
    return env


def go_on_alike(one, other, n_steps=60):
    return all(
        checksum(one.step(actions)[:4]) == checksum(other.step(actions)[:4])
        for actions in random_actions(one, n_steps, 99)
    )


@pytest.mark.slow
@pytest.mark.quick(KEY_CORRIDOR, "MiniGrid-Fetch-5x5-N2-v0", "BabyAI-BossLevel-v0", "maze")
@pytest.mark.parametrize("task", TASKS)
def test_episodes_are_played_again_but_where_more_than_resets_decides(task, monkeypatch):
    env = played(task)
    state, other = env.state_dict(), made(task, seed=1)
    if not task.startswith(DEPEND_ON_STEPS):
        assert other.load_state_dict(state)
        assert go_on_alike(env, other)
        return
    assert not other.load_state_dict(state)
    monkeypatch.setattr(envpool_vector, "DEPEND_ON_STEPS", ("no task",))
    assert not (other.load_state_dict(state) and go_on_alike(env, other))


@pytest.mark.parametrize("task", ["MiniGrid-Dynamic-Obstacles-5x5-v0", "MiniGrid-Fetch-5x5-N2-v0"])
def test_first_episodes_are_played_again_everywhere(task):
    env, other = made(task, 1), made(task, 1, seed=1)
    env.reset(seed=4)
    env.step(np.array([0]))
    assert other.load_state_dict(env.state_dict())
    assert go_on_alike(env, other)


def test_episodes_that_begin_or_go_on_otherwise_are_noticed(caplog):
    env = played(DOOR)
    state = env.state_dict()
    wrong_ends = {"resets": state["running"]["resets"][::-1], "seed": 5}
    wrong_ends |= {"checksums": [0, *state["running"]["checksums"][1:]]}
    for name, value in wrong_ends.items():
        changed = state | {"running": state["running"] | {name: value}}
        assert not made(DOOR).load_state_dict(changed), name
    assert len(caplog.messages) == len(wrong_ends)
    turned = state | {"actions": (state["actions"] + 1) % 7}
    assert not made(DOOR).load_state_dict(turned)


@pytest.mark.parametrize(
    "resets",
    [[0, 1, 1], [-1, 1, 1], [10**12, 1, 1], [10**5000, 1, 1], [1, 1], [1, 1, 1.0], [1, 1, True], 3],
)
def test_a_received_number_of_resets_is_refused_before_any(resets, monkeypatch):
    env = made(KEY_CORRIDOR)
    env.reset()
    state = env.state_dict()
    state["running"]["resets"] = resets
    monkeypatch.setattr(EnvPoolVectorEnv, "_begin_next", None)
    with pytest.raises(ValueError, match=r"running\.resets"):
        env.load_state_dict(state)


def test_episodes_too_far_away_are_not_saved(monkeypatch):
    env = made(KEY_CORRIDOR)
    monkeypatch.setattr(envpool_vector, "MOST_RESETS", 6)
    env.reset(seed=0)
    env.reset()
    assert env.state_dict()["running"]["resets"] == [2, 2, 2]
    env.reset()
    assert env.state_dict() == {"resumable": False}


def test_a_run_that_gymnasium_played_goes_on_with_new_episodes():
    config = small_config(env="BabyAI-GoToObjS4-v0", n_envs=2)
    before, now = make_vector_env(config, 1, drawn=True), make_vector_env(config, 1)
    before.reset()
    assert not now.load_state_dict(before.state_dict())
