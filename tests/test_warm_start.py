"""New runs with the parameters of earlier ones."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

import main as main_program
from main import build_run
from tests import runs
from tests.bad_inputs.harness import refused
from tests.runs import CNN, LSTM, PPO, REPLAY, folder_of, resume, same, signal_at
from tests.test_resume import command
from trainers.checkpoint import LAST, UNWRITTEN, WarmStart, load_checkpoint, save_checkpoint
from trainers.ranks import Ranks
from trainers.settings import RunSettings
from utils.given_settings import load_config
from utils.saved_state import moments

TINY = {"n_steps": 64, "memory_width": 8}


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
    first = runs.train_row("first", REPLAY | LSTM | {"algorithm": algorithm, "n_steps": 60})
    start = WarmStart.named(first / LAST)
    with build_run(settings_of(first), Ranks(), start=start) as run:
        learner, saved = run.learner, load_checkpoint(first / LAST)["agent"]
        assert same(dict(learner.agent.state_dict()), saved)
        target = dict(learner.target.state_dict())
        assert target
        assert all(torch.equal(target[name], saved[name]) for name in target)
        assert learner.replay is None


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_begins_with_the_same(first, monkeypatch, capsys):
    whole = train("whole", "--init-from", str(first), seed=1)
    signal_at(monkeypatch, 2, at=5)
    words = command("LSTM", "cut", **TINY, seed=1)
    assert main_program.main([*words, "--init-from", str(first)]) == 130
    (folder_of("cut") / LAST).unlink()
    best, state = (first / "ckpt_best.pt").read_bytes(), load_checkpoint(first / LAST)
    save_checkpoint(first / "ckpt_best.pt", state | {"env_steps": 1})
    assert resume("cut") == 2
    assert "changed since the run began with it" in capsys.readouterr().err
    (first / "ckpt_best.pt").write_bytes(best)
    assert resume("cut") == 0
    states = [load_checkpoint(folder / LAST)["agent"] for folder in (folder_of("cut"), whole)]
    assert same(*states)


@pytest.mark.parametrize(
    "changes", [LSTM | {"memory_width": 16}, CNN, LSTM | {"env": "ContinuousRecognition-v0"}]
)
def test_what_does_not_fit_gets_one_line_with_both_shapes(changes, first, capsys):
    words = runs.words_of(PPO | changes)
    (line,) = refused(capsys, "main", [*words, f"--init-from={first}"])
    assert line.startswith(f"--init-from {(first / 'ckpt_best.pt').resolve()}: parameter '")
    assert "in this run. Name a run of such an agent" in line


def test_a_bad_source_gets_one_line(first, capsys):
    words = command("LSTM", "new", **TINY)
    Path("text.pt").write_bytes(b"\xf5")
    Path("nothing.pt").touch()
    Path("empty").mkdir()
    for source, reason in {
        "nowhere": "--init-from nowhere: no such file or folder",
        "text.pt": "not a checkpoint",
        "nothing.pt": "not a checkpoint",
        "empty": "holds neither",
    }.items():
        assert reason in refused(capsys, "main", [*words, "--init-from", source])[0]
    refused(
        capsys,
        "main",
        ["--resume", str(first), "--init-from", str(first)],
        "--resume takes all settings",
    )
