"""What environments return is checked where it enters: given vectors at the start, all in steps."""

import functools
import itertools
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorObservationWrapper,
    VectorWrapper,
)
from gymnasium.vector.utils import batch_space, iterate
from gymnasium.wrappers import vector as wrappers
from torch.utils._pytree import tree_map

import main as main_program
from envs.any_gymnasium import checked_vector, vector_of
from envs.spaces import adapt_observation_space
from envs.vector import EpisodeStatistics
from tests import any_envs
from tests.any_envs import SPACES, Held, Late, Sampled
from utils.errors import EnvFault, UserError

SAME = AutoresetMode.SAME_STEP


def held():
    return Held(Sampled())


def vector(kind="vector", mode=AutoresetMode.NEXT_STEP, **more):
    return SyncVectorEnv([functools.partial(Sampled, kind, **more)] * 2, autoreset_mode=mode)


@pytest.mark.parametrize("kind", SPACES)
def test_a_batch_is_converted_as_one_by_one(kind):
    space = SPACES[kind]
    conversion = adapt_observation_space(space)
    of_batch = batch_space(space, 3)
    batch = of_batch.sample()
    singles = [conversion.convert(each) for each in iterate(of_batch, batch)]
    whole = conversion.convert(batch)
    found = list(iterate(batch_space(conversion.space, 3), whole))
    assert all(conversion.space.contains(each) for each in singles)
    tree_map(np.testing.assert_array_equal, found, singles)


@pytest.mark.parametrize("kind", ["nested", "image, channels last", "vector"])
def test_a_given_vector_restarts_in_the_same_step_and_shows_all_as_agents_see_it(kind):
    env = checked_vector(vector(kind), "Sampled")
    env.reset(seed=0)
    for _ in range(6):
        shown, _, ended, _, info = env.step(np.zeros(2, int))
        assert env.observation_space.contains(shown)
    assert ended.all()
    assert all(map(env.single_observation_space.contains, info["final_obs"]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gymnasium.make_vec("CartPole-v1", 2), "CartPoleVectorEnv has autoreset mode NEXT"),
        (lambda: vector(mode=AutoresetMode.DISABLED), "SyncVectorEnv has autoreset mode DISABLED"),
        (lambda: AsyncVectorEnv([Sampled]), "AsyncVectorEnv has autoreset mode NEXT_STEP"),
        (lambda: vector(actions=spaces.Dict(a=spaces.Discrete(2))), "cannot be used"),
        (lambda: wrappers.NormalizeObservation(vector()), "within NormalizeObservation has autore"),
        (lambda: wrappers.TransformObservation(vector(), abs), "within TransformObservation has"),
        (lambda: wrappers.RecordEpisodeStatistics(vector()), "within RecordEpisodeStatistics has"),
        (lambda: Scaled(vector()), "SyncVectorEnv within Scaled has autoreset mode NEXT_STEP"),
        (lambda: wrappers.ClipReward(Scaled(vector(mode=SAME)), 0, 1), "Scaled around SyncVector"),
        (lambda: Flat(Wrong()), "Flat around Wrong may show other observations than info"),
        (lambda: AsyncVectorEnv([held] * 2, autoreset_mode=SAME), "Sampled changes observations"),
        (lambda: None, r"NoneType is given, not a gymnasium\.vector\.VectorEnv"),
        (Sampled, r"Sampled is given, not a gymnasium\.vector\.VectorEnv"),
    ],
)
def test_what_agents_cannot_be_trained_in_is_refused_with_what_to_write(make, words):
    env = make()
    with pytest.raises(UserError, match=words) as error:
        checked_vector(env, "Sampled")
    if env is not None:
        env.close()  # processes left to the garbage collection close their pipes twice
    if "autoreset mode" in words:
        assert 'metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}' in str(error.value)


@pytest.mark.parametrize(
    "around",
    [
        wrappers.RecordEpisodeStatistics,
        wrappers.NormalizeReward,
        functools.partial(wrappers.TransformReward, func=lambda paid: paid),
        functools.partial(wrappers.TransformAction, func=lambda actions: 1 - actions),
        any_envs.HeldVector,  # which says so itself
    ],
)
def test_what_stands_around_a_vector_and_leaves_observations_alone_is_taken(around):
    env = EpisodeStatistics(checked_vector(around(any_envs.vector_of(any_envs.Goal)), "X"), "X")
    env.reset(seed=0)
    for _ in range(6):
        *_, info = env.step(np.zeros(2, int))
    assert info["episode"]["l"].tolist() == [3, 3]


def test_the_mode_may_be_a_word():
    env = checked_vector(Wrong(metadata={"autoreset_mode": "SameStep"}), "Wrong")
    assert EpisodeStatistics(env, "Wrong").reset()[1] == {}


class Scaled(VectorWrapper):
    """Forgets the last observations."""

    def step(self, actions):
        shown, *others = self.env.step(actions)
        return shown * 1e-3, *others


class Flat(VectorObservationWrapper):
    """Is not stopped by Gymnasium, where nothing says the mode."""

    def __init__(self, env):
        env.metadata = {}
        super().__init__(env)
        env.metadata = {"autoreset_mode": SAME}


class Wrong(VectorEnv):
    """Episodes of one step, and one thing other than in a right vector environment."""

    def __init__(self, **wrong):
        self.num_envs, self.wrong = 2, wrong
        self.metadata = wrong.get("metadata", {"autoreset_mode": AutoresetMode.SAME_STEP})
        self.single_observation_space = spaces.Dict({0: spaces.Box(-1, 1, (2,)), 1: SPACES["bits"]})
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 2)
        self.action_space = batch_space(self.single_action_space, 2)

    def reset(self, *, seed=None, options=None):
        return self.wrong.get("first", self.observation_space.sample()), {}

    def step(self, actions):
        final = np.array([self.single_observation_space.sample() for _ in range(2)])
        right = {
            "shown": self.observation_space.sample(),
            "paid": np.ones(2),
            "terminated": np.ones(2, bool),
            "truncated": np.zeros(2, bool),
            "info": {"final_obs": final},
        }
        return tuple((right | self.wrong)[name] for name in right)


def test_one_with_numbers_as_keys_is_taken():
    env = checked_vector(Wrong(), "Wrong")
    assert list(env.single_observation_space) == ["0", "1"]
    assert set(env.step(np.zeros(2, int))[4]["final_obs"][1]) == {"0", "1"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"metadata": None}, r"metadata is None\. Write a dictionary"),
        ({"metadata": {}}, "has autoreset mode None"),
        ({"metadata": {"action_names": 5}}, r'metadata\["action_names"\] is 5\. Write a list'),
        ({"first": np.ones(2)}, r"'Wrong': reset\(\) shows"),
        ({"shown": {0: np.full((2, 2), np.inf), 1: np.zeros((2, 2, 2))}}, r"0 of step\(\)"),
        ({"shown": {0: np.ones((2, 2))}}, r"\(dict, 1 in one of them alone\), which is not"),
        ({"paid": np.array([1, np.nan])}, r"\[ 1\. nan\] as rewards\. Return finite .* \[2\]"),
        ({"paid": ["1", "1"]}, r"\['1' '1'\] as rewards"),
        ({"paid": np.ones(3)}, "as rewards"),
        ({"terminated": ["yes", "no"]}, r"\['yes' 'no'\] as terminated\. Return bools"),
        ({"truncated": np.ones(2)}, r"as truncated\. Return bools"),
        ({"info": {}}, r'gives no info\["final_obs"\] where an episode ended'),
        ({"info": None}, r"step\(\) returns None as info"),
        ({"info": {"final_obs": [None, None]}}, r'gives no info\["final_obs"\]'),
        ({"info": {"final_obs": [1, 1]}}, r'info\["final_obs"\] shows 1 \(int\)'),
    ],
)
def test_a_vector_that_breaks_its_promises_is_told_at_the_start(wrong, words):
    with pytest.raises(UserError, match=words):
        checked_vector(Wrong(**wrong), "Wrong")


LATE = {  # and what is told of it
    "raises": r"KeyError: 'a\\nb' \(any_envs\.py, line \d+\)",
    "exits": r"SystemExit: bye \(any_envs\.py, line \d+\)",
    "raises what cannot be told": r"Unspeakable: \(its message cannot be made\) \(any_envs.*\)",
    "raises an error of the system": r"TimeoutError: late \(any_envs\.py, line \d+\)",
    "another shape": r"step\(\) shows .* \(float32 \[3\]\), which is not in its space Box.*",
    "another dtype": r"step\(\) shows .* \(complex64 \[2\]\), .*",
    "shows nothing": r"step\(\) shows None \(NoneType\), .*",
    "shows NaN": r"step\(\) shows \[nan nan\] \(float32 \[2\]\), .*",
    "pays infinity": r"step\(\) pays -inf \(float\), and a reward is a finite number",
    "pays text": r"step\(\) pays 1 \(str\), and a reward is a finite number",
    "ends by a word": r"step\(\) returns 'yes' for terminated or truncated\. Return a bool",
    "four values": r"step\(\) must return observation, reward, .*, info\. It returned 4",
}


@pytest.mark.parametrize(("fault", "words"), LATE.items())
def test_what_goes_wrong_in_training_is_told_with_its_place(fault, words):
    make_one = functools.partial(Late, fault, itertools.count())
    env = EpisodeStatistics(vector_of(make_one, 2, seed=0), "Late-v0")
    env.reset()
    env.step(np.zeros(2, int))
    place = r", in step 2 after reset\(seed=\d+\) \(vector step 2 of this process\)"
    with pytest.raises(EnvFault, match=f"^env: 'Late-v0': environment 1: {words}{place}$"):
        env.step(np.zeros(2, int))


@pytest.mark.parametrize("in_processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_ends_in_one_line_with_what_to_type(
    in_processes, in_empty_folder, capfd, monkeypatch
):
    monkeypatch.setattr("tests.any_envs.INSTANCES", itertools.count())
    tiny = {"device": "cpu", "n_steps": 200, "n_envs": 2, "n_rollout_steps": 8, "n_batches": 2}
    more = {"model": "CNN", "env": "tests.any_envs:Late-v0"}
    more |= {"env_processes": json.dumps(in_processes)}
    arguments = '{"fault": "raises what cannot be told", "step": 40}'
    settings = tiny | more | {"env_args": arguments, "showcase_minutes": "null"}
    command = [f"--var={key}={value}" for key, value in settings.items()]
    assert main_program.main([*command, "--run-id=a"]) == 2
    error = capfd.readouterr().err
    assert "Traceback" not in error
    folder = Path("experiments/CNN/Late-v0/a")
    kept = f"{folder} keeps the run's last checkpoint. Mend the environment, then go on with: "
    assert kept in error.splitlines()[-1]
    assert error.endswith(f"main.py --resume {folder}\n")
