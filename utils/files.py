"""Files written whole or not at all, checked, by one process at a time, read without waiting."""

import fcntl
import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path

log = logging.getLogger(__name__)
BLOCK = 2**24  # bytes read at a time for a checksum


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
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # writing does not say where
        raise
    sync_folder(path.parent)


def read_bytes(path: Path, most: int) -> bytes:
    """Return what is in a file, or all that is written to a pipe, as bash makes one of <(...).

    Raises:
        ValueError: there are more bytes than `most`, nobody writes to the pipe, or it is a device.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # not even opened, which may set it going
        raise ValueError("a device, not a file")
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
    copy = _free_name(path)
    shutil.copyfile(path, copy)
    return copy


def put_aside(path: Path) -> Path:
    """Give a damaged file a name beside its own that nothing has yet, and return that."""
    aside = _free_name(path)
    path.replace(aside)
    return aside


def _free_name(path: Path) -> Path:
    number = 1
    while os.path.lexists(free := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    return free


def checksum(path: Path, n_bytes: int) -> "hashlib._Hash":
    """Return the sha256 of the first bytes of a file, to which more can be added.

    Raises:
        OSError: it cannot be read.
        ValueError: it has fewer bytes.
    """
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while n_bytes:
            block = file.read(min(BLOCK, n_bytes))
            if not block:
                raise ValueError("shorter than it was")
            sha256.update(block)
            n_bytes -= len(block)
    return sha256


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
