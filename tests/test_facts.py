"""What tells environments given as objects apart, and that plot.py averages none that differ."""

import functools
import importlib
import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import helm
from envs.facts import facts_of
from tests.runs import signal_at
from utils.errors import Interrupted

TINY = {"model": "LSTM", "device": "cpu", "n_steps": 32, "n_envs": 2, "n_rollout_steps": 16}
TINY |= {"memory_width": 8, "showcase_minutes": None}
SAME_STEP = {"autoreset_mode": AutoresetMode.SAME_STEP}


class Sized(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, size=5, goal=None, seed=0, render_mode=None):
        self.size, self._goal, self.seed = size, goal, seed

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == self.size, False, {}


class Wider(Sized):
    observation_space = spaces.Box(-1, 1, (3,))


def closed_over(size, **more):
    return lambda: Sized(size, **more)


def of_settings(settings):
    return lambda: Sized(settings.size)


class Maker:
    def __init__(self, size):
        self.size = size

    def __call__(self):
        return Sized(self.size)


def limited(make, steps):
    return lambda: wrappers.TimeLimit(make(), steps)


def made(name, **more):
    return lambda: gymnasium.make(name, **more)


def vector(kind, make, n=2):
    return kind([make] * n, **SAME_STEP)


PAIRS = {  # of one name, and what they differ in: nothing where there is none
    "one line, two sizes": (lambda: Sized(5), lambda: Sized(8), "Sized.size"),
    "an argument kept privately": (lambda: Sized(goal="a"), lambda: Sized(goal="b"), "Sized.goal"),
    "a table as argument": (
        functools.partial(Sized, goal=np.zeros(3)),
        functools.partial(Sized, goal=np.ones(3)),
        "Sized.goal",
    ),
    "arguments of a partial": (functools.partial(Sized, 5), functools.partial(Sized, 8), "maker.0"),
    "a closure": (closed_over(5), closed_over(8), "maker.size"),
    "settings of their own": (
        of_settings(SimpleNamespace(size=5)),
        of_settings(SimpleNamespace(size=8)),
        "Sized.size",
    ),
    "an object that makes": (Maker(5), Maker(8), "maker.size"),
    "spaces": (Sized, Wider, "observation_space"),
    "a wrapper more": (Sized, limited(Sized, 9), "layers"),
    "a wrapper's argument": (limited(Sized, 9), limited(Sized, 8), "TimeLimit.max_episode_steps"),
    "a wrapper's function": (
        lambda: wrappers.TransformReward(Sized(), lambda reward: reward),
        lambda: wrappers.TransformReward(Sized(), lambda reward: -float(reward)),
        "source.<lambda>",
    ),
    "an id": (made("CartPole-v0"), made("CartPole-v1"), "spec"),
    "arguments of an id": (
        made("CartPole-v1"),
        made("CartPole-v1", sutton_barto_reward=True),
        "spec.sutton_barto_reward",
    ),
    "in a vector": (
        functools.partial(vector, SyncVectorEnv, closed_over(5)),
        functools.partial(vector, SyncVectorEnv, closed_over(8)),
        "Sized.size",
    ),
    "in processes": (
        functools.partial(vector, AsyncVectorEnv, closed_over(5)),
        functools.partial(vector, AsyncVectorEnv, closed_over(8)),
        "maker.size",
    ),
    "seeds": (functools.partial(Sized, seed=1), functools.partial(Sized, seed=2), ""),
    "how it is drawn": (Sized, functools.partial(Sized, render_mode="rgb_array"), ""),
    "made twice": (closed_over(5, goal=[1]), closed_over(5, goal=[1]), ""),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*out of date")
@pytest.mark.parametrize("pair", PAIRS)
def test_what_differs_is_among_the_facts_and_seeds_are_not(pair):
    *makers, name = PAIRS[pair]
    both = []
    for make in makers:
        env = make()
        # A vector itself is given, and not the function that makes it here.
        both.append(facts_of(env if isinstance(env, gymnasium.vector.VectorEnv) else make, env))
        env.close()
    one, other = both
    assert json.loads(json.dumps(both)) == both
    differing = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    assert name in differing if name else not differing


def test_a_users_code_is_told_by_the_text_of_its_parts_and_its_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    text = "import gymnasium\nclass Mine(gymnasium.Env):\n    {}\ndef more():\n    return {}\n"
    shown = "observation_space = action_space = gymnasium.spaces.Discrete(2)"
    found = []
    for number in range(2):
        (tmp_path / f"my_world{number}.py").write_text(text.format(shown, number))
        module = importlib.import_module(f"my_world{number}")
        found.append(facts_of(module.Mine, module.Mine()))
    first, second = found
    assert first["source.Mine"] == second["source.Mine"]
    assert first["module.my_world0"] != second["module.my_world1"]
    packages = facts_of(gymnasium.make, made("CartPole-v1")())
    assert not any(name.startswith(("source", "module", "package")) for name in packages)


def trained(seed, env, **more):
    return helm.train(TINY | {"seed": seed} | more, env=env, run_id=f"{seed}")


def test_a_resumption_in_another_task_is_not_exact(in_empty_folder, monkeypatch, capsys):
    signal_at(monkeypatch, 2, at=9)
    with pytest.raises(Interrupted):
        trained(0, closed_over(5), n_steps=64)
    helm.resume("experiments/LSTM/Sized/0", env=closed_over(8))
    assert "not exactly" in (said := capsys.readouterr().out)
    assert "environment.Sized.size 8 instead of 5" in said
