"""Given vector environments are checked before an agent is trained in them."""

import functools
import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envs import checked_vector_env, make_vector_env
from envs.any_gymnasium import vector_of
from tests.any_envs import Sampled
from tests.bad_inputs.harness import in_one_line
from utils.errors import UserError
from utils.settings import load_config

SAME_STEP = AutoresetMode.SAME_STEP


def vector(kind="vector", mode=SAME_STEP, **more):
    return SyncVectorEnv([functools.partial(Sampled, kind, **more)], autoreset_mode=mode)


def advised():
    made = {"vector_kwargs": {"autoreset_mode": SAME_STEP}, "vectorization_mode": "sync"}
    return gymnasium.make_vec("CartPole-v1", 2, **made)


@pytest.mark.parametrize(
    "make",
    [
        vector,
        functools.partial(vector, "image, channels first"),
        functools.partial(vector, "one of three, from 5 on"),
        functools.partial(vector_of, functools.partial(Sampled, "nested"), 2, 0),
        advised,
    ],
)
def test_an_environment_that_agents_know_is_returned_as_it_is(make):
    env = make()
    assert checked_vector_env(env) is env


OTHER_ACTIONS = {"is to be Discrete(3)": spaces.Discrete(3, start=1)}
OTHER_ACTIONS |= {"is to be Discrete(4)": spaces.MultiDiscrete([2, 2])}
OTHER_ACTIONS |= {"cannot be used": spaces.Box(-1, 1, (2,), np.float32)}
WANTED = {
    "image, channels last": "(3, 6, 7)",
    "grey image": "(1, 5, 6)",
    "table": "is to be Box(-inf, inf, (6,), float32)",
    "nested": "is to be Dict",
}
REFUSED = [
    *((functools.partial(vector, actions=space), said) for said, space in OTHER_ACTIONS.items()),
    *((functools.partial(vector, kind), said) for kind, said in WANTED.items()),
    *((functools.partial(vector, mode=m), m.name) for m in AutoresetMode if m != SAME_STEP),
    (lambda: gymnasium.make_vec("CartPole-v1", num_envs=2), "autoreset mode NEXT_STEP"),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED)
def test_what_agents_do_not_know_is_refused_with_its_form(make, reason):
    with in_one_line(re.escape(reason)) as caught:
        checked_vector_env(make())
    if "NEXT_STEP" in reason:
        assert 'vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}' in str(caught.value)


@pytest.mark.parametrize("thing", [None, "CartPole-v1", gymnasium.make("CartPole-v1"), Sampled])
def test_what_is_no_vector_environment_is_refused(thing):
    with pytest.raises(UserError, match=r"is given, not a gymnasium\.vector\.VectorEnv"):
        checked_vector_env(thing)


def test_a_suite_is_checked_too(monkeypatch):
    monkeypatch.setattr("envs.random_maze.make", lambda *_: vector(mode=AutoresetMode.NEXT_STEP))
    with pytest.raises(UserError, match="NEXT_STEP"):
        make_vector_env(load_config(None, ["env=RandomMaze-v0"]), 0)
