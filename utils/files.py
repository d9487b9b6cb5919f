"""Files that are written whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path


@contextmanager
def written_whole(path: Path, previous: Path | None = None) -> Iterator[BufferedRandom]:
    """Open a file beside `path` that takes its place once everything is on the disk.

    Whatever interrupts the writing leaves `path` as it was.

    Args:
        path: Where the file will stand.
        previous: Where the file that stands there now is kept; None overwrites it.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        kept = _second_name(path, previous) if previous and path.exists() else None
        partial.replace(path)
        if previous and kept:  # only now, so that there are two whole files at all times
            kept.replace(previous)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # writing does not say where
        raise
    sync_folder(path.parent)


def keep_copy(path: Path) -> Path:
    """Copy a damaged file to a name beside its own that nothing has yet, and return that."""
    number = 1
    while os.path.lexists(copy := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    shutil.copyfile(path, copy)
    return copy


def name_also(path: Path, other: Path) -> None:
    """Give a file a second name, in place of whatever stood there; its first stands all along."""
    _second_name(path, other).replace(other)


def _second_name(path: Path, other: Path) -> Path:
    """Return a new name of a file, beside the place it is meant for."""
    link = other.with_name(other.name + ".link")
    link.unlink(missing_ok=True)
    try:
        link.hardlink_to(path)
    except OSError:  # the file system has no second names
        shutil.copyfile(path, link)
    return link


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder onto the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
