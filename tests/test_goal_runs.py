"""Runs for goals through the programs: trained, evaluated, played on tasks, refused."""

import json

import numpy as np
import pytest

import eval as eval_program
import main as main_program
from envs import SUITES
from tests.bad_inputs.harness import refused
from tests.described import NAME
from tests.runs import CNN, PPO, READS, folder_of, outcome, words_of

TINY = PPO | CNN | {"env": NAME, "n_steps": 64}
ORACLE = {"suggester": "oracle", "goal_conditioned": "true", "goal_encoder": "tiny"}
SUBGOALS = {"single_task": "make wood pickaxe", "single_task_goals": "subgoals"}


@pytest.fixture(autouse=True)
def described(monkeypatch):
    for name in (NAME, "Silent-v0"):
        monkeypatch.setitem(SUITES, name, "tests.described:Described")


def train(**changes):
    """Train a little and return the run's folder and its last row."""
    assert main_program.main([*words_of(TINY | READS | changes), "--run-id=tiny"]) == 0
    folder = folder_of("tiny").absolute()
    row = outcome(folder)["metrics"][-1]
    return folder, {name: float(value or "nan") for name, value in row.items()}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Return the folder of a run for the oracle's goals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("pretrained"))
        patch.setitem(SUITES, NAME, "tests.described:Described")
        folder, row = train(**ORACLE)
    assert row["goals/return_mean"] > max(0, row["rollout/return_mean"])  # the environment's own
    assert row["goals/suggested_good"] > row["goals/rewarded_good"] > 0
    assert row["goals/suggested_impossible"] == 0
    weights = json.loads((folder / "run.json").read_text())["weights"]
    assert weights["goal_encoder"] == weights["sentence_encoder"]
    return folder


@pytest.mark.slow
def test_evaluations_in_between_tell_the_success_of_a_task(in_empty_folder):
    evaluated = {"eval_steps": 32, "eval_episodes": 2, "goal_conditioned": "true"}
    _, row = train(**SUBGOALS, **evaluated)
    assert 0 <= row["eval/success_mean"] <= 1
    assert 0 <= row["rollout/success_mean"] <= 1


def play(folder, *options, n_episodes=3):
    number = ["--n-episodes", str(n_episodes)]
    return eval_program.main(["--ckpt-path", str(folder), *number, *options])


@pytest.mark.slow
def test_a_run_is_played_on_single_tasks(pretrained, in_empty_folder, capsys):
    assert play(pretrained, "--tasks", "chop tree,make wood pickaxe", n_episodes=40) == 0
    (path,) = pretrained.glob("*tasks*.json")
    result = json.loads(path.read_text())
    assert list(result["tasks"]) == ["chop tree", "make wood pickaxe"]
    successes = [each["success_mean"] for each in result["tasks"].values()]
    assert successes[0] > 0  # seven tries an episode, half of the scenes with a tree
    assert result["success_mean"] == sum(successes) / 2
    assert result["actions"] == "sampled"
    shown = capsys.readouterr().out
    assert f"chop tree{' ' * 21}{successes[0]:6.3f}" in shown


def test_a_run_is_played_with_its_own_goals(pretrained, in_empty_folder):
    assert play(pretrained, "--report", "--greedy", "--var=goal_encoder=same-text") == 0
    (page,) = pretrained.glob("*greedy*.html")
    assert "Your goal is: " in page.read_text()
    for path in sorted(in_empty_folder.glob("episodes/*/*/*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            is_reached = arrays["matched"] != ""
            assert (arrays["matched"] == arrays["phrase"])[is_reached].all()
            suggested = (arrays["suggestions"] == arrays["matched"][:, None]).any(1)
            assert suggested[is_reached].all()
            assert (arrays["goal_rewards"] == is_reached).all()
            assert (arrays["goal_rewards"] == arrays["rewards"]).all()
            assert arrays["caption"][0].startswith("you see")


BAD_RUNS = [
    (["suggester=oracel"], "Did you mean 'oracle'?"),
    (["single_task=mine gold"], "single_task: 'mine gold' is none of"),
    (["single_task_goals=subgoal"], "Did you mean 'subgoals'?"),
    (["suggester=oracle", "single_task=chop tree"], "Give one of them"),
    (["single_task_goals=subgoals"], "with single_task alone"),
    (["single_task=gardening"], "by its subgoals alone"),
    (["goal_conditioned=true"], "there are no goals"),
    (["goal_threshold=0.5"], "goal_threshold: it is read with suggester"),
    (["single_task=chop tree", "novelty_filter=false"], "with suggester alone"),
    (["suggester=oracle", "goal_threshold=1"], "out of range"),
    (["suggester=oracle", "goal_encoder=nowhere/"], "goal_encoder: "),
    (["env=Silent-v0", "suggester=oracle"], "Silent"),
    (["env=Silent-v0", "single_task=chop tree"], "Silent-v0 says nothing"),
    (["env=RandomMaze-v0", "suggester=oracle"], "RandomMaze-v0 says nothing"),
    (["single_task=eat cow"], "none of"),
    (["single_task=sleep"], "needs the action 'sleep'"),
]


@pytest.mark.parametrize(("changes", "expected"), BAD_RUNS)
def test_what_cannot_be_wanted_is_refused_in_one_line(changes, expected, in_empty_folder, capsys):
    words = [*words_of(TINY), *(f"--var={each}" for each in changes)]
    refused(capsys, "main", words, expected)


BAD_PLAYS = [
    (["--tasks", "chop trees"], "Did you mean 'chop tree'?"),
    (["--tasks", ""], "--tasks: '' is none of all"),
    (["--tasks", "survival"], "never completed"),
    (["--tasks", "all"], "needs the action"),
    (["--tasks", "all", "--report"], "prints figures only"),
    (["--var=single_task=chop tree", "--var=suggester=novelty"], "Give one of them"),
    (["--var=single_task=gardening"], "by its subgoals alone"),
    (["--var=single_task_goals=subgoals"], "with single_task alone"),
    (["--var=goal_conditioned=false"], "goal_conditioned stays as"),
]


@pytest.mark.parametrize(("options", "expected"), BAD_PLAYS)
def test_what_cannot_be_played_is_refused(options, expected, pretrained, in_empty_folder, capsys):
    refused(capsys, "eval", ["--ckpt-path", str(pretrained), *options], expected)
