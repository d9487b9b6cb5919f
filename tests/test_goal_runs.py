"""Runs for goals through the programs: trained, evaluated, played on tasks, refused."""

import csv
import json
import math

import numpy as np
import pytest

import eval as eval_program
import main as main_program
from envs import SUITES, Suite
from tests.bad_inputs.harness import refused
from tests.described import NAME
from tests.published_models import tiny_sentence_encoder
from tests.runs import folder_of, same
from trainers.checkpoint import LAST, load_checkpoint

TINY = {"env": NAME, "device": "cpu", "n_envs": 2, "media_minutes": "null", "model": "CNN"}
PPO = {"n_rollout_steps": 16, "n_batches": 2, "n_epochs": 1, "n_steps": 64}
CHOICES = {
    "oracle": {"suggester": "oracle"},
    "subgoals": {"single_task": "make wood pickaxe", "single_task_goals": "subgoals"},
}


@pytest.fixture(autouse=True)
def described(monkeypatch):
    suite = Suite("tests.described", scale_rewards=False)
    for name in (NAME, "Silent-v0"):
        monkeypatch.setitem(SUITES, name, suite)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(tiny_sentence_encoder(tmp_path_factory.mktemp("encoder")))


def command(encoder, choice, run_id="tiny", **changes):
    given = TINY | PPO | CHOICES[choice]
    given |= {"goal_conditioned": "true", "sentence_encoder": encoder}
    if "suggester" in CHOICES[choice]:
        given["goal_encoder"] = encoder
    return [
        *(f"--var={key}={value}" for key, value in (given | changes).items()),
        *("--run-id", run_id),
    ]


def rows(run_id):
    with (folder_of(run_id) / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_goals_are_logged_and_the_returns_stay_the_environments(encoder, in_empty_folder):
    assert main_program.main(command(encoder, "oracle")) == 0
    row = rows("tiny")[-1]
    assert float(row["goals/return_mean"]) > 0
    assert int(float(row["goals/suggested_good"])) > int(float(row["goals/rewarded_good"])) > 0
    assert int(float(row["goals/suggested_nonsense"])) == 0
    assert float(row["rollout/return_mean"]) < float(row["goals/return_mean"])
    weights = json.loads((folder_of("tiny") / "run.json").read_text())["weights"]
    assert weights["goal_encoder"] == weights["sentence_encoder"]


def test_a_run_with_evaluations_learns_as_without_and_tells_their_success(encoder, in_empty_folder):
    runs = {"plain": {}, "evaluated": {"eval_steps": 32, "eval_episodes": 2}}
    for run_id, changes in runs.items():
        assert main_program.main(command(encoder, "subgoals", run_id, **changes)) == 0
    assert same(*(load_checkpoint(folder_of(run_id) / LAST)["agent"] for run_id in runs))
    assert 0 <= float(rows("evaluated")[-1]["eval/success_mean"]) <= 1
    assert not math.isnan(float(rows("evaluated")[-1]["rollout/success_mean"]))


@pytest.fixture(scope="module")
def pretrained(encoder, tmp_path_factory):
    """Return the folder of a run for the oracle's goals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("pretrained"))
        patch.setitem(SUITES, NAME, Suite("tests.described", scale_rewards=False))
        assert main_program.main(command(encoder, "oracle", goal_encoder="same-text")) == 0
        return folder_of("tiny").absolute()


def play(folder, *options, n_episodes=3):
    number = ["--n-episodes", str(n_episodes)]
    return eval_program.main(["--ckpt-path", str(folder), *number, *options])


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
    path.unlink()
    path.mkdir()
    assert play(pretrained, "--tasks", "chop tree,make wood pickaxe", n_episodes=40) == 2
    assert f"{path}: a folder, where a file is to be written" in capsys.readouterr().err
    path.rmdir()


def test_one_task_is_played_and_shown_on_a_page(pretrained, in_empty_folder):
    assert play(pretrained, "--var=single_task=chop tree", "--report") == 0
    (page,) = pretrained.glob("*single_task*.html")
    assert "Your goal is: chop tree." in page.read_text()


def test_a_run_is_played_with_its_own_goals(pretrained, in_empty_folder):
    assert play(pretrained, "--report", "--greedy") == 0
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


SILENT = {"env": "Silent-v0"}
BAD_RUNS = {
    "an unknown suggester": ({"suggester": "oracel"}, "Did you mean 'oracle'?"),
    "an unknown task": ({"single_task": "mine gold"}, "single_task: 'mine gold' is none of"),
    "an unknown kind of goals": ({"single_task_goals": "subgoal"}, "Did you mean 'subgoals'?"),
    "a task and a suggester": (
        {"suggester": "oracle", "single_task": "chop tree"},
        "Give one of them",
    ),
    "a task's goals without a task": (
        {"single_task_goals": "subgoals"},
        "with single_task alone",
    ),
    "a task that is never paid": ({"single_task": "gardening"}, "by its subgoals alone"),
    "goals shown without goals": ({"goal_conditioned": "true"}, "there are no goals"),
    "a threshold without a suggester": (
        {"goal_threshold": 0.5},
        "goal_threshold: it is read with suggester",
    ),
    "a filter beside a task": (
        {"single_task": "chop tree", "novelty_filter": "false"},
        "with suggester alone",
    ),
    "a threshold that nothing exceeds": (
        {"suggester": "oracle", "goal_threshold": 1},
        "out of range",
    ),
    "an encoder that is none": (
        {"suggester": "oracle", "goal_encoder": "nowhere/"},
        "goal_encoder: ",
    ),
    "a suggester where nothing is said": (SILENT | {"suggester": "oracle"}, "Silent"),
    "a task where nothing is said": (SILENT | {"single_task": "chop tree"}, "says nothing"),
    "a task of other actions": ({"single_task": "eat cow"}, "none of"),
    "a task that cannot be done": ({"single_task": "sleep"}, "needs the action 'sleep'"),
    "a suggester in another game": (
        {"env": "RandomMaze-v0", "suggester": "oracle"},
        "says nothing",
    ),
}


@pytest.mark.parametrize("name", BAD_RUNS)
def test_what_cannot_be_wanted_is_refused_in_one_line(name, in_empty_folder, capsys):
    changes, expected = BAD_RUNS[name]
    given = TINY | PPO | changes
    (line,) = refused(capsys, "main", [f"--var={key}={value}" for key, value in given.items()])
    assert expected in line


BAD_PLAYS = {
    "an unknown task": (["--tasks", "chop trees"], "Did you mean 'chop tree'?"),
    "no task": (["--tasks", ""], "--tasks: '' is none of all"),
    "a task without end": (["--tasks", "survival"], "never completed"),
    "tasks and a page": (["--tasks", "all", "--report"], "tells figures alone"),
    "a task and a suggester": (
        ["--var=single_task=chop tree", "--var=suggester=novelty"],
        "Give one of them",
    ),
    "a task that is never paid": (["--var=single_task=gardening"], "by its subgoals alone"),
    "subgoals without a task": (["--var=single_task_goals=subgoals"], "with single_task alone"),
    "tasks that cannot be done": (["--tasks", "all"], "needs the action"),
    "another kind of observation": (
        ["--var=goal_conditioned=false"],
        "goal_conditioned is neither",
    ),
}


@pytest.mark.parametrize("name", BAD_PLAYS)
def test_what_cannot_be_played_is_refused_in_one_line(name, pretrained, in_empty_folder, capsys):
    options, expected = BAD_PLAYS[name]
    (line,) = refused(capsys, "eval", ["--ckpt-path", str(pretrained), *options])
    assert expected in line
