"""Files written whole or not at all, checked, by one process at a time, never run as code."""

import errno
import fcntl
import glob
import hashlib
import logging
import os
import re
import select
import shutil
import stat
import time
import warnings
import zipfile
from collections import OrderedDict
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
ELSEWHERE = "it has another name elsewhere, and a run writes into it. Put a copy in its place"
PATIENCE = 15.0  # seconds to wait for the writer of a pipe
HOLLOW = 2**24  # bytes; a larger file of which next to nothing is on the disk is a trap
MOST_SHARED = 16  # times that a saved state may be as large as its file: tensors share memory
IN_PLACE = re.compile(r"metrics\.csv|lock|.*\.rows")  # files of a run that are not made anew
WANDB_FOLDER = "wandb"  # within a run folder; its package links its latest run there


@contextmanager
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[BufferedRandom]:
    """Open a file beside `path` that takes its place once everything is on the disk.

    An interrupted writing leaves `path` as it was. Its file is kept as `previous`, if given.
    """
    partial = _partial(path)
    for other in path.parent.glob(f"{glob.escape(path.name)}.*.partial"):
        # The rest of a killed process, or a link to elsewhere; a living one writes its own.
        writer = other.suffixes[-2][1:]
        if other == partial or not (writer.isdecimal() and is_running(int(writer))):
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


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # asks only
    except PermissionError:  # somebody else's
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.partial")


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode(errors="backslashreplace"))


def read_bytes(path: Path, most: int, of_run: bool = False) -> bytes:
    """Return the bytes of a file, or all that is written to a pipe, as bash makes one of <(...).

    Raises:
        ValueError: there are more bytes than `most`, the pipe has no writer or one that writes
            nothing for long, or it is a device.
        UserError: the file is `of_run`, a run folder's, and not one that `open_of_run` opens.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # not even opened, which may set it going
        raise ValueError("a device, not a file")
    content, ends = bytearray(), time.monotonic() + PATIENCE
    opener = open_of_run if of_run else open_without_waiting
    with open(path, "rb", buffering=0, opener=opener) as file:
        while len(content) <= most:
            try:
                part = os.read(file.fileno(), most + 1 - len(content))
            except BlockingIOError:  # the writer has opened the pipe and not written yet
                left = max(0.0, ends - time.monotonic())
                if not select.select([file], [], [], left)[0]:
                    why = f"nothing more was written to it for {PATIENCE:g} seconds"
                    raise ValueError(f"a pipe, and {why}") from None
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


def open_of_run(path: str, flags: int) -> int:
    """Open a file of a run folder, which somebody else may have filled, for `open`'s `opener`.

    Raises:
        UserError: it is a link, which may lead to any file of the user; or as `open_regular`.
    """
    try:
        return open_regular(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(_why_refused(Path(path))) from None
        raise


def open_regular(path: str, flags: int) -> int:
    """Open a file for `open`'s `opener` that can be read at once, to its end.

    Raises:
        UserError: it is no file, such as a pipe; next to nothing of it is on the disk; or it is
            written in place and another file's second name.
    """
    file = os.open(path, flags | os.O_NONBLOCK, 0o666)
    facts, why = os.fstat(file), ""
    if not stat.S_ISREG(facts.st_mode):
        why = "no file. Remove it, or restore the run's"
    elif facts.st_size > HOLLOW and 512 * facts.st_blocks < facts.st_size / 100:
        why = f"of its {facts.st_size:,} bytes next to none are on the disk. Restore the run's"
    elif flags & (os.O_WRONLY | os.O_RDWR) and facts.st_nlink > 1:
        why = ELSEWHERE
    if why:
        os.close(file)
        raise UserError(f"{path}: {why}")
    return file


def make_folder_of_run(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    if folder.is_symlink():
        raise UserError(_why_refused(folder))


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
    with open(path, "rb", opener=open_of_run) as file:
        if not 0 <= n_bytes <= os.fstat(file.fileno()).st_size:
            raise ValueError("shorter than it was")
        while n_bytes:
            block = file.read(min(BLOCK, n_bytes))
            if not block:
                raise ValueError("shorter than it was")
            sha256.update(block)
            n_bytes -= len(block)
    return sha256


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Keep other processes from working on a file, waiting first while another one does."""
    # A lock file stands beside it meanwhile, which locks nothing after a kill. The file itself need
    # not exist yet.
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


def load_tensors(file: BinaryIO) -> Any:
    """Return the value that `save_tensors` has written from here to the file's end.

    Raises:
        ValueError: it holds other things than data, or takes far more memory than the file: packed,
            a number repeated by a stride of 0, or lists of the same lists.
        Exception: of any kind, as `load_saved`.
    """
    begin, n_bytes = file.tell(), os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(each.file_size for each in archive.infolist())
    file.seek(begin)
    value = load_saved(file) if unpacked <= n_bytes else None
    if max(unpacked, _n_bytes(value, {}) / MOST_SHARED) > n_bytes:
        raise ValueError("its content is far larger than the file")
    return value


def _n_bytes(value: Any, known: dict[int, int]) -> int:
    """Return about how many bytes a value takes where nothing is shared; `known` has its parts."""
    import torch

    if type(value) is torch.Tensor:
        return value.numel() * value.element_size()
    if isinstance(value, str | bytes | int | float | None):
        return len(value) if isinstance(value, str | bytes) else 1
    if type(value) not in (dict, OrderedDict, list, tuple):
        raise ValueError(f"it holds a {type(value).__name__}")
    if id(value) not in known:
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_n_bytes(part, known) for part in parts)
    return known[id(value)]


def check_plain(folder: Path, goes_on: bool = False) -> None:
    """Raise UserError where a run folder holds anything else, however deep, than files and folders.

    A link may lead anywhere, and reading a pipe may never end. W&B's links to its own files stay.
    Where the run `goes_on`, no file that it writes into may be another's second name.
    """
    if not folder.is_dir():
        return
    for parent, folders, files in os.walk(folder):
        for entry in sorted(Path(parent, name) for name in (*folders, *files)):
            facts = entry.lstat()
            kind = facts.st_mode
            is_wandbs = entry.relative_to(folder).parts[0] == WANDB_FOLDER and entry.is_symlink()
            if is_wandbs and Path(parent) != folder and _stays_within(folder, entry):
                continue
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise UserError(_why_refused(entry))
            is_two = stat.S_ISREG(kind) and facts.st_nlink > 1
            if goes_on and is_two and IN_PLACE.fullmatch(entry.name):
                raise UserError(f"{entry}: {ELSEWHERE}")


def _stays_within(folder: Path, link: Path) -> bool:
    return folder.resolve() in Path(os.path.realpath(link)).parents


def _why_refused(entry: Path) -> str:
    if not entry.is_symlink():
        return f"{entry}: neither a file nor a folder. Remove it, or restore the run's"
    return (
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
        limit = f"no room for '{ending}' within {LONGEST_NAME} bytes"
        raise UserError(f"{path}: {limit}. Choose shorter names, or change fewer settings")
    if os.path.isdir(path) and not os.path.islink(path):
        raise UserError(f"{path}: a folder, where a file is to be written. Move it away")


def object_array(parts: Iterable[Any]) -> np.ndarray:
    """Return N things as an array of objects, tuples and dictionaries included.  [N]"""
    return np.fromiter(parts, dtype=object)
