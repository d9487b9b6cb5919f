import os
import sys

import huggingface_hub
import pytest

import prepare_embeddings
from tests.bad_inputs.workshop import TRACE, build


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Return the folder of bad files, made once."""
    folder = tmp_path_factory.mktemp("workshop")
    before = os.getcwd()
    os.chdir(folder)
    try:
        build(folder)
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def workshop(built, monkeypatch):
    """Work in the folder of bad files, without a connection; nothing in the files may be run."""

    def unreachable(*_, **__):
        raise ConnectionError("no connection")

    def train(*_):
        pytest.fail("the encoder was trained")

    monkeypatch.chdir(built)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(huggingface_hub, "get_session", unreachable)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(prepare_embeddings, "train_grid_clip", train)
    yield built
    assert not (built / TRACE).exists()
