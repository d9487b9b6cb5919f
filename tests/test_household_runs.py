"""Whole runs in HousekeepText: trained on words, interrupted, resumed, played and shown."""

import signal
from pathlib import Path

import numpy as np
import pytest

import eval as eval_program
import main as main_program
from envs.household.housekeep_text import ACTION_NAMES, NAME, SENTENCES
from tests.published_models import tiny_sentence_encoder
from tests.robustness.faults import outcome, same
from tests.test_resume import folder_of, resume, signal_at
from tests.tiny_clip import tiny_settings

TINY = {"env": NAME, "device": "cpu", "n_envs": 2, "n_rollout_steps": 16, "n_batches": 2}
TINY |= {"n_epochs": 1, "n_steps": 64, "media_minutes": "null"}
TINY |= {"house_rooms": 2, "house_things": 3, "house_misplaced": 2, "house_steps": 12}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(tiny_sentence_encoder(tmp_path_factory.mktemp("encoder")))


def command(run_id, **changes):
    given = TINY | {"model": "CNN"} | changes
    return [*(f"--var={key}={value}" for key, value in given.items()), "--run-id", run_id]


def test_an_agent_reads_the_household_and_its_page_tells_what_it_read(encoder, in_empty_folder):
    assert main_program.main(command("tiny", sentence_encoder=encoder)) == 0
    play = ["--ckpt-path", str(folder_of("tiny")), "--n-episodes", "2", "--report"]
    assert eval_program.main(play) == 0
    (page,) = folder_of("tiny").glob("*.html")
    recording = sorted(Path("episodes").rglob("*.npz"))[0]
    with np.load(recording, allow_pickle=False) as arrays:
        text = arrays["text"]
        assert text.shape == (len(arrays["actions"]), len(SENTENCES))
        assert arrays["observations"].shape[1:] == (3, 8, 8)
    inventory, scene, status = text[0]
    assert inventory == ""
    assert scene.startswith("you are at ")
    assert status.startswith("you know ")
    told = page.read_text()
    assert all(word in told for word in (scene, status, "a row a room", ACTION_NAMES[4]))


def test_a_run_interrupted_in_the_middle_ends_as_if_nothing_had_been(
    encoder, in_empty_folder, monkeypatch
):
    more = {"sentence_encoder": encoder, "checkpoint_minutes": 0}
    assert main_program.main(command("whole", **more)) == 0
    signal_at(monkeypatch, signal.SIGINT, at=10)
    assert main_program.main(command("cut", **more)) == 130
    assert resume("cut") == 0
    assert same(outcome(folder_of("cut")), outcome(folder_of("whole")))


@pytest.mark.parametrize("algorithm", ["DQN", "SAC"])
def test_it_is_learned_in_from_replay_without_words(algorithm, in_empty_folder):
    given = {key: value for key, value in TINY.items() if key not in ("n_batches", "n_epochs")}
    given = given | {"model": "LSTM", "memory_width": 8, "algorithm": algorithm, "batch_size": 2}
    given |= {"warmup_episodes": 1, "updates_per_step": 0.05, "use_text": "false"}
    del given["n_rollout_steps"]
    line = [f"--var={key}={value}" for key, value in given.items()]
    assert main_program.main([*line, "--run-id", "replayed"]) == 0
    assert outcome(folder_of("replayed"))["metrics"]


@pytest.mark.parametrize("model", ["HELM", "SHELM"])
def test_a_language_model_remembers_what_it_is_told_of_the_house(model, encoder, in_empty_folder):
    told = tiny_settings(model) | {"text_to": "memory", "mem_len": 8, "n_steps": 32}
    line = command("told", model=model, sentence_encoder=encoder, **told)
    if model == "SHELM":
        line = [part for part in line if "sentence_encoder" not in part]
    assert main_program.main(line) == 0
