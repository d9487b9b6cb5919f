"""New runs with the parameters of earlier ones."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

import main as main_program
from main import build_run
from tests.bad_inputs.harness import refused
from tests.runs import folder_of, resume, same, signal_at
from tests.test_resume import command
from trainers.checkpoint import LAST, UNWRITTEN, WarmStart, load_checkpoint, save_checkpoint
from trainers.ranks import Ranks
from trainers.train import RunSettings
from utils.given_settings import load_config
from utils.saved_state import moments

TINY = {"n_steps": 64, "memory_width": 8}
BY_REPLAY = {
    **{"n_steps": 12, "n_envs": 1, "batch_size": 2, "warmup_episodes": 1, "head_width": 8},
    **{"env": "TMazePassive-v0", "length": 3, "device": "cpu", "showcase_minutes": "null"},
}


def train(run_id, *more, **changes):
    assert main_program.main([*command("LSTM", run_id, **TINY | changes), *more]) == 0
    return folder_of(run_id)


@pytest.fixture
def first(in_empty_folder):
    return train("first")


def settings_of(folder):
    return load_config(folder / "config.json").part(RunSettings)


def test_a_new_run_begins_with_the_parameters_and_with_nothing_else(first):
    checkpoint = first / LAST
    start = WarmStart.named(checkpoint)
    with build_run(settings_of(first), Ranks(), start=start) as run:
        assert same(dict(run.learner.agent.state_dict()), load_checkpoint(checkpoint)["agent"])
        assert not any(each["step"] for each in moments(run.learner.optimizer).values())
        assert run.env_steps == 0


def test_the_folder_says_what_it_began_with(first):
    second = train("second", "--init-from", str(first), seed=1, env="RandomMaze-v0")
    facts = json.loads((second / "run.json").read_text())["init_from"]
    best = (first / "ckpt_best.pt").resolve()
    digest = hashlib.sha256(best.read_bytes()[len(UNWRITTEN) :]).hexdigest()
    assert facts == {"checkpoint": str(best), "sha256": digest, "env_steps": 64}
    assert "init_from" not in json.loads((first / "run.json").read_text())


@pytest.mark.parametrize("algorithm", ["DQN", "SAC"])
def test_target_networks_are_copies_of_what_a_run_begins_with(algorithm, in_empty_folder):
    settings = BY_REPLAY | {"model": "LSTM", "algorithm": algorithm, "memory_width": 8}
    words = [f"--var={name}={value}" for name, value in settings.items()]
    assert main_program.main([*words, "--run-id=first"]) == 0
    first = folder_of("first")
    start = WarmStart.named(first / LAST)
    with build_run(settings_of(first), Ranks(), start=start) as run:
        learner, saved = run.learner, load_checkpoint(first / LAST)["agent"]
        assert same(dict(learner.agent.state_dict()), saved)
        target = dict(learner.target.state_dict())
        assert target
        assert all(torch.equal(target[name], saved[name]) for name in target)
        assert learner.replay is None


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_begins_with_them_again(first, monkeypatch):
    whole = train("whole", "--init-from", str(first), seed=1)
    signal_at(monkeypatch, 2, at=5)
    words = command("LSTM", "cut", **TINY, seed=1)
    assert main_program.main([*words, "--init-from", str(first)]) == 130
    (folder_of("cut") / LAST).unlink()
    assert resume("cut") == 0
    states = [load_checkpoint(folder / LAST)["agent"] for folder in (folder_of("cut"), whole)]
    assert same(*states)


def test_what_it_began_with_must_still_be_the_same(first, monkeypatch, capsys):
    signal_at(monkeypatch, 2, at=5)
    words = command("LSTM", "cut", **TINY, seed=1)
    assert main_program.main([*words, "--init-from", str(first)]) == 130
    (folder_of("cut") / LAST).unlink()
    state = load_checkpoint(first / LAST)
    save_checkpoint(first / "ckpt_best.pt", state | {"env_steps": 1})
    capsys.readouterr()
    assert resume("cut") == 2
    assert "changed since the run began with it" in capsys.readouterr().err


def test_what_does_not_fit_gets_one_line_with_both_shapes(first, capsys):
    changed = {
        "a wider memory": {"memory_width": 16},
        "no memory": {"model": "CNN", "memory_width": None},
        "other images and actions": {"env": "ContinuousRecognition-v0"},
    }
    for changes in changed.values():
        values = {"model": "LSTM", **TINY, "env": "RandomMaze-v0", "device": "cpu"} | changes
        values |= {"n_envs": 2, "n_rollout_steps": 16, "n_batches": 2}
        words = [f"--var={key}={value}" for key, value in values.items() if value is not None]
        (line,) = refused(capsys, "main", [*words, f"--init-from={first}"])
        assert line.startswith(f"--init-from {(first / 'ckpt_best.pt').resolve()}: parameter '")
        assert "in this run. Name a run of such an agent" in line


def test_a_bad_source_gets_one_line(first, capsys):
    words = command("LSTM", "new", **TINY)
    Path("text.pt").write_text("hello")
    Path("empty").mkdir()
    for source, reason in {
        "nowhere": "--init-from nowhere: no such file or folder",
        "text.pt": "not a checkpoint",
        "empty": "holds neither",
    }.items():
        assert reason in refused(capsys, "main", [*words, "--init-from", source])[0]
    (line,) = refused(capsys, "main", ["--resume", str(first), "--init-from", str(first)])
    assert "--resume takes all settings from the run folder, give it alone" in line
