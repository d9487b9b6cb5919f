"""Whole runs that read words: evaluated in between, refused, played, shown and analysed."""

import signal
from pathlib import Path

import numpy as np
import pytest

import eval as eval_program
import main as main_program
from analysis.__main__ import main as analyse
from tests import runs
from trainers.checkpoint import LAST, load_checkpoint, save_checkpoint

pytest.importorskip("minigrid")
PLAYED = {
    "missions": (runs.HELM | runs.MISSIONS | {"text_reader": "both", "mem_len": 8}, ["go to "]),
    "a household": (
        runs.CNN | runs.HOUSE,
        ["you are at ", "you know ", "a row a room", "turn to the next thing"],
    ),
}


def command(run_id, settings):
    return [*runs.words_of(runs.PPO | runs.READS | settings), f"--run-id={run_id}"]


@pytest.mark.slow
def test_an_evaluation_in_between_changes_nothing(in_empty_folder):
    both = {"plain": {}, "evaluated": {"eval_steps": 32, "eval_episodes": 2}}
    for run_id, changes in both.items():
        assert main_program.main(command(run_id, runs.LSTM | runs.MISSIONS | changes)) == 0
    agents = [load_checkpoint(runs.folder_of(run_id) / LAST)["agent"] for run_id in both]
    assert runs.same(*agents)


def test_numbers_of_unknown_sentences_in_a_checkpoint_are_refused(
    in_empty_folder, monkeypatch, capsys
):
    runs.signal_at(monkeypatch, signal.SIGINT, at=21)
    assert main_program.main(command("cut", runs.CNN | runs.MISSIONS)) == 130
    path = runs.folder_of("cut") / LAST
    state = load_checkpoint(path)
    state["collector"]["percept"]["observations"]["text"][0] = 7
    save_checkpoint(path, state)
    capsys.readouterr()
    assert runs.resume("cut") == 2
    assert "a number of a sentence that is not in the table" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
def test_an_agent_is_played_and_its_page_tells_the_words(name, in_empty_folder):
    settings, said = PLAYED[name]
    assert main_program.main(command("tiny", settings)) == 0
    play = ["--ckpt-path", str(runs.folder_of("tiny")), "--n-episodes", "2", "--report"]
    assert eval_program.main(play) == 0
    (page,) = (path.read_text() for path in runs.folder_of("tiny").glob("*.html"))
    assert all(text in page for text in said)
    for path in Path("episodes").rglob("*.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            assert len(arrays["text"]) == len(arrays["actions"]) == len(arrays["observations"])
            assert all(text in page for text in arrays["text"][0])
    if "text_reader" in settings:
        assert analyse(["attention", str(runs.folder_of("tiny")), "--output", "played"]) == 0
        assert Path("played/attention.png").exists()
