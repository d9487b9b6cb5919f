import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.agents import small_config
from utils import run_folder
from utils.errors import UserError


def test_the_default_run_id_joins_overrides_and_seed():
    overrides = ["n_steps=20", "model=HELM", "gamma=0.9"]
    assert run_folder.default_run_id(overrides, 3) == "n_steps=20_gamma=0.9_seed=3"
    assert run_folder.default_run_id(["seed=3"], 3) == "seed=3"


@given(st.lists(st.text()))
def test_a_default_run_id_is_one_harmless_folder_name(texts):
    run_id = run_folder.default_run_id([f"language_model={text}" for text in texts], 0)
    assert Path(run_id).name == run_id
    assert run_id.isascii()
    assert run_id.isprintable()
    assert len(run_id) <= 120
    assert run_id.endswith("seed=0")


def test_long_lists_that_differ_anywhere_have_different_names():
    long = [f"setting_{n}={n}" for n in range(20)]
    lists = [[*long[:n], "other=1", *long[n:]] for n in range(21)] + [long, ["x=" + "y" * 200]]
    assert len({run_folder.default_run_id(texts, 7) for texts in lists}) == len(lists)


def test_runs_begun_in_the_same_instant_are_numbered(in_empty_folder, monkeypatch):
    taken = []

    def begin_another(config):
        if len(taken) < 3:
            taken.append(None)
            monkeypatch.setattr("os.getpid", lambda: len(taken))
            run_folder.create_run_folder(small_config(), None, [])
        return {}

    monkeypatch.setattr(run_folder, "describe_basis", begin_another)
    run_folder.create_run_folder(small_config(), None, [])
    names = sorted(path.name for path in run_folder.folder_of(small_config(), "x").parent.iterdir())
    assert names == ["seed=0", "seed=0-2", "seed=0-3", "seed=0-4"]


def test_a_run_id_taken_in_the_same_instant_is_refused(in_empty_folder, monkeypatch):
    place = run_folder.folder_of(small_config(), "mine")

    def take(config):
        place.mkdir(parents=True)
        (place / "config.json").touch()
        return {}

    monkeypatch.setattr(run_folder, "describe_basis", take)
    with pytest.raises(UserError, match="has just taken this name"):
        run_folder.create_run_folder(small_config(), "mine", [])
    assert [path.name for path in place.parent.iterdir()] == ["mine"]


def test_the_folder_describes_the_run(in_empty_folder):
    folder = run_folder.create_run_folder(
        small_config(gamma=0.5), "mine", [], {"language_model": "ab"}
    )
    run = json.loads((folder / "run.json").read_text())
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "run.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["mine"]
    assert run_folder.load_run_config(folder) == small_config(gamma=0.5)
    assert run["packages"]["torch"].startswith("2.")
    assert run["weights"] == {"language_model": "ab"}
    assert run["hardware"]["cores"] >= run["hardware"]["usable_cores"] >= 1
    assert run["git_dirty"] == bool(run["git_changed_files"])
    assert {"command", "git_commit", "git_changed_files", "started", "machine"} <= set(run)


@pytest.mark.slow
def test_a_folder_in_use_is_refused_to_others_until_its_run_ends(in_empty_folder):
    folder = run_folder.create_run_folder(small_config(), "mine", [])
    code = "import sys; from pathlib import Path; from utils.run_folder import locked\n"
    code += f"with locked(Path({str(folder.resolve())!r})): print('mine', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout.readline() == b"mine\n"
    with pytest.raises(UserError, match="another run is writing here"), run_folder.locked(folder):
        pass
    other.kill()
    other.communicate()
    with run_folder.locked(folder):
        assert (folder / "lock").exists()


def test_a_resumption_is_exact_only_with_the_same_source_and_versions(in_empty_folder, monkeypatch):
    folder = run_folder.create_run_folder(small_config(), "mine", [])
    assert run_folder.record_resume(folder, small_config(), 16, []) == []
    monkeypatch.setattr(run_folder, "source_sha256", lambda: "edited")
    (difference,) = run_folder.record_resume(folder, small_config(), 32, [])
    assert "the source has changed" in difference
    assert run_folder.record_resume(folder, small_config(), 48, []) == []  # as the part before it
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.1")
    differences = run_folder.record_resume(folder, small_config(), 64, ["in new episodes"])
    assert differences[0] == "in new episodes"
    assert any(text.startswith("torch 0.1 instead of 2.") for text in differences)
    resumed = json.loads((folder / "run.json").read_text())["resumed"]
    assert [entry["exact"] for entry in resumed] == [True, False, True, False]
    assert [entry["differences"] for entry in resumed][1] == [difference]
    assert all(
        {"git_commit", "git_dirty", "git_changed_files"} <= entry.keys() for entry in resumed
    )


def test_a_resumption_by_other_instructions_is_not_exact(in_empty_folder, monkeypatch):
    folder = run_folder.create_run_folder(small_config(), "mine", [])
    capability = torch.backends.cpu.get_cpu_capability()
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "LESS")
    (difference,) = run_folder.record_resume(folder, small_config(), 16, [])
    assert difference == f"cpu_capability LESS instead of {capability}"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    (difference,) = run_folder.record_resume(folder, small_config(), 32, [])
    assert difference == "ONEDNN_MAX_CPU_ISA SSE41 instead of None"
    description = json.loads((folder / "run.json").read_text())
    for name in run_folder.INSTRUCTIONS:  # an earlier version has recorded none of them
        del description["resumed"][-1]["hardware"][name]
    (folder / "run.json").write_text(json.dumps(description))
    monkeypatch.undo()
    monkeypatch.chdir(in_empty_folder)
    assert run_folder.record_resume(folder, small_config(), 48, []) == []


def test_the_source_of_a_run_is_what_training_imports(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "ROOT", tmp_path)
    for name in ("models/__init__.py", "models/deep/helm.py", "tests/__init__.py", "main.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before")
    (tmp_path / "notes.py").mkdir()
    before = run_folder.source_sha256()
    (tmp_path / "tests" / "__init__.py").write_text("after")
    assert run_folder.source_sha256() == before
    (tmp_path / "models" / "deep" / "helm.py").write_text("after")
    assert run_folder.source_sha256() != before


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"resumed": 3}', b'{"resumed": [3]}'])
def test_a_damaged_description_is_kept_and_said(content, in_empty_folder, caplog):
    folder = run_folder.create_run_folder(small_config(), "mine", [])
    (folder / "run.json").write_bytes(content)
    differences = run_folder.record_resume(folder, small_config(), 16, [])
    assert differences == ["the source it was made with is not recorded"]
    (line,) = caplog.messages
    assert str(folder / "run.json.damaged-1") in line
    assert (folder / "run.json.damaged-1").read_bytes() == content
    assert len(json.loads((folder / "run.json").read_text())["resumed"]) == 1
