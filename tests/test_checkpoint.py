import hashlib
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agents import small_config
from trainers.checkpoint import (
    BEST,
    FORMAT,
    HELD_BY_LAST,
    LAST,
    PREVIOUS,
    find_checkpoint,
    give_way,
    last_checkpoint,
    load_checkpoint,
    save_checkpoint,
    unfinished_checkpoint,
)
from utils.errors import UserError

BARE: dict[str, Any] = {name: {} for name in ("config", "agent", "weights", *HELD_BY_LAST)}


def save(folder, env_steps):
    """Write a run's last checkpoint and keep the one before."""
    save_checkpoint(folder / LAST, {**BARE, "env_steps": env_steps}, folder / PREVIOUS)


def test_an_interrupted_write_leaves_the_earlier_checkpoint_and_no_rest(tmp_path):
    save(tmp_path, 1)
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        save_checkpoint(tmp_path / LAST, {"env_steps": lambda: None}, tmp_path / PREVIOUS)
    assert load_checkpoint(tmp_path / LAST)["env_steps"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [LAST]


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 8))
def test_a_damaged_checkpoint_is_recognised_and_never_pushes_out_the_one_before(place, bit):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for step in (1, 2):
            save(folder, step)
        content = bytearray((folder / LAST).read_bytes())
        n = int(place * len(content))
        if bit == 8:
            del content[n:]
        else:
            content[n] ^= 1 << bit
        (folder / LAST).write_bytes(content)
        with pytest.raises(UserError, match=r"damaged|not a checkpoint|of format"):
            load_checkpoint(folder / LAST)
        if n < len("HELM checkpoint 004"):
            return  # what is of another format is for another version
        found = last_checkpoint(folder, 99)
        assert found["env_steps"] == 1
        give_way(folder, found)
        save(folder, 3)
        assert [load_checkpoint(folder / name)["env_steps"] for name in (LAST, PREVIOUS)] == [3, 1]


def test_a_run_with_damaged_checkpoints_only_begins_anew_and_says_what_is_lost(tmp_path, caplog):
    assert last_checkpoint(tmp_path, 99) is None
    save(tmp_path, 1)
    save(tmp_path, 2)
    damaged = {name: (tmp_path / name).read_bytes()[:-1] for name in (LAST, PREVIOUS)}
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "metrics.csv").write_text("env_steps,a\n1,0\n2,0\n")
    assert last_checkpoint(tmp_path, 99) is None
    assert "ckpt_last.pt: damaged" in caplog.text
    assert "beginning anew: 2 steps are lost" in caplog.text
    assert {name: (tmp_path / name).read_bytes() for name in damaged} == damaged
    give_way(tmp_path, None)
    kept = {path.name.removesuffix(".damaged-1"): path for path in tmp_path.glob("*.damaged-1")}
    assert {name: path.read_bytes() for name, path in kept.items()} == damaged


ROWS = "rows_000000000000.pt"


def save_with_replay(folder, env_steps, *names):
    """Write a last checkpoint that names some files as its replay."""
    contents = {name: (folder / "replay" / name).read_bytes() for name in names}
    files = {n: (len(c), hashlib.sha256(c).hexdigest()) for n, c in contents.items()}
    state = {**BARE, "env_steps": env_steps, "learner": {"replay": {"files": files}}}
    save_checkpoint(folder / LAST, state, folder / PREVIOUS)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_checkpoint_is_as_good_as_the_files_of_its_replay(damage, tmp_path, caplog):
    (tmp_path / "replay").mkdir()
    later = tmp_path / "replay" / ROWS.replace("0.pt", "8.pt")
    (tmp_path / "replay" / ROWS).write_bytes(b"first")
    later.write_bytes(b"second")
    save_with_replay(tmp_path, 10, ROWS)
    save_with_replay(tmp_path, 25, ROWS, later.name)
    later.write_bytes(b"second, and what was written since")
    assert last_checkpoint(tmp_path, 99)["env_steps"] == 25
    later.unlink() if damage == "missing" else later.write_bytes(b"secOnd, and more")
    assert last_checkpoint(tmp_path, 99)["env_steps"] == 10
    assert f"{later}: {damage}" in caplog.text
    assert "going on from the one before: 15 steps are lost" in caplog.text


def test_a_finished_run_needs_no_replay_and_does_not_begin_anew(tmp_path):
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / ROWS).write_bytes(b"first")
    save_with_replay(tmp_path, 99, ROWS)
    (tmp_path / "replay" / ROWS).unlink()
    assert last_checkpoint(tmp_path, 99)["env_steps"] == 99
    (tmp_path / LAST).write_bytes((tmp_path / LAST).read_bytes()[:-1])
    assert last_checkpoint(tmp_path, 99) is None
    (tmp_path / "run.json").write_text('{"finished": "yesterday"}')
    with pytest.raises(UserError, match="damaged"):
        last_checkpoint(tmp_path, 99)


@pytest.mark.parametrize("files", [{"../x.pt": (1, "")}, {ROWS: 3}, [1], {3: (1, "")}])
def test_a_checkpoint_that_names_other_files_is_refused(files, tmp_path):
    state = {**BARE, "env_steps": 1, "learner": {"replay": {"files": files}}}
    save_checkpoint(tmp_path / LAST, state)
    with pytest.raises(UserError, match="the checkpoint"):
        last_checkpoint(tmp_path, 99)


def test_a_finished_run_and_changed_settings_are_refused(tmp_path):
    config = small_config(n_steps=60)
    checkpoint = {**BARE, "config": vars(config), "env_steps": 30, "learner": {}}
    save_checkpoint(tmp_path / LAST, checkpoint)
    assert unfinished_checkpoint(tmp_path, config)["env_steps"] == 30
    with pytest.raises(UserError, match=r"differs from the checkpoint in seed, gamma"):
        unfinished_checkpoint(tmp_path, small_config(n_steps=60, gamma=0.5, seed=1))
    with pytest.raises(UserError, match="save_ckpt=false cannot go on"):
        unfinished_checkpoint(tmp_path, small_config(save_ckpt=False))
    save_checkpoint(tmp_path / LAST, checkpoint | {"env_steps": 60})
    with pytest.raises(UserError, match=r"finished after 60 steps. Play it: python eval"):
        unfinished_checkpoint(tmp_path, config)


@pytest.mark.parametrize("number", [2, 3, 99])
def test_another_format_is_one_line_that_says_where_it_can_be_used(number, tmp_path):
    save(tmp_path, 30)
    content = (tmp_path / LAST).read_bytes()
    (tmp_path / LAST).write_bytes(content.replace(b"%03d" % FORMAT, b"%03d" % number, 1))
    said = rf"of format {number}, and this version reads format 4\. .* at commit 56e76aa"
    for read in (load_checkpoint, lambda _: last_checkpoint(tmp_path, 99)):
        with pytest.raises(UserError, match=said):
            read(tmp_path / LAST)


def test_two_different_checkpoints_stand_at_all_times_and_the_best_is_found_first(
    tmp_path, monkeypatch
):
    save(tmp_path, 1)
    save(tmp_path, 2)
    replace, seen = Path.replace, []

    def watched(path, target):
        seen.append([load_checkpoint(tmp_path / name)["env_steps"] for name in (LAST, PREVIOUS)])
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", watched)
    save(tmp_path, 3)
    assert seen == [[2, 1], [3, 1]]
    assert load_checkpoint(tmp_path / PREVIOUS)["env_steps"] == 2
    assert find_checkpoint(tmp_path).name == LAST
    save_checkpoint(tmp_path / BEST, {})
    assert find_checkpoint(tmp_path).name == BEST
