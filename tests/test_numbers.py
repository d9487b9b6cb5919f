"""Numbers, pictures and streams of foreign environments: right, refused or told."""

import functools
import os
import random
import re
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from torch.utils._pytree import tree_map

import helm
from envs import any_gymnasium, make_vector_env, notices
from envs.any_gymnasium import check_first_steps, checked_vector, vector_of
from envs.spaces import adapt_observation_space
from tests.any_envs import Masked, Sampled, Showing, Unseeded
from tests.runs import outcome, same
from utils.errors import EnvFault, UserError
from utils.given_settings import load_config

TINY = {"model": "CNN", "device": "cpu", "n_steps": 512, "n_envs": 2, "n_rollout_steps": 64}
TINY |= {"showcase_minutes": None}


@pytest.fixture(autouse=True)
def nothing_said_nor_set():
    notices.forget()
    n_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(n_threads)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)


class Vector(VectorEnv):
    """Two environments that show the same and pay the same, without a buffer of their own."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, space, shown, paid):
        self.num_envs, self.shown, self.paid = 2, np.stack([shown] * 2), np.array([paid] * 2)
        self.single_observation_space, self.single_action_space = space, spaces.Discrete(2)
        self.observation_space = batch_space(space, 2)
        self.action_space = batch_space(self.single_action_space, 2)

    def reset(self, *, seed=None, options=None):
        return self.shown, {}

    def step(self, actions):
        return self.shown, self.paid, np.zeros(2, bool), np.zeros(2, bool), {}


def tried(kind, space, shown, paid=1.0):
    """Play the first steps of a single environment or of a vector that show and pay this."""
    if kind == "vector":
        return checked_vector(Vector(space, shown, paid), "Mine")
    return check_first_steps(lambda: Showing(space, lambda env: shown, paid), "Mine")


def box(dtype, shape=(2,)):
    kind = np.dtype(dtype)
    low, high = -np.inf, np.inf
    if kind.kind != "f":
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return spaces.Box(low, high, shape, kind.type)


KINDS = pytest.mark.parametrize("kind", ["single", "vector"])
WRONG = {  # the space, what is shown, and what it would become
    "int8": (box("i1"), np.full(2, 300), "300 .*44 in int8"),
    "bytes": (box("u1"), np.full(2, 300, np.uint16), "300 .*44 in uint8"),
    "a picture": (box("u1", (8, 8, 3)), np.full((8, 8, 3), 300, np.uint16), "44 in uint8"),
    "uint16": (box("u2"), np.full(2, 70_000, np.uint32), "70000 .*4464 in uint16"),
    "int64": (box("i8"), np.full(2, 2**63 + 5, np.uint64), "-9223372036854775803 in int64"),
    "float64": (box("f8"), np.full(2, 1e300), r"1e\+300 .*inf in float32"),
    "a table": (box("f8", (2, 2)), np.full((2, 2), -1e39), r"-1e\+39 .*-inf in float32"),
    "float32": (box("f4"), np.full(2, 1e300), r"1e\+300 .*inf in float32"),
    "float16": (box("f2"), np.full(2, 1e5, np.float32), "100000.* inf in float16"),
    "whole in float16": (box("f2"), np.full(2, 100_000), "100000 .*inf in float16"),
    "in a dictionary": (spaces.Dict(a=box("i1")), {"a": np.full(2, 300)}, "300 .*44 in int8"),
}


@KINDS
@pytest.mark.parametrize("case", WRONG)
def test_a_number_that_wraps_or_turns_infinite_is_a_fault(case, kind):
    space, shown, words = WRONG[case]
    if kind == "vector" and isinstance(shown, dict):
        return
    with pytest.raises(UserError, match=f"env: 'Mine': .*shows .*{words}"):
        tried(kind, space, shown)


LOSES = {
    "int64": (box("i8"), np.full(2, 2**24 + 1), "16777217 .* 16777216 in float32"),
    "a negative one": (box("i4"), np.array([1, -(2**24) - 1], np.int32), "-16777217 .*float32"),
    "a table": (box("i8", (2, 2)), np.full((2, 2), 2**53 + 1), "9007199254740993 .*float32"),
    "uint64": (box("u8"), np.full(2, 2**63 - 1, np.uint64), "9223372036854775807 .*float32"),
    "a clock": (box("f8"), np.full(2, 1.7e9 + 0.25), "1700000000.25 .*1700000000.0 in float32"),
    "float16": (box("f2"), np.full(2, 2049.0), "2049.0 .*2048.0 in float16"),
}


@KINDS
@pytest.mark.parametrize("case", LOSES)
def test_a_number_that_loses_digits_is_told_once(case, kind, caplog):
    space, shown, words = LOSES[case]
    tried(kind, space, shown)
    (line,) = [each for each in caplog.messages if "reset() shows" in each]
    assert re.search(words, line)


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("case", ["int8", "uint16", "a picture", "in a dictionary"])
def test_a_vector_of_single_ones_does_not_wrap_their_numbers_first(case, at):
    space, shown, words = WRONG[case]

    def show(env):  # wrong in one step of an episode alone
        return shown if env.n_steps == at else tree_map(np.zeros_like, shown)

    for _ in range(2):  # a given one may be used again
        with pytest.raises(UserError, match=f"env: 'Mine': .*{words}"):
            checked_vector(SyncVectorEnv([lambda: Showing(space, show)] * 2), "Mine")


FINE = {
    "whole in float32": (box("i8"), np.array([2**24, -(2**24)])),
    "far, and exact": (box("i8"), np.full(2, 2**40)),
    "fractions": (box("f8"), np.full(2, 0.1)),
    "large, without units": (box("f8"), np.full(2, 1e38)),
    "small ones of a wide dtype": (box("i1"), np.full(2, 100)),
    "bools": (spaces.Box(0, 1, (2,), cast(Any, bool)), np.ones(2, bool)),
    "float16": (box("f2"), np.full(2, 6e4, np.float16)),
    "nothing": (spaces.Dict(a=box("f8"), b=box("i8", (0,))), None),
}


@pytest.mark.parametrize("case", FINE)
def test_numbers_that_can_be_kept_are_not_spoken_of(case, caplog):
    space, shown = FINE[case]
    if shown is None:
        shown = {"a": np.ones(2), "b": np.ones(0, np.int64)}
    tried("single", space, shown)
    assert caplog.messages == []


@KINDS
@pytest.mark.parametrize("paid", [1e39, -1e308, np.inf])
def test_a_reward_that_float32_has_not_is_a_fault(paid, kind):
    with pytest.raises(UserError, match=r"env: 'Mine': step\(\) (pays|returned).*(1e\+39|308|inf)"):
        tried(kind, box("f4"), np.ones(2, np.float32), paid)


def test_a_whole_reward_beyond_all_floats_is_a_fault():
    with pytest.raises(UserError, match=r"step\(\) pays 1000.* \(int\).*float32"):
        tried("single", box("f4"), np.ones(2, np.float32), 10**400)


@KINDS
@pytest.mark.parametrize(("paid", "is_told"), [(2**60 + 1, True), (2**60, False), (1e38, False)])
def test_a_reward_that_loses_digits_is_told(paid, is_told, kind, caplog):
    tried(kind, box("f4"), np.ones(2, np.float32), paid)
    assert sum(f"pays {paid}" in line for line in caplog.messages) == is_told


SHAPES = {  # the shape as the space has it: channels and sides as agents see them, and if guessed
    (20, 7, 7): ((20, 7, 7), False),
    (7, 7, 20): ((20, 7, 7), False),
    (3, 5, 5): ((3, 5, 5), False),
    (5, 5, 3): ((3, 5, 5), False),
    (40, 30, 4): ((4, 40, 30), False),
    (1, 40, 30): ((1, 40, 30), False),
    (5, 9, 6): ((5, 9, 6), True),
    (9, 6, 5): ((5, 9, 6), True),
    (5, 9, 5): ((5, 9, 5), True),
    (7, 7, 7): ((7, 7, 7), True),
    (4, 7, 7, 20): ((80, 7, 7), False),
    (4, 2, 9, 6): ((8, 9, 6), True),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_channels_are_found_and_a_guess_is_said(shape, caplog):
    expected, is_guess = SHAPES[shape]
    for _ in range(2):
        assert adapt_observation_space(box("u1", shape)).space.shape == expected
    said = [line for line in caplog.messages if f"{[*shape]} is read as" in line]
    assert len(said) == is_guess


@pytest.mark.parametrize("shape", [(), (4,), (7, 7), (7, 7, 20), (2, 3, 4), (2, 7, 7, 3)])
def test_bytes_with_a_bound_are_numbers_between_their_bounds(shape, caplog):
    caplog.set_level("INFO")
    space = spaces.Box(2, 10, shape, np.uint8)
    seen = adapt_observation_space(space)
    n_numbers = int(np.prod(shape))
    assert seen.space == spaces.Box(0, 1, (n_numbers,), np.float32)
    for value, expected in ((2, 0.0), (4, 0.25), (10, 1.0)):
        batch = seen.convert(np.full((3, *shape), value, np.uint8))
        assert (batch.dtype, batch.shape) == (np.float32, (3, n_numbers))
        assert (batch == expected).all()
    assert sum("no picture" in line for line in caplog.messages) == 1
    with pytest.raises(EnvFault, match="bounds of its space"):
        seen.convert(np.full(shape, 11, np.uint8))


def test_bytes_keep_their_own_bounds_one_by_one_and_a_constant_is_zero():
    low, high = np.array([0, 5, 7], np.uint8), np.array([1, 15, 7], np.uint8)
    seen = adapt_observation_space(spaces.Box(low, high, dtype=np.uint8))
    np.testing.assert_array_equal(seen.convert(np.array([1, 10, 7], np.uint8)), [1, 0.5, 0])


@pytest.mark.parametrize(("largest", "is_told"), [(10, True), (31, True), (32, False)])
def test_codes_that_pass_for_a_picture_are_told(largest, is_told, caplog):
    space = spaces.Dict(a=box("u1", (7, 7, 3)), b=box("f4"))

    def show(env):
        return {"a": np.full((7, 7, 3), largest, np.uint8), "b": np.zeros(2, np.float32)}

    check_first_steps(lambda: Showing(space, show), "Mine")
    said = [line for line in caplog.messages if "nearly black" in line]
    assert len(said) == is_told
    assert all("'Mine': a" in line and f" {largest} of 255" in line for line in said)


@pytest.mark.parametrize(("bound", "largest", "is_told"), [(255, 1, True), (1, 1, False)])
@pytest.mark.parametrize("kind", [spaces.Dict, spaces.Tuple])
def test_codes_that_pass_for_fractions_of_bytes_are_told(kind, bound, largest, is_told, caplog):
    codes, other = spaces.Box(0, bound, (980,), np.uint8), box("f4")
    is_dict = kind is spaces.Dict

    def show(env):
        shown = np.full(980, largest, np.uint8), np.zeros(2, np.float32)
        return dict(zip("ab", shown, strict=True)) if is_dict else shown

    space = kind(a=codes, b=other) if is_dict else kind((codes, other))
    check_first_steps(lambda: Showing(space, show), "Mine")
    said = [line for line in caplog.messages if "fractions of 255" in line]
    assert len(said) == is_told
    assert all(f"'Mine': {'a' if is_dict else 0}" in each and " 1 of 255" in each for each in said)


def play(env, n_steps):
    for _ in range(n_steps):
        env.step(np.zeros(2, int))


def drawing(draw, at=0):
    """Return an environment that draws in its steps from number `at` on."""
    return lambda: Showing(show=lambda env: (env.n_calls >= at and draw(), NUMBER)[1])


NUMBER = np.ones(2, np.float32)
MOVES = {
    "torch's": (lambda: torch.rand(3), lambda: torch.manual_seed(0)),
    "NumPy's": (lambda: np.random.random(3), lambda: np.random.seed(0)),
    "Python's": (random.random, lambda: random.seed(0)),
}


@pytest.mark.parametrize("whose", MOVES)
@pytest.mark.parametrize("number", [0, 1])
def test_a_stream_that_an_environment_moves_late_is_told_and_the_agents_stays(
    whose, number, caplog, monkeypatch
):
    does = MOVES[whose][number]
    random.seed(5)
    np.random.seed(5)  # a seed that is set again moves nothing
    env = vector_of(lambda: Showing(does=does, at=100), 2, seed=0)
    env.reset(seed=0)
    agents = torch.get_rng_state()
    play(env, 99)
    assert caplog.messages == []
    play(env, 100)
    (line,) = caplog.messages
    assert line.startswith(f"env: 'Showing': {whose} global random stream")
    assert torch.equal(torch.get_rng_state(), agents)


@pytest.mark.slow
def test_an_environment_that_draws_from_torch_leaves_the_agents_run_as_it_is(in_empty_folder):
    drawn = []
    draws = {
        "none": lambda: None,
        "draws": lambda: drawn.append(torch.rand(1).item()),
        "seeds": lambda: torch.manual_seed(0),
    }
    runs = [outcome(helm.train(TINY, drawing(draws[name]), run_id=name)) for name in draws]
    assert all(same(run, runs[0]) for run in runs)
    assert len(set(drawn)) == len(drawn)  # nothing is drawn twice


def test_what_an_environment_draws_from_torch_follows_from_the_seed_of_its_reset():
    def played(seed, first=0):
        drawn = []
        env = vector_of(drawing(lambda: drawn.append(torch.rand(1).item())), 2, seed=0)
        torch.manual_seed(
            int(np.random.default_rng().integers(1000))
        )  # the agent's decides nothing
        env.reset(seed=seed, options={"first_env": first})
        env.step(np.zeros(2, int))
        return drawn

    assert played(1) == played(1)
    assert not {*played(1)} & {*played(2)}
    assert not {*played(1)} & {*played(1, first=2)}
    torch.manual_seed(1)
    assert played(1)[0] != torch.rand(1).item()  # nor is it the agent's own


SETS = {
    "the working directory": lambda: os.chdir("/"),
    "torch's threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "torch's gradients": lambda: torch.set_grad_enabled(False),
}


def torch_has():
    made = torch.empty(0)
    return made.dtype, made.device, torch.is_grad_enabled(), torch.get_num_threads(), os.getcwd()


@pytest.mark.quick("the working directory-single", "torch's threads-vector")
@KINDS
@pytest.mark.parametrize("what", SETS)
def test_what_an_environment_sets_of_the_process_is_put_back_and_told(what, kind):
    before = torch_has()
    late = functools.partial(Showing, does=SETS[what], at=3000)
    env = vector_of(late, 2, seed=0)
    if kind == "vector":
        env = checked_vector(SyncVectorEnv([late] * 2), "Mine")
    env.reset(seed=0)
    with pytest.raises(EnvFault, match=f"sets {what} to "):
        play(env, 3000)
    assert torch_has() == before
    for make in (functools.partial(Showing, does=SETS[what]), lambda: (SETS[what](), Showing())[1]):
        with pytest.raises(UserError, match=f"env: 'Mine':? sets {what} to "):
            check_first_steps(make, "Mine")
        assert torch_has() == before
    with pytest.raises(UserError, match=f"sets {what} to "):
        helm.train(TINY, lambda: (SETS[what](), Showing())[1])
    assert torch_has() == before


OPTIONS = {"length": 3}
NEEDY = functools.partial(Showing, needs=OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "vector", "function of a vector"])
def test_options_are_given_at_every_reset(kind, in_empty_folder):
    sync = functools.partial(SyncVectorEnv, [NEEDY] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    env = {"function": NEEDY, "vector": sync(), "function of a vector": sync}[kind]
    settings = TINY | {"n_steps": 64, "n_rollout_steps": 32, "reset_options": OPTIONS}
    run = helm.train(settings, env, run_id="a")
    if kind == "function":
        with helm.load(run, env) as player:
            player.reset(seed=0)
    with pytest.raises(UserError, match="options are None"):
        helm.train(settings | {"reset_options": {}}, env)


def test_options_are_given_where_an_environment_is_tried_for_drawing(caplog):
    caplog.set_level("INFO")
    given = ['env_args={"needs": {"a": 1}}', 'reset_options={"a": 1}', "model=CNN", "n_envs=2"]
    config = load_config(None, ["env=tests.any_envs:Showing-v0", *given])
    env = make_vector_env(config, 0, drawn=True)
    env.reset(seed=0)
    play(env, 12)
    assert "it has no render mode rgb_array" in caplog.text


def test_options_that_cannot_reach_every_reset_are_refused():
    env = AsyncVectorEnv([Showing], autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        with pytest.raises(UserError, match=r"reset_options: .*AsyncVectorEnv.* Give"):
            checked_vector(env, "Mine", OPTIONS)
        checked_vector(env, "Mine")
    finally:
        env.close()


def test_a_vector_environment_of_its_own_class_is_given_the_options():
    given = []

    class Own(Vector):
        def reset(self, *, seed=None, options=None):
            given.append(options)
            return super().reset()

    env = checked_vector(Own(box("f4"), np.ones(2, np.float32), 1.0), "Mine", OPTIONS)
    env.reset(seed=1, options={"first_env": 2})
    assert given[0] == OPTIONS
    assert given[-1] == OPTIONS | {"first_env": 2}


class Sparse(Sampled):
    """Pays at the end of an episode alone."""

    def step(self, action):
        shown, _, ended, *more = super().step(action)
        return shown, float(ended), ended, *more


class Reseeded(Sampled):
    """Its seed decides everything; without a seed it begins anywhere."""

    def reset(self, *, seed=None, options=None):
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        return super().reset(seed=seed)


REMEMBERS = {
    "NormalizeObservation": (lambda: NormalizeObservation(Sampled()), True),
    "NormalizeReward": (lambda: NormalizeReward(Sampled()), True),
    "NormalizeReward, at the end": (lambda: NormalizeReward(Sparse()), True),
    "unseeded": (Unseeded, True),
    "NumPy's stream": (lambda: Showing(show=lambda _: np.random.random(2).astype("f4")), True),
    "nothing": (Sampled, False),
    "nothing without a seed": (Reseeded, False),
    "CartPole": (lambda: gymnasium.make("CartPole-v1"), False),
    "a mask": (Masked, False),
}


@KINDS
@pytest.mark.parametrize("case", REMEMBERS)
def test_an_environment_that_remembers_is_told(case, kind, caplog, monkeypatch):
    monkeypatch.setattr(any_gymnasium, "SECONDS", 60)  # so many steps on any machine
    monkeypatch.setattr(any_gymnasium, "MOST_STEPS", 20)
    make, is_told = REMEMBERS[case]
    if kind == "vector":
        checked_vector(SyncVectorEnv([make] * 2), "Mine")
    else:
        check_first_steps(make, "Mine")
    said = [line for line in caplog.messages if "remembers" in line]
    assert len(said) == is_told
    assert all("'Mine'" in line and "normalize_observations=true" in line for line in said)


class Scalars(Sampled):
    """Pays and ends by `kind` of a number, whatever stands for one."""

    kind: Any = np.array

    def step(self, action):
        shown, _, ended, _, info = super().step(action)
        return shown, self.kind(0.25), self.kind(ended), self.kind(0), info


@pytest.mark.parametrize("kind", [np.array, np.float32, float])
def test_any_scalar_is_a_reward_and_an_end(kind):
    env = vector_of(type("Other", (Scalars,), {"kind": staticmethod(kind)}), 2, seed=0)
    env.reset()
    paid, ends = zip(*(env.step(np.zeros(2, int))[1:3] for _ in range(7)), strict=True)
    assert np.array_equal(paid, np.full((7, 2), 0.25))
    assert np.array_equal(np.array(ends)[:, 0], [False] * 5 + [True, False])


def test_a_vector_may_end_by_zeros_and_ones():
    class Whole(Vector):
        def step(self, actions):
            shown, paid, *ends, info = super().step(actions)
            return shown, paid, *(each.astype(int) for each in ends), info

    env = checked_vector(Whole(box("f4"), np.zeros(2, np.float32), 1.0), "Mine")
    env.reset(seed=0)
    assert env.step(np.zeros(2, int))[2].dtype == bool


class Stuck(Sampled):
    def close(self):
        raise OSError("cannot close")


def test_an_environment_that_cannot_be_closed_is_told_before_anything_is_learned(in_empty_folder):
    with pytest.raises(UserError, match=r"env: .*Stuck.* raised OSError: cannot close"):
        helm.train(TINY, Stuck)
