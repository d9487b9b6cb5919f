import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from utils.hub import HubError, hub_file


@pytest.fixture
def asked(hub, tmp_path):
    """Put a model on the hub, with a revision of its own; return the files that are asked for."""
    (tmp_path / "second.bin").write_text("weights")
    hub.folders |= dict.fromkeys(("someone/model", "someone/model@abc"), tmp_path)
    return hub.asked


def test_the_first_file_that_exists_is_fetched_a_revision_by_its_name(asked):
    assert hub_file("someone/model", "first.bin", "second.bin").read_text() == "weights"
    assert hub_file("someone/model@abc", "second.bin").read_text() == "weights"
    assert asked == [("first.bin", None), ("second.bin", None), ("second.bin", "abc")]


def test_what_was_fetched_before_is_not_fetched_again(asked, monkeypatch, tmp_path):
    cached, looked_for = {"second.bin": str(tmp_path / "second.bin")}, []

    def try_to_load(_, name, revision):
        looked_for.append(revision)
        return cached.get(name)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", try_to_load)
    for repository in ("someone/model", "someone/model@abc"):
        assert hub_file(repository, "first.bin", "second.bin").read_text() == "weights"
    assert (asked, looked_for) == ([], [None, None, "abc", "abc"])


def test_files_a_repository_does_not_have_are_named(asked):
    with pytest.raises(HubError, match=r"someone/model on the hub has no a\.bin or b\.bin"):
        hub_file("someone/model", "a.bin", "b.bin")


@pytest.mark.parametrize("error", [LocalEntryNotFoundError("no file.\nmore"), OSError("")])
def test_a_broken_connection_is_one_line_and_not_tried_twice(hub, monkeypatch, error):
    asked = []

    def unreachable(_, name, revision):
        asked.append(name)
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    with pytest.raises(HubError) as caught:
        hub_file("someone/model", "a.bin", "b.bin")
    assert str(caught.value) in ("no file", "OSError")
    assert asked == ["a.bin"]
