"""Given vector environments are checked before an agent is trained in them."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envs import checked_vector_env, make_vector_env
from envs.any_gymnasium import vector_of
from tests.any_envs import Sampled
from utils.errors import UserError
from utils.settings import load_config

SAME_STEP = AutoresetMode.SAME_STEP


def vector(kind="vector", mode=SAME_STEP, **more):
    return SyncVectorEnv([functools.partial(Sampled, kind, **more)], autoreset_mode=mode)


@pytest.mark.parametrize("kind", ["vector", "image, channels first", "one of three, from 5 on"])
def test_an_environment_that_agents_know_is_returned_as_it_is(kind):
    env = vector(kind)
    assert checked_vector_env(env) is env


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_another_autoreset_mode_is_refused_with_what_to_write(mode):
    with pytest.raises(UserError, match=f"SyncVectorEnv has autoreset mode {mode.name}") as error:
        checked_vector_env(vector(mode=mode))
    assert 'vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}' in str(error.value)


def test_what_gymnasium_makes_by_default_is_refused_and_what_is_advised_is_taken():
    with pytest.raises(UserError, match="CartPoleVectorEnv has autoreset mode NEXT_STEP"):
        checked_vector_env(gymnasium.make_vec("CartPole-v1", num_envs=2))
    advised = gymnasium.make_vec(
        "CartPole-v1", 2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": SAME_STEP}
    )
    assert checked_vector_env(advised) is advised


def test_one_without_a_mode_is_refused():
    env = vector()
    env.metadata = {}
    with pytest.raises(UserError, match="autoreset mode none"):
        checked_vector_env(env)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("image, channels last", r"\(6, 7, 3\).* is to be .*\(3, 6, 7\)"),
        ("grey image", r"is to be .*\(1, 5, 6\)"),
        ("table", r"is to be Box\(-inf, inf, \(6,\), float32\)"),
        ("nested", "is to be Dict"),
    ],
)
def test_observations_that_are_not_in_their_form_are_refused(kind, wanted):
    with pytest.raises(UserError, match=wanted):
        checked_vector_env(vector(kind))


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (spaces.Discrete(3, start=1), r"Discrete\(3, start=1\) is to be Discrete\(3\)"),
        (spaces.MultiDiscrete([2, 2]), r"is to be Discrete\(4\)"),
        (spaces.Box(-1, 1, (2,), np.float32), "cannot be used"),
    ],
)
def test_other_actions_than_discrete_ones_are_refused(actions, words):
    with pytest.raises(UserError, match=words):
        checked_vector_env(vector(actions=actions))


@pytest.mark.parametrize("thing", [None, "CartPole-v1", gymnasium.make("CartPole-v1"), Sampled])
def test_what_is_no_vector_environment_is_refused(thing):
    with pytest.raises(UserError, match=r"is given, not a gymnasium\.vector\.VectorEnv"):
        checked_vector_env(thing)


def test_a_suite_is_checked_too(monkeypatch):
    monkeypatch.setattr("envs.random_maze.make", lambda *_: vector(mode=AutoresetMode.NEXT_STEP))
    with pytest.raises(UserError, match="NEXT_STEP"):
        make_vector_env(load_config(None, ["env=RandomMaze-v0"]), 0)


def test_what_single_environments_become_passes():
    env = vector_of(functools.partial(Sampled, "nested"), 2, 0)
    assert checked_vector_env(env) is env
