"""Files that are written whole or not at all, and read without waiting for ever."""

import os
import shutil
import stat
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


def read_bytes(path: Path, most: int) -> bytes:
    """Return what is in a file, or all that is written to a pipe, as bash makes one of <(...).

    Raises:
        ValueError: there are more bytes than `most`, or nobody writes to the pipe.
    """
    content = bytearray()
    with open(path, "rb", buffering=0, opener=open_without_waiting) as file:
        while len(content) <= most:
            try:
                part = os.read(file.fileno(), most + 1 - len(content))
            except BlockingIOError:  # somebody has the pipe open who has not written yet
                os.set_blocking(file.fileno(), True)
                continue
            if not part:
                break
            content += part
        if not content and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise ValueError("a pipe that nobody writes to")
    if len(content) > most:
        raise ValueError(f"more than {most:,} bytes")
    return bytes(content)


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file for `open`'s `opener`; a pipe does not wait for its other end."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


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
