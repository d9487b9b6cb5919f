import pytest
import torch


def pytest_configure(config):
    torch.set_num_threads(1)  # test processes run side by side


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def in_empty_folder(tmp_path, monkeypatch):
    """Run the test in an empty working directory and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
