import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from models.clip_encoder import load_encoder
from models.language import load_language_model
from models.shared_weights import once_a_machine
from tests.golden_data import GOLDEN
from tests.ranks import errors, on_ranks
from tests.tiny_clip import tiny_clip
from trainers.ranks import joined_ranks
from utils.errors import UserError


def mapped_files(folder):
    """Return the lines of this process's memory map that show a nameless file of a folder."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(folder) in line and "(deleted)" in line]


def joined(function, size, folder, monkeypatch):
    """Return what a function returns in every rank, the ranks having joined."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    def on_rank(rank):
        with joined_ranks():
            return function(rank)

    return on_ranks(size, on_rank, folder)


def test_one_process_loads_and_the_others_map(tmp_path, monkeypatch):
    encoder = load_encoder("tiny-vit", str(tiny_clip()))

    def load(rank):
        assert rank == 0
        return encoder

    def function(rank):
        module = once_a_machine(lambda: load(rank))
        assert module.fingerprint == encoder.fingerprint
        assert not any(parameter.requires_grad for parameter in module.parameters())
        return bool(mapped_files(tmp_path)), module(torch.full((1, 3, 32, 32), 0.5))

    for has_mapped, features in joined(function, 2, tmp_path, monkeypatch):
        assert has_mapped
        assert torch.equal(features, encoder(torch.full((1, 3, 32, 32), 0.5)))
    assert {path.suffix for path in tmp_path.iterdir()} == {".pt", ".out", ".err"}


def test_a_language_model_is_shared_before_it_is_packed(tmp_path, monkeypatch):
    tokens, starts = torch.ones(1, 1, 64), torch.ones(1, dtype=torch.bool)

    def function(rank=0):
        model = load_language_model(GOLDEN / "transfo_xl_k1", mem_len=3)
        return model.step(tokens, model.initial_memory(1), starts), bool(mapped_files(tmp_path))

    expected, _ = function()
    for hidden, has_mapped in joined(function, 2, tmp_path, monkeypatch):
        assert torch.equal(hidden, expected)
        assert has_mapped


class NotToBePickled(nn.Linear):
    def __reduce_ex__(self, protocol):
        raise TypeError("not to be pickled")


def test_what_cannot_be_pickled_every_process_loads(tmp_path, monkeypatch):
    def function(rank):
        return once_a_machine(lambda: NotToBePickled(2, 3)).out_features

    assert joined(function, 2, tmp_path, monkeypatch) == [3, 3]


def test_an_error_in_loading_is_said_once(tmp_path, monkeypatch):
    def load():
        raise UserError("no such weights")

    def function(rank):
        with pytest.raises(UserError) if rank == 0 else pytest.raises(SystemExit):
            once_a_machine(load)
        return True

    assert joined(function, 2, tmp_path, monkeypatch) == [True, True]
    assert errors(tmp_path, 1) == ""
