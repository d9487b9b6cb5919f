"""The script that fetches Psychlab's pictures, with an archive of small ones on this disk."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent.parent / "data" / "brady_konkle_oliva2008" / "fetch.sh"
N_PICTURES = 2400


def jpeg(colour=0):
    content = io.BytesIO()
    Image.new("RGB", (2, 2), (colour, 0, 0)).save(content, "JPEG")
    return content.getvalue()


def archive(path, n_pictures=N_PICTURES, **others):
    with zipfile.ZipFile(path, "w") as file:
        picture = jpeg()
        for number in range(n_pictures):
            file.writestr(f"objects/{number:04}.jpg", picture)
        for name, content in others.items():
            file.writestr(name, content)
    return path


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a copy of the script in it."""
    (tmp_path / "pictures").mkdir()
    shutil.copy(SCRIPT, tmp_path / "pictures")
    return tmp_path / "pictures"


def fetch(folder, path, **more):
    environment = os.environ | {"STIMULI_URL": path.as_uri(), "PYTHON": sys.executable} | more
    command = ["sh", str(folder / "fetch.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_first_archive_is_recorded_and_another_is_refused(folder, tmp_path):
    first = archive(tmp_path / "first.zip", **{"../../outside.txt": b"x"})
    done = fetch(folder, first)
    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob("*.png"))) == N_PICTURES
    sha256 = hashlib.sha256(first.read_bytes()).hexdigest()
    assert (folder / "archive.sha256").read_text() == f"{sha256}\n"
    assert "nothing to be compared with" in done.stdout

    again = fetch(folder, first)
    assert again.returncode == 0
    assert "nothing to be compared with" not in again.stdout
    names = sorted(folder.iterdir())
    refused = fetch(folder, archive(tmp_path / "other.zip", **{"more.txt": b"x"}))
    assert refused.returncode == 1
    assert f"expected is {sha256}" in refused.stderr
    assert sorted(folder.iterdir()) == names
    assert not (tmp_path / "outside.txt").exists()


NOT_IT = "not the archive of pictures"
DAMAGES = {
    "too few": (lambda path: archive(path, N_PICTURES - 1), "holds 2399 pictures, not 2400"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-1000]), NOT_IT),
    "text": (lambda path: path.write_text("<html>not found</html>"), NOT_IT),
    "no picture": (lambda path: archive(path, N_PICTURES - 1, **{"objects/9.jpg": b"hi"}), NOT_IT),
    "a checksum": (lambda path: None, "expected is 0000"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_archive_is_refused_and_leaves_nothing(damage, folder, tmp_path):
    change, text = DAMAGES[damage]
    change(archive(tmp_path / "a.zip"))
    more = {"STIMULI_SHA256": "0" * 64} if damage == "a checksum" else {}
    done = fetch(folder, tmp_path / "a.zip", **more)
    assert done.returncode == 1
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert [entry.name for entry in folder.iterdir()] == ["fetch.sh"]
