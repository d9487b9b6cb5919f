import pickle

import pytest
import torch

from trainers.checkpoint import BEST, LAST, find_checkpoint, load_checkpoint, save_checkpoint
from utils.errors import UserError


def test_a_checkpoint_comes_back_as_it_went(tmp_path):
    save_checkpoint(tmp_path / LAST, {"config": {}, "agent": torch.arange(3), "env_steps": 7})
    state = load_checkpoint(tmp_path / LAST)
    assert state["env_steps"] == 7
    assert state["agent"].tolist() == [0, 1, 2]


def test_an_interrupted_write_leaves_the_earlier_checkpoint(tmp_path):
    save_checkpoint(tmp_path / LAST, {"config": {}, "agent": {}, "env_steps": 1})
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        save_checkpoint(tmp_path / LAST, {"env_steps": lambda: None})
    assert load_checkpoint(tmp_path / LAST)["env_steps"] == 1


def test_a_folder_means_its_best_checkpoint_then_its_last(tmp_path):
    save_checkpoint(tmp_path / LAST, {})
    assert find_checkpoint(tmp_path).name == LAST
    save_checkpoint(tmp_path / BEST, {})
    assert find_checkpoint(tmp_path).name == BEST


def test_a_folder_without_checkpoints_says_so(tmp_path):
    with pytest.raises(UserError, match=r"holds neither ckpt_best\.pt nor ckpt_last\.pt"):
        find_checkpoint(tmp_path)
    with pytest.raises(UserError, match="no such file or folder"):
        find_checkpoint(tmp_path / "nowhere")


class Command:
    """Would run when unpickled."""

    def __reduce__(self):
        return (print, ("executed",))


def test_loading_executes_nothing(tmp_path, capsys):
    torch.save({"format": 1, "agent": Command()}, tmp_path / LAST)
    with pytest.raises(UserError, match="not a checkpoint"):
        load_checkpoint(tmp_path / LAST)
    assert "executed" not in capsys.readouterr().out


def test_another_file_is_no_checkpoint(tmp_path):
    (tmp_path / LAST).write_text("hello")
    with pytest.raises(UserError, match="not a checkpoint"):
        load_checkpoint(tmp_path / LAST)
    torch.save({"format": 99}, tmp_path / LAST)
    with pytest.raises(UserError, match=r"format 1 \(found 99\)"):
        load_checkpoint(tmp_path / LAST)
