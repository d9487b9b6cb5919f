import gc
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import huggingface_hub
import hypothesis
import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError

import trainers.parts  # noqa: F401  hands the parts to the settings
from envs import miniworld
from models import baselines
from tests import published_models
from tests.fake_lab import FakeLab
from tests.published_models import DECODERS, OTHERS, TRANSFORMER_XL, tiny_model_folder
from utils.errors import UserError

# Each in a folder named after its source: compiled code, unpacked weights.
MADE_ONCE = ("crafter", "gguf")
hypothesis.settings.register_profile(
    "project", max_examples=20, deadline=None, derandomize=True, database=None
)
hypothesis.settings.load_profile("project")
# What an earlier test has left must not be collected in a fork: EnvPool would wait for threads that
# a fork does not have.
os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)
USERS_CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")


def pytest_addoption(parser):
    parser.addoption("--examples", type=int, help="hostile inputs of each kind, others each time")


def pytest_configure(config):
    torch.set_num_threads(1)  # test processes run side by side
    os.environ["OMP_NUM_THREADS"] = "1"  # and their children
    # PyTorch notes once which functions follow `with torch.device`. Within transformers, which
    # puts another linspace in the place of torch's for a while, it would note the wrong one.
    with torch.device("cpu"):
        torch.empty(0)
    os.fsync = lambda _: None  # tests kill processes, never the machine
    baselines.N_FEATURES_NO_MEMORY = 64  # as published, each checkpoint of a CNN takes up to 137 MB


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the cases of a test as slow that its mark `quick` does not name."""
    for item in items:
        mark = item.get_closest_marker("quick")
        if mark and item.callspec.id not in mark.args:
            item.add_marker("slow")


@pytest.fixture(scope="session", autouse=True)
def own_data_folder(tmp_path_factory):
    """Keep the user's data and cache folders among those of the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("data"))
    caches = tmp_path_factory.mktemp("cache")
    os.environ["XDG_CACHE_HOME"] = str(caches)
    (caches / "helm").mkdir()
    for name in MADE_ONCE:
        own = Path(USERS_CACHE, "helm", name)
        own.mkdir(parents=True, exist_ok=True)
        (caches / "helm" / name).symlink_to(own)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """Write a tiny sentence encoder and return its folder."""
    return str(published_models.tiny_sentence_encoder(tmp_path_factory.mktemp("encoder")))


@pytest.fixture(scope="session")
def decoders(tmp_path_factory):
    """Write a tiny language model of every kind and return their folders."""
    made = tmp_path_factory.mktemp("decoders")
    folders = {name: tiny_model_folder(made / name, name) for name in DECODERS | OTHERS}
    return folders | {"transfo-xl": TRANSFORMER_XL}


@pytest.fixture
def in_empty_folder(tmp_path, monkeypatch):
    """Run the test in an empty working directory and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def somebody_else(monkeypatch, tmp_path):
    """Return a function after which everything here was begun by another user."""
    return lambda: monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of_somebody_else"))


@pytest.fixture
def lab(monkeypatch):
    """Put the stand-in where DeepMind Lab would be."""
    module = ModuleType("deepmind_lab")
    module.Lab = FakeLab
    monkeypatch.setitem(sys.modules, "deepmind_lab", module)
    monkeypatch.setattr(FakeLab, "opened", [])
    return FakeLab


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Stand in for the hub: repositories' folders by name, and the files that were asked for."""
    stand_in = SimpleNamespace(folders={}, asked=[])

    def download(repository, name, revision):
        stand_in.asked.append((name, revision))
        path = stand_in.folders[f"{repository}@{revision}" if revision else repository] / name
        if not path.is_file():
            raise EntryNotFoundError(name)
        return str(path)

    class Session:
        def head(self, url, timeout):
            assert timeout <= 5

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, "get_session", Session)
    return stand_in


@pytest.fixture(scope="session")
def opengl():
    """Skip where MiniWorld cannot be drawn."""
    try:
        miniworld.MiniWorld().make(
            SimpleNamespace(env="MiniWorld-Sign-v0", n_envs=1), seed=0
        ).close()
    except (UserError, ModuleNotFoundError) as error:
        pytest.skip(f"MiniWorld cannot be played here: {error}")
