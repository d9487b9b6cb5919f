"""Success of episodes through the programs, and playing at another length."""

import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

import eval as eval_program
from envs import make_vector_env
from envs.any_gymnasium import check_first_steps, checked_vector, vector_of
from envs.vector import EpisodeStatistics
from models import build_agent
from tests.agents import collect_rollout, collecting, small_config
from tests.any_envs import Goal
from tests.runs import LSTM, PPO, train_row
from trainers.evaluation import FinishedEpisode
from utils.errors import UserError

IS = "is_success"
MAZE = {"env": "TMazePassive-v0", "length": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("maze"))
        return train(LSTM | MAZE)


def train(settings):
    return train_row("run", PPO | settings).absolute()


def collector(**changes):
    config = small_config(**({"env": "TMazePassive-v0", "length": 2, "model": "CNN"} | changes))
    return collecting_in(make_vector_env(config, config.seed), config)


def collecting_in(env, config=None):
    config = config or small_config(n_envs=2, n_rollout_steps=40, model="CNN")
    agent = build_agent(config, env.single_observation_space, env.single_action_space)
    return collecting(config, agent, env)


def result_of(folder, *options):
    """Play five episodes and return their record."""
    before = set(folder.glob("*.json"))
    assert eval_program.main(["--ckpt-path", str(folder), "--n-episodes=5", *options]) == 0
    (path,) = set(folder.glob("*.json")) - before
    return json.loads(path.read_text()), path


def test_the_share_of_episodes_that_succeeded_is_that_of_the_last_hundred():
    made = collector()
    assert math.isnan(made.metrics()["rollout/success_mean"])
    made.episodes.extend(
        [FinishedEpisode(1.0, 3, True)] * 30 + [FinishedEpisode(0.0, 3, False)] * 90
    )
    assert made.metrics()["rollout/success_mean"] == 0.1


def test_episodes_that_ended_are_told_with_their_success():
    torch.manual_seed(0)
    made = collector(n_envs=8, n_rollout_steps=30, length=1)
    collect_rollout(made)
    assert made.n_episodes == 8 * 30 / 2
    for episode in made.episodes:
        assert episode.success is (episode.episode_return > 0.4)
    assert {episode.success for episode in made.episodes} == {False, True}


def test_an_evaluation_tells_which_episodes_succeeded(run, in_empty_folder, capsys):
    result, _ = result_of(run, "--seed=3")
    printed = capsys.readouterr().out.splitlines()
    last = [np.load(each)["rewards"][-1] for each in sorted(Path("episodes").rglob("*.npz"))]
    assert result["successes"] == [each == 1 for each in last]
    assert result["success_mean"] == np.mean(result["successes"])
    start = next(i for i, line in enumerate(printed) if line.startswith("episode "))
    assert printed[start].split() == ["episode", "return", "length", "success"]
    shown = [line.split()[-1] for line in printed[start + 1 : start + 6]]
    assert shown == ["yes" if success else "no" for success in result["successes"]]
    assert printed[start + 6].split()[-1] == f"{result['success_mean']:.3f}"


def test_the_same_agent_plays_at_several_lengths_side_by_side(run, in_empty_folder, capsys):
    own, _ = result_of(run)
    assert own["var"] == {}
    assert own["lengths"] == [4] * 5
    capsys.readouterr()
    longer, path = result_of(run, "--var=length=20")
    assert longer["var"] == {"length": 20}
    assert longer["lengths"] == [21] * 5
    assert path.name == "ckpt_best_eval_sampled_5_episodes_seed_0_length_20.json"
    assert "LSTM on TMazePassive-v0 with length=20, from" in capsys.readouterr().out
    longest, _ = result_of(run, "--var", "length=7", "--var", "length=30", "--random")
    assert longest["lengths"] == [31] * 5
    kept = {path.parent.name for path in Path("episodes").rglob("*.npz")}
    assert kept == {"LSTM", "LSTM_length_20", "random_length_30"}


def in_a_vector(*makers):
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)


WON, LOST, SAYS = {"success": True}, {"success": np.float32(0)}, {"has_success": True}
TOLD = {  # in three and in five steps: environments, whether each episode succeeds
    "a word": (lambda: [Goal(3, LOST, WON), Goal(5, LOST, WON)], [True, True]),
    "another word": (lambda: [Goal(n, {IS: 0}, {IS: 1}) for n in (3, 5)], [True, True]),
    "both words": (lambda: [Goal(n, LOST, WON | {IS: 0}) for n in (3, 5)], [True, True]),
    "one fails": (lambda: [Goal(3, LOST, WON), Goal(5, WON, LOST)], [True, False]),
    "of a win alone": (lambda: [Goal(3, LOST, WON), Goal(5, LOST)], [True, False]),
    "at the end": (lambda: [Goal(3, {}, WON), Goal(5, {}, LOST)], [True, False]),
    "at the end of a win": (lambda: [Goal(3, {}, WON, **SAYS), Goal(5, **SAYS)], [True, False]),
    "not at every end": (lambda: [Goal(3, {}, WON), Goal(5)], [True, None]),
    "never": (lambda: [Goal(3), Goal(5)], [None, None]),
    "nobody reads it": (lambda: [Goal(n, {}, WON, has_success=False) for n in (3, 5)], [None] * 2),
}


@pytest.mark.quick("one fails-False", "one fails-True", "not at every end-False")
@pytest.mark.parametrize("is_vector", [False, True])
@pytest.mark.parametrize("told", TOLD)
def test_success_is_that_of_the_ended_episode(told, is_vector, caplog):
    caplog.set_level("INFO")
    make, successes = TOLD[told]
    if is_vector:
        env = checked_vector(in_a_vector(*(lambda each=each: each for each in make())), "X")
    else:
        made = iter([make()[0], *make()])  # the first is tried
        tells = check_first_steps(lambda: next(made), "X")
        env = vector_of(lambda: next(made), 2, 0, False, *tells)
    found = collecting_in(EpisodeStatistics(env, "X"))
    begins = "rollout/success_mean" in found.metrics()
    for _ in range(30):
        found.step()
    assert {each.length: each.success for each in found.episodes} == dict(
        zip((3, 5), successes, strict=True)
    )
    known = [each.success for each in found.episodes if each.success is not None]
    assert found.metrics().get("rollout/success_mean") == (np.mean(known) if known else None)
    is_late = not begins and bool(known)
    assert is_late == told.startswith(("at the end", "not at")) - (told == "at the end of a win")
    assert is_late == ("metadata = " in caplog.text)


@pytest.mark.parametrize("value", [3, "yes", None, math.nan, [True]])
@pytest.mark.parametrize("is_vector", [False, True])
def test_success_is_a_bool(value, is_vector):
    make = functools.partial(Goal, 3, {}, {IS: value})
    with pytest.raises(UserError, match=rf'env: \'X\': info\["{IS}"\] is .*Give a bool, or 0 or 1'):
        checked_vector(in_a_vector(make), "X") if is_vector else check_first_steps(make, "X")


def test_what_is_no_bool_may_be_left_unread():
    with pytest.raises(UserError, match=r'metadata\["has_success"\] is 3. Write True or False'):
        check_first_steps(functools.partial(Goal, has_success=3), "X")
    make = functools.partial(Goal, 3, {}, {IS: "yes"}, has_success=False)
    assert not check_first_steps(make, "X").has_success


@pytest.mark.slow
def test_processes_tell_success_as_well():
    make = functools.partial(Goal, 3, LOST, WON)
    env = EpisodeStatistics(vector_of(make, 2, 0, True, has_success=True), "X")
    env.reset()
    *_, info = [env.step(np.zeros(2, int)) for _ in range(3)][-1]
    assert info["episode"]["success"].tolist() == [True, True]
    env.close()


@given(st.lists(st.text(max_size=200), min_size=1, unique=True))
def test_folders_of_different_changes_do_not_overwrite_each_other(texts):
    names = {eval_program.change_name({"recognition_stimuli": text}) for text in texts}
    assert len(names) == len(texts)
    assert all("/" not in name and name.isascii() and len(name) < 100 for name in names)
