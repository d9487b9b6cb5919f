import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents import small_config
from utils.errors import UserError
from utils.run_folder import (
    create_run_folder,
    default_run_id,
    locked,
    note_end,
    note_resumption,
    recorded_config,
)


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
    folder = create_run_folder(small_config(gamma=0.5), "mine", [], {"language_model": "ab"})
    run = json.loads((folder / "run.json").read_text())
    assert json.loads((folder / "config.json").read_text())["gamma"] == 0.5
    assert run["packages"]["torch"].startswith("2.")
    assert run["weights"] == {"language_model": "ab"}
    assert run["hardware"]["cores"] >= run["hardware"]["usable_cores"] >= 1
    assert run["git_dirty"] == bool(run["git_changed_files"])
    assert {"command", "git_commit", "git_changed_files", "started", "machine"} <= set(run)


@pytest.mark.parametrize("run_id", ["../up", "a/b", "", ".hidden", "..", "a\nb", "x" * 121, "é"])
def test_a_run_id_cannot_leave_its_folder(in_empty_folder, run_id):
    with pytest.raises(UserError, match="a run id is one folder name"):
        create_run_folder(small_config(), run_id, [])
    assert list(in_empty_folder.iterdir()) == []


def test_a_folder_appears_whole(in_empty_folder):
    folder = create_run_folder(small_config(), "mine", [])
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "run.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["mine"]
    assert recorded_config(folder) == small_config()


def test_a_folder_in_use_is_refused_to_others_until_its_run_ends(in_empty_folder):
    folder = create_run_folder(small_config(), "mine", [])
    code = "import sys; from pathlib import Path; from utils.run_folder import locked\n"
    code += f"with locked(Path({str(folder.resolve())!r})): print('mine', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout.readline() == b"mine\n"
    with pytest.raises(UserError, match="another run is writing here"), locked(folder):
        pass
    other.kill()
    other.communicate()
    with locked(folder):
        assert (folder / "lock").exists()


def test_an_unfinished_run_offers_to_go_on(in_empty_folder):
    folder = create_run_folder(small_config(), "mine", [])
    with pytest.raises(UserError, match=r"go on with it: python main\.py --resume experiments"):
        create_run_folder(small_config(), "mine", [])
    note_resumption(folder, 32, exact=False)
    note_end(folder)
    run = json.loads((folder / "run.json").read_text())
    assert [(entry["env_steps"], entry["exact"]) for entry in run["resumed"]] == [(32, False)]
    with pytest.raises(UserError, match=r"Choose another run id$"):
        create_run_folder(small_config(), "mine", [])


def test_another_folder_is_no_run(in_empty_folder):
    with pytest.raises(UserError, match=r"not a run folder, it has no config\.json"):
        recorded_config(in_empty_folder)
