"""Run folders, checkpoints and models that somebody else has made."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import main as main_program
from models.language.files import find_model
from tests.agents import small_config
from tests.published_models import tiny_model_folder
from utils.errors import UserError
from utils.files import atomic_write
from utils.run_folder import create_run_folder


@pytest.fixture
def received(in_empty_folder):
    """Return the folder of a run that has begun, and a file elsewhere."""
    config = small_config(model="CNN-PPO", env="RandomMaze-v0", showcase_minutes=None)
    folder = create_run_folder(config, "received", [])
    Path("elsewhere").write_text("precious\n")
    return folder


def test_a_run_folder_may_itself_be_reached_by_a_link(received):
    Path("mine").symlink_to(received.resolve())
    assert main_program.main(["--resume", "mine"]) == 0


@pytest.mark.parametrize("existing", [True, False])
def test_what_is_written_never_follows_a_link(existing, in_empty_folder):
    if existing:
        Path("elsewhere").write_text("precious")
    Path(f"result.{os.getpid()}.partial").symlink_to("elsewhere")
    with atomic_write(Path("result")) as file:
        file.write(b"mine")
    assert Path("result").read_bytes() == b"mine"
    assert not Path("result").is_symlink()
    assert Path("elsewhere").exists() == existing
    assert not existing or Path("elsewhere").read_text() == "precious"


def test_two_programs_write_one_file_at_once_and_a_killed_one_leaves_no_rest(in_empty_folder):
    Path("result.999999999.partial").touch()  # no process has such a number
    write = "from pathlib import Path; from utils.files import write_text; "
    write += "write_text(Path('result'), 'theirs')"
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with atomic_write(Path("result")) as file:
        file.write(b"mine")
        subprocess.run([sys.executable, "-c", write], env=paths, check=True)
        assert Path("result").read_text() == "theirs"
    assert Path("result").read_text() == "mine"
    assert os.listdir() == ["result"]


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/hostname", "a/b.bin", 3, [1]])
def test_an_index_of_weights_stays_in_its_folder(name, tmp_path):
    folder = tiny_model_folder(tmp_path / "model", "bert")
    tiny_model_folder(tmp_path / "other", "bert")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"embeddings.word_embeddings.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"index\.json: (names weights outside|not a readable)"):
        find_model(folder).weights()
