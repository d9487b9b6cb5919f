"""Files that are written whole or not at all, and by one process at a time."""

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path

log = logging.getLogger(__name__)


@contextmanager
def written_whole(path: Path, previous: Path | None = None) -> Iterator[BufferedRandom]:
    """Open a file beside `path` that takes its place once everything is on the disk.

    Whatever interrupts the writing leaves `path` as it was.

    Args:
        path: Where the file will stand.
        previous: Where the file that stands there now is kept; None overwrites it.
    """
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)  # what a killed process has left, or a link to elsewhere
    try:
        with partial.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        kept = _second_name(path, previous) if previous and path.exists() else None
        partial.replace(path)
        if previous and kept:  # only now, so that there are two whole files at all times
            kept.replace(previous)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Keep other processes from working on a file, waiting first while another one does.

    A lock stands beside the file meanwhile; what a killed process leaves of it locks nothing.

    Args:
        path: What is worked on; it need not exist, but its folder.
    """
    lock = path.with_name(path.name + ".lock")
    while True:
        with lock.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("%s: waiting for another process that is making it", path)
                fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_still(lock, file.fileno()):  # the other one has removed it at its end
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _is_still(path: Path, descriptor: int) -> bool:
    """Return whether an open file is the one that stands under a name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


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
