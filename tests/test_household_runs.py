"""A run in HousekeepText: trained on words, played and shown."""

from pathlib import Path

import numpy as np
import pytest

import eval as eval_program
import main as main_program
from envs.household.text_world import ACTION_NAMES, NAME, SENTENCES
from tests.published_models import tiny_sentence_encoder
from tests.runs import folder_of

TINY = {"env": NAME, "device": "cpu", "n_envs": 2, "n_rollout_steps": 16, "n_batches": 2}
TINY |= {"n_epochs": 1, "n_steps": 64, "media_minutes": "null"}
TINY |= {"house_rooms": 2, "house_things": 3, "house_misplaced": 2, "house_steps": 12}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(tiny_sentence_encoder(tmp_path_factory.mktemp("encoder")))


def test_an_agent_reads_the_household_and_its_page_tells_what_it_read(encoder, in_empty_folder):
    given = TINY | {"model": "CNN", "sentence_encoder": encoder}
    words = [f"--var={key}={value}" for key, value in given.items()]
    assert main_program.main([*words, "--run-id=tiny"]) == 0
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
