import pytest

from models.language.load import local_main_process_first
from tests.ranks import errors, on_ranks
from trainers.ranks import joined_ranks
from utils.errors import UserError


def joined(function, size, folder):
    """Return the results of a function in every rank, the ranks having joined."""

    def on_rank(rank):
        with joined_ranks():
            return function(rank)

    return on_ranks(size, on_rank, folder)


def test_the_first_process_loads_before_the_others(tmp_path):
    def load(rank):
        if rank == 0:
            (tmp_path / "fetched").write_text("weights")
        return (tmp_path / "fetched").read_text()

    def function(rank):
        return local_main_process_first(lambda: load(rank))

    assert joined(function, 3, tmp_path) == ["weights"] * 3


def test_an_error_in_loading_is_said_once(tmp_path):
    def load():
        raise UserError("no such weights")

    def function(rank):
        with pytest.raises(UserError) if rank == 0 else pytest.raises(SystemExit):
            local_main_process_first(load)
        return True

    assert joined(function, 2, tmp_path) == [True, True]
    assert errors(tmp_path, 1) == ""
