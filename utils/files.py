"""Files written whole or not at all, checked, by one process at a time, read without waiting.

Files of `torch.save` are read as data only, never as code. And folders: their names, and whether
one can be written into, asked before long work.
"""

import fcntl
import glob
import hashlib
import logging
import os
import shutil
import stat
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from utils.errors import UserError

log = logging.getLogger(__name__)
DATA_FOLDER = Path("data")  # of the files that prepare_*.py write
BLOCK = 2**24  # bytes read at a time for a checksum
LONGEST_NAME = 255  # bytes that file systems allow for one name


@contextmanager
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[BufferedRandom]:
    """Open a file beside `path` that takes its place once everything is on the disk.

    An interrupted writing leaves `path` as it was. Its file is kept as `previous`, if given.
    """
    partial = _partial(path)
    for other in path.parent.glob(f"{glob.escape(path.name)}.*.partial"):
        # The rest of a killed process, or a link to elsewhere; a living one writes its own.
        if other == partial or not Path("/proc", other.suffixes[-2][1:]).exists():
            other.unlink(missing_ok=True)
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


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.partial")


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode(errors="backslashreplace"))


def read_bytes(path: Path, most: int) -> bytes:
    """Return the bytes of a file, or all that is written to a pipe, as bash makes one of <(...).

    Raises:
        ValueError: there are more bytes than `most`, the pipe has no writer, or it is a device.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # not even opened, which may set it going
        raise ValueError("a device, not a file")
    content = bytearray()
    with open(path, "rb", buffering=0, opener=open_without_waiting) as file:
        while len(content) <= most:
            try:
                part = os.read(file.fileno(), most + 1 - len(content))
            except BlockingIOError:  # the writer has opened the pipe and not written yet
                os.set_blocking(file.fileno(), True)
                continue
            if not part:
                break
            content += part
        if not content and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise ValueError("a pipe without a writer")
    if len(content) > most:
        raise ValueError(f"more than {most:,} bytes")
    return bytes(content)


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file for `open`'s `opener`; a pipe does not wait for its other end."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


def backup_copy(path: Path) -> Path:
    copy = _free_name(path)
    shutil.copyfile(path, copy)
    return copy


def put_aside(path: Path) -> Path:
    aside = _free_name(path)
    path.replace(aside)
    return aside


def _free_name(path: Path) -> Path:
    number = 1
    while os.path.lexists(free := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    return free


def checksum(path: Path, n_bytes: int) -> "hashlib._Hash":
    """Return the sha256 of the first bytes of a file; ValueError if it has fewer."""
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
def file_lock(path: Path) -> Iterator[None]:
    """Keep other processes from working on a file, waiting first while another one does.

    A lock file stands beside it meanwhile, which locks nothing after a kill. The file itself need
    not exist yet.
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
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def hardlink(path: Path, other: Path) -> None:
    """Give a file a second name, replacing any file there; its first stands all along."""
    _second_name(path, other).replace(other)


def _second_name(path: Path, other: Path) -> Path:
    link = other.with_name(other.name + ".link")
    link.unlink(missing_ok=True)
    try:
        link.hardlink_to(path)
    except OSError:  # the file system has no second names
        shutil.copyfile(path, link)
    return link


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_tensors(value: Any, file: BinaryIO) -> None:
    """Write like `torch.save`, which hides an error of the disk behind one of its own."""
    import torch

    try:
        torch.save(value, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load_saved(file: Path | BinaryIO) -> Any:
    """Return the content of a file on the CPU, with nothing in it run.

    Raises:
        Exception: of any kind; torch documents no set of exceptions for a bad file.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a file that is refused needs no warning besides
        return torch.load(file, map_location="cpu", weights_only=True)


def check_without_links(folder: Path) -> None:
    """Raise UserError where a run folder holds a symbolic link, which may lead anywhere."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        if entry.is_symlink():
            raise UserError(
                f"{entry}: a link to {os.readlink(entry)}, and a run folder may not lead out of "
                "itself. Put the file itself in its place, or remove the link"
            )


def folder_name(name: str) -> str:
    return name.rpartition(":")[2].replace("/", "-")


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "helm")


def check_writable(folder: Path, name: str) -> None:
    """Raise UserError unless the folder, or the nearest existing one above it, can be written into.

    `name` is the user's word for it, such as "--output".
    """
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise UserError(f"{name} {folder}: cannot be written ({error})") from None
    existing = Path(os.path.abspath(folder))
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not os.path.isdir(existing):
        raise UserError(f"{name} {folder}: {existing} is not a folder. Choose another place")
    if not os.access(
        existing, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
    ):
        raise UserError(f"{name} {folder}: no permission to write in {existing}")


def check_file(path: Path) -> None:
    """Raise UserError where no file can be written whole, for its name or a folder in its place."""
    ending = _partial(path).name.removeprefix(path.name)
    if len(os.fsencode(path.name + ending)) > LONGEST_NAME:
        raise UserError(
            f"{path}: the name leaves no room for '{ending}' within {LONGEST_NAME} bytes. "
            "Choose shorter names, or change fewer settings"
        )
    if os.path.isdir(path) and not os.path.islink(path):
        raise UserError(f"{path}: a folder, where a file is to be written. Move it away")


def object_array(parts: Iterable[Any]) -> np.ndarray:
    """Return N things as an array of objects, tuples and dictionaries included.  [N]"""
    return np.fromiter(parts, dtype=object)
