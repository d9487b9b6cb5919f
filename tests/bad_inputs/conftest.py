import sys

import huggingface_hub
import pytest

import prepare_embeddings
from tests.bad_inputs.gallery import build_gallery
from tests.bad_inputs.harness import TRACE, no_connection


@pytest.fixture(scope="session")
def gallery(tmp_path_factory):
    return build_gallery(tmp_path_factory.mktemp("good") / "gallery")


@pytest.fixture
def in_gallery(gallery, monkeypatch):
    """Work in the gallery, without a connection; nothing in the files may be run."""
    monkeypatch.chdir(gallery)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(huggingface_hub, "get_session", no_connection)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fail = lambda *_: pytest.fail("the encoder was trained")  # noqa: E731
    monkeypatch.setattr(prepare_embeddings, "train_grid_clip", fail)
    yield gallery
    assert not (gallery / TRACE).exists()
