import json

import pytest

from tests.agents import small_config
from utils.errors import UserError
from utils.run_folder import create_run_folder, default_run_id


def test_the_default_run_id_joins_overrides_and_seed():
    assert (
        default_run_id(["n_steps=20", "model=HELM", "gamma=0.9"], 3)
        == "n_steps=20_gamma=0.9_seed=3"
    )
    assert default_run_id(["seed=3"], 3) == "seed=3"


def test_a_run_id_is_one_harmless_folder_name():
    run_id = default_run_id(["language_model=../../my model/é"], 0)
    assert run_id == "language_model=..-..-my-model-_seed=0"
    assert len(default_run_id([f"language_model={'x' * 500}"], 0)) <= 120


def test_a_default_run_never_meets_an_earlier_one(in_empty_folder):
    folders = [create_run_folder(small_config(), None, ["gamma=0.9"]) for _ in range(3)]
    assert [f.name for f in folders] == [
        "gamma=0.9_seed=0",
        "gamma=0.9_seed=0-2",
        "gamma=0.9_seed=0-3",
    ]
    assert str(folders[0].parent) == "experiments/HELM/MiniGrid-KeyCorridorS3R1-v0"


def test_the_folder_describes_the_run(in_empty_folder):
    folder = create_run_folder(small_config(gamma=0.5), "mine", [])
    run = json.loads((folder / "run.json").read_text())
    assert json.loads((folder / "config.json").read_text())["gamma"] == 0.5
    assert run["packages"]["torch"].startswith("2.")
    assert {"command", "git_commit", "git_changed_files", "started", "machine"} <= set(run)


@pytest.mark.parametrize("run_id", ["../up", "a/b", "", ".hidden", "..", "a\nb", "x" * 121, "é"])
def test_a_run_id_cannot_leave_its_folder(in_empty_folder, run_id):
    with pytest.raises(UserError, match="a run id is one folder name"):
        create_run_folder(small_config(), run_id, [])
    assert list(in_empty_folder.iterdir()) == []
