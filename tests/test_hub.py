import huggingface_hub
import pytest
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from utils.hub import HubError, hub_file


class Session:
    def head(self, url, timeout):
        assert timeout <= 5


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Stand in for the hub: a folder a repository; the fixture is the list of downloads."""
    downloaded = []

    def download(repository, name, revision):
        downloaded.append(name if revision is None else f"{name} of {revision}")
        path = tmp_path / repository / name
        if not path.is_file():
            raise EntryNotFoundError(name)
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, "get_session", Session)
    (tmp_path / "someone" / "model").mkdir(parents=True)
    (tmp_path / "someone" / "model" / "second.bin").write_text("weights")
    return downloaded


def test_the_first_file_that_exists_is_fetched(hub):
    assert hub_file("someone/model", "first.bin", "second.bin").read_text() == "weights"
    assert hub == ["first.bin", "second.bin"]


def test_what_was_fetched_before_is_not_fetched_again(hub, monkeypatch, tmp_path):
    cached = {"second.bin": str(tmp_path / "someone" / "model" / "second.bin")}
    asked = []

    def try_to_load(_, name, revision):
        asked.append(revision)
        return cached.get(name)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", try_to_load)
    assert hub_file("someone/model", "first.bin", "second.bin").read_text() == "weights"
    assert hub_file("someone/model@abc", "second.bin").read_text() == "weights"
    assert hub == []
    assert asked == [None, None, "abc"]


def test_a_revision_is_asked_for_by_name(hub):
    assert hub_file("someone/model@abc", "second.bin").read_text() == "weights"
    assert hub == ["second.bin of abc"]


def test_files_a_repository_does_not_have_are_named(hub):
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
