"""Whole runs on BabyAI: every way to learn with every memory; interrupted, resumed and played."""

import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest

import eval as eval_program
import main as main_program
from analysis.__main__ import main as analyse
from tests.published_models import tiny_sentence_encoder
from tests.robustness.faults import outcome, same
from tests.test_resume import folder_of, resume, signal_at
from tests.tiny_clip import tiny_settings
from trainers.checkpoint import LAST, load_checkpoint, save_checkpoint

pytest.importorskip("minigrid")
LEVEL = "BabyAI-GoToObjS4-v0"
TINY = {"env": LEVEL, "device": "cpu", "n_envs": 2, "media_minutes": "null", "mem_len": 8}
ALGORITHMS = {
    "PPO": {"n_rollout_steps": 16, "n_batches": 2, "n_epochs": 1, "n_steps": 32},
    "DQN": {"warmup_episodes": 1, "updates_per_step": 0.05, "batch_size": 2, "n_steps": 80},
    "SAC": {"warmup_episodes": 1, "updates_per_step": 0.05, "batch_size": 2, "n_steps": 80},
}
NARROW = {"memory_width": 8}
MEMORIES = {
    "CNN": ("CNN", {}),
    "LSTM": ("LSTM", NARROW),
    "GPT": ("GPT", NARROW | {"memory_heads": 2}),
    "HELM": ("HELM", {"text_to": "both", "text_tokens": 2}),
    "SHELM": ("SHELM", {"text_to": "memory"}),
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(tiny_sentence_encoder(tmp_path_factory.mktemp("encoder")))


def command(algorithm, memory, encoder, run_id="tiny", **changes):
    model, settings = MEMORIES[memory]
    given = TINY | {"algorithm": algorithm, "model": model, "sentence_encoder": encoder}
    given |= ALGORITHMS[algorithm] | settings | tiny_settings(model) | changes
    if model in ("CNN", "LSTM"):
        del given["mem_len"]
    return [*(f"--var={key}={value}" for key, value in given.items()), "--run-id", run_id]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_agent_is_trained_on_missions(algorithm, memory, encoder, in_empty_folder):
    assert main_program.main(command(algorithm, memory, encoder)) == 0
    name = "train/loss" if algorithm == "PPO" else "train/critic_loss"
    losses = [row[name] for row in outcome(folder_of("tiny"))["metrics"]]
    assert any(losses)  # none where a run ends within an episode
    assert all(math.isfinite(float(loss)) for loss in losses if loss)
    weights = json.loads((folder_of("tiny") / "run.json").read_text())["weights"]
    assert ("sentence_encoder" in weights) == (memory != "SHELM")


@pytest.mark.parametrize(("algorithm", "memory", "at"), [
    ("PPO", "GPT", 21), ("PPO", "HELM", 21), ("DQN", "LSTM", 10), ("SAC", "SHELM", 10),
])  # fmt: skip
def test_a_run_interrupted_in_the_middle_ends_as_if_nothing_had_been(
    algorithm, memory, at, encoder, in_empty_folder, monkeypatch
):
    more = {"n_steps": 96, "checkpoint_minutes": 0}
    assert main_program.main(command(algorithm, memory, encoder, "whole", **more)) == 0
    signal_at(monkeypatch, signal.SIGINT, at=at)
    assert main_program.main(command(algorithm, memory, encoder, "cut", **more)) == 130
    saved = load_checkpoint(folder_of("cut") / LAST)
    sentences = saved["collector"]["sentences"]
    assert len(sentences) > 1
    assert all(type(sentence) is str for sentence in sentences)
    assert resume("cut") == 0
    assert same(outcome(folder_of("cut")), outcome(folder_of("whole")))
    ends = [load_checkpoint(folder_of(name) / LAST)["collector"] for name in ("cut", "whole")]
    assert ends[0]["sentences"] == ends[1]["sentences"]


def test_an_evaluation_in_between_changes_nothing(encoder, in_empty_folder):
    more = {"n_steps": 64}
    runs = {"plain": {}, "evaluated": {"eval_steps": 32, "eval_episodes": 2}}
    for run_id, changes in runs.items():
        assert main_program.main(command("PPO", "LSTM", encoder, run_id, **more, **changes)) == 0
    agents = [load_checkpoint(folder_of(run_id) / LAST)["agent"] for run_id in runs]
    assert same(*agents)


def test_numbers_of_unknown_sentences_in_a_checkpoint_are_refused(
    encoder, in_empty_folder, monkeypatch, capsys
):
    signal_at(monkeypatch, signal.SIGINT, at=21)
    assert main_program.main(command("PPO", "CNN", encoder, "cut", n_steps=96)) == 130
    path = folder_of("cut") / LAST
    state = load_checkpoint(path)
    state["collector"]["percept"]["observations"]["text"][0] = 7
    save_checkpoint(path, state)
    capsys.readouterr()
    assert resume("cut") == 2
    assert "a number of a sentence that is not in the table" in capsys.readouterr().err


def test_an_agent_is_played_and_its_page_tells_the_missions(encoder, in_empty_folder):
    assert main_program.main(command("PPO", "HELM", encoder)) == 0
    play = ["--ckpt-path", str(folder_of("tiny")), "--n-episodes", "2", "--report"]
    assert eval_program.main(play) == 0
    (page,) = folder_of("tiny").glob("*.html")
    missions = set()
    for path in Path("episodes").rglob("*.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            assert arrays["text"].shape == (len(arrays["actions"]), 1)
            assert arrays["observations"].shape[1:] == (3, 56, 56)
            missions |= set(arrays["text"].flat)
    assert len(missions) == 2
    assert all(mission in page.read_text() for mission in missions)
    assert analyse(["attention", str(folder_of("tiny")), "--output", "played"]) == 0
    assert Path("played/attention.png").exists()


def test_who_reads_no_text_refuses_to_be_told_where_it_goes(in_empty_folder, capsys):
    given = ["--var=model=CNN", f"--var=env={LEVEL}", "--var=text_to=memory"]
    assert main_program.main(given) == 2
    assert "text_to is read by HELM, HELMv2 and SHELM, and this is CNN" in capsys.readouterr().err
    assert not Path("experiments").exists()
