"""requirements.lock, from which the Makefile installs, beside requirements.txt."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCK = (ROOT / "requirements.lock").read_text()
ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


def wanted():
    """Return the packages a person has written down, with their versions."""
    files = ("requirements.txt", "requirements.models.txt")
    lines = [line for name in files for line in (ROOT / name).read_text().splitlines()]
    return [line.split("==") for line in lines if line and not line.startswith("#")]


def locked(text):
    """Return the hashes of every package and version in a lock."""
    return {(name, version): HASH.findall(rest) for name, version, rest in ENTRY.findall(text)}


@pytest.mark.parametrize(("name", "version"), wanted())
def test_every_requirement_is_in_the_lock_in_its_version(name, version):
    assert (name, version) in locked(LOCK), "run: make lock"


def test_every_package_of_the_lock_has_its_hashes():
    entries = locked(LOCK)
    assert len(entries) > len(wanted())
    assert [entry for entry, hashes in entries.items() if not hashes] == []
    begun = [line for line in LOCK.splitlines() if line and line[0] not in " #"]
    assert len(begun) == len(entries)  # so there is nothing in it but such entries


def test_the_lock_names_no_place_to_install_from():
    assert "://" not in LOCK
    assert not re.search(r"^\s*--(?!hash=)|^-", LOCK, re.MULTILINE)
