"""No way to play an agent plays an episode that it has been trained on."""

import functools
import json

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

import eval as eval_program
import helm
import publish
from analysis import __main__ as analysis
from envs import envpool_vector, vector
from envs.episodes import SeededEnv
from tests.any_envs import Sampled
from tests.bad_inputs.harness import in_one_line
from tests.runs import LSTM, PPO, same, train_row
from trainers.checkpoint import LAST, load_checkpoint
from utils.seeding import FIRST_HELD_OUT, N_TOGETHER, episode_seed, evaluation_seed
from utils.settings import MOST_SEED

TRAINED = PPO | LSTM | {"n_envs": 16, "n_steps": 256}  # each plays four episodes or more


@pytest.fixture
def begun(in_empty_folder, monkeypatch):
    """Return the list of all seeds that episodes begin with, of every kind of environment."""
    seeds = []

    def noting(function, seeds_of):
        def noted(*arguments, **named):
            result = function(*arguments, **named)
            seeds.extend(seeds_of(result, *arguments))
            return result

        return noted

    single = noting(SeededEnv._begin, lambda _, env, *__: [env._episode_seed])
    monkeypatch.setattr(SeededEnv, "_begin", single)
    pools = noting(envpool_vector.episode_seed, lambda found, *_: [found])
    monkeypatch.setattr(envpool_vector, "episode_seed", pools)
    ours = noting(vector.episode_seed, lambda found, *_: [found])
    monkeypatch.setattr(vector, "episode_seed", ours)
    return seeds


def played_step_by_step(run):
    with helm.load(run) as player:
        for seed in (0, None, None, 1):
            shown = player.reset(seed)
            while not player.ended:
                shown, *_ = player.step(player.act(shown))
    with helm.load(run) as player:  # no seed at all
        player.reset()


def program(module, option, *more):
    return lambda run: module.main([*option, str(run), *more])


WAYS = {  # and the least number of episodes
    "eval.py": (program(eval_program, ["--ckpt-path"], "--n-episodes=34"), 34),
    "a page": (program(eval_program, ["--ckpt-path"], "--n-episodes=3", "--report"), 3),
    "a card": (program(publish, [], "somebody/mine", "--folder=card", "--n-episodes=2"), 2),
    "an analysis": (program(analysis, ["attention"], "--n-episodes=3"), 3),
    "a probe": (program(analysis, ["probe"], "--n-episodes=40"), 40),
    "step by step": (played_step_by_step, 4),
    "seeds from Python": (lambda run: helm.evaluate(run, range(34)), 34),
}
TASKS = {  # of which an agent is trained and played, by every kind of environment
    "Gymnasium's": {"env": "tests.any_envs:Cued-v0"},
    "EnvPool's": {"env": "MiniGrid-MemoryS7-v0"},
    "ours": {"env": "TMazePassive-v0", "length": 4},
}


@pytest.mark.slow
@pytest.mark.quick("eval.py", "an analysis", "step by step")
@pytest.mark.parametrize("way", WAYS)
def test_no_episode_of_the_training_is_played_again(way, begun):
    run = train_row("mine", TRAINED | TASKS["Gymnasium's"])
    trained, (play, least) = {*begun}, WAYS[way]
    assert len(trained) >= 34
    begun.clear()
    play(run)
    assert len({*begun}) >= least
    assert not trained & {*begun}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_seed_from_python_is_the_episode_of_that_seed_of_eval_py(task, in_empty_folder):
    run = train_row("mine", TRAINED | TASKS[task])
    longer = {"length": 9} if task == "ours" else {}
    before = torch.get_rng_state()
    both = helm.evaluate(run, (5, np.int64(0)), settings=longer)
    assert torch.equal(before, torch.get_rng_state())
    for seed, episode in zip((5, 0), both, strict=True):
        words = [f"--seed={seed}", *(f"--var={name}={each}" for name, each in longer.items())]
        assert eval_program.main([f"--ckpt-path={run}", "--n-episodes=1", *words]) == 0
        (file,) = run.glob(f"*_sampled_1_episodes_seed_{seed}*.json")
        told = json.loads(file.read_text())
        (success,) = told.get("successes", [None])
        assert episode == (seed, *told["returns"], *told["lengths"], success)
    for wrong in ([], [-1], [0.5]):
        with in_one_line("seeds: "):
            helm.evaluate(run, wrong)


@pytest.mark.quick("ours")
@pytest.mark.parametrize("task", ["EnvPool's", "ours"])
def test_no_environment_of_the_training_is_played_in(task, begun):
    run = train_row("mine", TRAINED | TASKS[task])
    trained = {*begun}
    begun.clear()
    WAYS["eval.py"][0](run)
    played_step_by_step(run)
    assert trained
    assert begun
    assert not trained & {*begun}


def test_a_vector_of_the_users_own_gets_other_seeds(in_empty_folder, monkeypatch):
    given, reset = [], SyncVectorEnv.reset

    def noted(self, *, seed=None, options=None):
        given.append(seed)
        return reset(self, seed=seed, options=options)

    monkeypatch.setattr(SyncVectorEnv, "reset", noted)

    def of(n_envs):
        make = functools.partial(gymnasium.make, "CartPole-v1")
        return SyncVectorEnv([make] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    settings = {"model": "LSTM", "memory_width": 8, "n_steps": 32, "n_rollout_steps": 16}
    run = helm.train(settings | {"device": "cpu", "showcase_minutes": None}, env=of(2))
    trained = given[-1]
    with helm.load(run, env=of(1)) as player:
        given.clear()
        player.reset()
        player.reset(seed=0)
    assert trained == 0
    assert given[0] == given[1]
    assert given[0] > 10**4


@pytest.mark.slow
@pytest.mark.parametrize(("n_episodes", "first"), [(2, 2), (100, 100), (200, 0), (300, 0)])
def test_evaluations_while_training_play_the_list_held_out(n_episodes, first, begun):
    """The second evaluation plays the second block of 256 that all runs share."""
    evaluated = {"eval_steps": 128, "eval_episodes": n_episodes, "n_rollout_steps": 8}
    train_row("evaluated", TRAINED | TASKS["Gymnasium's"] | evaluated)
    held_out = [seed for seed in begun if seed >= FIRST_HELD_OUT]
    second = {FIRST_HELD_OUT + n for n in range(first, first + n_episodes)}
    assert second <= {*held_out[len(held_out) // 2 :]}


@given(st.integers(0, MOST_SEED), st.integers(0, 64), st.integers(0, 10**6))
def test_no_training_has_a_seed_that_is_held_out(seed, env, episode):
    assert MOST_SEED + 1 == FIRST_HELD_OUT
    assert 0 <= episode_seed(seed, env, episode) < FIRST_HELD_OUT


@pytest.mark.parametrize("n_envs", [1, 5, 16])
def test_an_evaluation_plays_the_next_episodes_of_the_list(n_envs):
    """With N environments, up to 16, as many episodes each as they have: one block of the list."""
    played = {
        episode_seed(evaluation_seed(7), env, episode)
        for env in range(n_envs)
        for episode in range(3 if n_envs == N_TOGETHER else 1)
    }
    n_episodes = n_envs * (3 if n_envs == N_TOGETHER else 1)
    assert played == {FIRST_HELD_OUT + 7 + n for n in range(n_episodes)}


class Careless(Sampled):
    """Draws from NumPy's global stream."""

    def step(self, action):
        shown, _, *rest = super().step(action)
        return shown, np.random.rand(), *rest


def test_evaluations_move_no_stream_that_training_draws_from(in_empty_folder):
    settings = {"model": "CNN", "device": "cpu", "n_steps": 64, "n_rollout_steps": 16, "n_envs": 2}
    both = {"plain": {}, "evaluated": {"eval_steps": 32, "eval_episodes": 2}}
    runs = [
        helm.train(settings | {"showcase_minutes": None} | more, Careless, run_id=run_id)
        for run_id, more in both.items()
    ]
    assert same(*(load_checkpoint(run / LAST)["agent"] for run in runs))
