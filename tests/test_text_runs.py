"""Whole runs on BabyAI: evaluated in between, refused, played and shown."""

import signal
from pathlib import Path

import numpy as np
import pytest

import eval as eval_program
import main as main_program
from analysis.__main__ import main as analyse
from tests.published_models import tiny_sentence_encoder
from tests.runs import folder_of, resume, same, signal_at
from tests.tiny_clip import tiny_settings
from trainers.checkpoint import LAST, load_checkpoint, save_checkpoint

pytest.importorskip("minigrid")
LEVEL = "BabyAI-GoToObjS4-v0"
TINY = {"env": LEVEL, "device": "cpu", "n_envs": 2, "media_minutes": "null"}
TINY |= {"n_rollout_steps": 16, "n_batches": 2, "n_epochs": 1, "n_steps": 32}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(tiny_sentence_encoder(tmp_path_factory.mktemp("encoder")))


def command(model, encoder, run_id="tiny", **changes):
    given = TINY | {"model": model, "sentence_encoder": encoder} | tiny_settings(model) | changes
    return [*(f"--var={key}={value}" for key, value in given.items()), "--run-id", run_id]


def test_an_evaluation_in_between_changes_nothing(encoder, in_empty_folder):
    more = {"n_steps": 64}
    runs = {"plain": {}, "evaluated": {"eval_steps": 32, "eval_episodes": 2}}
    for run_id, changes in runs.items():
        assert main_program.main(command("LSTM", encoder, run_id, **more, **changes)) == 0
    agents = [load_checkpoint(folder_of(run_id) / LAST)["agent"] for run_id in runs]
    assert same(*agents)


def test_numbers_of_unknown_sentences_in_a_checkpoint_are_refused(
    encoder, in_empty_folder, monkeypatch, capsys
):
    signal_at(monkeypatch, signal.SIGINT, at=21)
    assert main_program.main(command("CNN", encoder, "cut", n_steps=96)) == 130
    path = folder_of("cut") / LAST
    state = load_checkpoint(path)
    state["collector"]["percept"]["observations"]["text"][0] = 7
    save_checkpoint(path, state)
    capsys.readouterr()
    assert resume("cut") == 2
    assert "a number of a sentence that is not in the table" in capsys.readouterr().err


def test_an_agent_is_played_and_its_page_tells_the_missions(encoder, in_empty_folder):
    assert main_program.main(command("HELM", encoder, text_to="both", mem_len=8)) == 0
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
