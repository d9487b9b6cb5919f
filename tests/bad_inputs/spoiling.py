"""What may become of a good file or folder: of its bytes, its place, or the values in it."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.bad_inputs.workshop import JSON_FILES, PNG, Intruder
from trainers.checkpoint import load_checkpoint, save_checkpoint
from utils.saved_tensors import load_saved

Where = tuple[Any, ...]
WHOLE = 1000  # parts of a file: a place in it is drawn as so many thousandths
BYTES: dict[str, Callable[[bytes, int], bytes]] = {
    "emptied": lambda content, at: b"",
    "cut": lambda content, at: content[:at],
    "beheaded": lambda content, at: content[at:],
    "a bit flipped": lambda content, at: (
        content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]
    ),
    "a byte lost": lambda content, at: content[:at] + content[at + 1 :],
    "zeros inside": lambda content, at: content[:at] + bytes(64) + content[at + 64 :],
    "text inside": lambda content, at: content[:at] + "\n1e999,é\0\u2028".encode() + content[at:],
    "half sign inside": lambda content, at: content[:at] + b"\xff\xed\xa0\x80" + content[at:],
    "twice": lambda content, at: content + content,
    "a part twice": lambda content, at: content[:at] + content[at // 2 :],
    "CRLF": lambda content, at: content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "CR": lambda content, at: content.replace(b"\r\n", b"\n").replace(b"\n", b"\r"),
    "LF": lambda content, at: content.replace(b"\r\n", b"\n"),
    "byte order mark": lambda content, at: b"\xef\xbb\xbf" + content,
    "utf-16": lambda content, at: content.decode("latin-1").encode("utf-16"),
    "a longer number": lambda content, at: content[:at] + b"9" * 400 + content[at:],
    "picture": lambda content, at: PNG,
    "zeros": lambda content, at: bytes(len(content)),
} | {f"JSON, {name}": lambda content, at, new=new: new for name, new in JSON_FILES.items()}
LINKS = {"a link to nothing": "nowhere", "a link to a folder": "."}
LINKS |= {path: path for path in ("/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem")}
PLACES = (
    *("removed", "a folder", "a full folder", "a pipe", "locked", "read-only"),
    *("a link to itself", "a link to its copy", *LINKS),
)


class Change(Protocol):
    """Something to do to a place before a program sees it."""

    def apply(self, place: Path) -> None:
        """Do it below the place; do nothing where an earlier change has left nothing to spoil."""


class OtherBytes(NamedTuple):
    """A file's bytes are no longer what they were."""

    path: str
    how: str
    at: int

    def apply(self, place: Path) -> None:
        """Write the other bytes."""
        path = place / self.path
        if path.is_file():
            content = path.read_bytes()
            at = min(self.at * len(content) // WHOLE, max(len(content) - 1, 0))
            if content:
                path.write_bytes(BYTES[self.how](content, at))


class OtherFile(NamedTuple):
    """Another file of the place stands where a file was."""

    path: str
    other: str

    def apply(self, place: Path) -> None:
        """Copy the other file."""
        if (place / self.other).is_file() and (place / self.path).parent.is_dir():
            content = (place / self.other).read_bytes()
            _remove(place / self.path)
            (place / self.path).write_bytes(content)


class OtherPlace(NamedTuple):
    """Where a file or folder was is now something else, or nothing."""

    path: str
    how: str

    def apply(self, place: Path) -> None:
        """Take the path away and put the other thing there."""
        path = place / self.path
        if not path.exists() or not path.parent.is_dir():
            return
        if self.how in ("locked", "read-only"):
            path.chmod(0 if self.how == "locked" else 0o444 | path.is_dir() * 0o111)
            return
        kept = path.with_name(f"{path.name}.kept")
        path.rename(kept)
        if self.how != "a link to its copy":
            _remove(kept)
        _put(self.how, path, kept)


class OtherValue(NamedTuple):
    """A value in a well-formed file is another one."""

    path: str
    where: Where
    how: str

    def apply(self, place: Path) -> None:
        """Write the file anew."""
        path = place / self.path
        if not path.is_file():  # an earlier change may have made it endless
            return
        try:
            content = read(path)
            write(path, replaced(content, self.where, self.how))
        except Exception:  # spoiled before, or not there in this format
            return


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _put(how: str, path: Path, kept: Path) -> None:
    if how in ("a folder", "a full folder"):
        path.mkdir()
        if how == "a full folder":
            (path / "config.json").mkdir()
    elif how == "a pipe":
        os.mkfifo(path)
    elif how != "removed":
        own = {"a link to its copy": kept.name, "a link to itself": path.name}
        path.symlink_to((LINKS | own)[how])


def read(path: Path) -> Any:
    """Return what stands in a good file."""
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    if path.suffix == ".safetensors":
        return load_file(path)
    return load_checkpoint(path) if path.suffix == ".pt" else load_saved(path)


def write(path: Path, content: Any) -> None:
    """Write a file of the kind its ending says."""
    if path.suffix == ".json":
        path.write_text(json.dumps(content, default=str))
    elif path.suffix == ".npz":
        np.savez(path, **content)
    elif path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in content.items()}, path)
    elif path.suffix == ".pt":
        save_checkpoint(path, content)
    else:
        torch.save(content, path)


def places_in(content: Any, at: Where = ()) -> Iterator[Where]:
    """Yield where every value stands in nested dictionaries, lists and tuples, the whole first."""
    yield at
    if isinstance(content, dict):
        for key, value in content.items():
            yield from places_in(value, (*at, key))
    elif isinstance(content, list | tuple):
        for number, value in enumerate(content[:20]):
            yield from places_in(value, (*at, number))


def replaced(content: Any, where: Where, how: str) -> Any:
    """Return nested values with one of them changed; what is changed is made anew."""
    if not where:
        return CHANGES[how](content)
    key, *rest = where
    if isinstance(content, dict):
        changed = dict(content)
        if not rest and how == "removed":
            del changed[key]
        else:
            changed[key] = replaced(content[key], tuple(rest), how)
        return changed
    items = list(content)
    items[key : key + 1] = (
        [] if not rest and how == "removed" else [replaced(items[key], tuple(rest), how)]
    )
    return type(content)(items)


def _rows(change: Callable[[torch.Tensor], Any]) -> Callable[[Any], Any]:
    """Return a change of tensors that works on arrays, and makes a text of all else."""

    def changed(value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return change(torch.from_numpy(value.copy())).numpy()
        return change(value) if isinstance(value, torch.Tensor) else str(value)

    return changed


def _constant(value: Any) -> Callable[[Any], Any]:
    def changed(old: Any) -> Any:
        return np.array(value) if isinstance(old, np.ndarray) else value

    return changed


CONSTANTS: dict[str, Any] = {
    "None": None,
    "true": True,
    "0": 0,
    "-1": -1,
    "2**63": 2**63,
    "10**30": 10**30,
    "-10**400": -(10**400),
    "0.5": 0.5,
    "NaN": math.nan,
    "infinity": math.inf,
    "text": "text",
    "no text": "",
    "text with signs": "a\n\x1b[31m\0b",
    "half a sign": "\ud800",
    "above": "../../../elsewhere",
    "a megabyte": "k" * 2**20,
    "no list": [],
    "no dictionary": {},
    "nested": [[[{"a": [None]}]]],
}
CHANGES: dict[str, Callable[[Any], Any]] = {
    **{name: _constant(value) for name, value in CONSTANTS.items()},
    "removed": _constant(None),
    "in a list": lambda value: [value],
    "as text": str,
    "another key": lambda value: dict(value) | {"more": 1} if isinstance(value, dict) else [value],
    "a number as key": lambda value: (
        dict(value) | {1: 2} if isinstance(value, dict) else {1: value}
    ),
    "turned": _rows(lambda tensor: tensor.flip(-1) if tensor.ndim else tensor[None]),
    "flat": _rows(torch.flatten),
    "transposed": _rows(lambda tensor: tensor.permute(*range(tensor.ndim)[::-1])),
    "without a row": _rows(lambda tensor: tensor[:-1]),
    "with a row more": _rows(lambda tensor: torch.cat([tensor, tensor[-1:]])),
    "without rows": _rows(lambda tensor: tensor[:0]),
    "one dimension more": _rows(lambda tensor: tensor[None]),
    "its first": _rows(lambda tensor: tensor.flatten()[:1].squeeze()),
    "as float64": _rows(torch.Tensor.double),
    "as int32": _rows(torch.Tensor.int),
    "as bool": _rows(torch.Tensor.bool),
    "as complex": _rows(lambda tensor: tensor.to(torch.complex64)),
    "as bfloat16": _rows(torch.Tensor.bfloat16),
    "negative": _rows(lambda tensor: -tensor.double().abs().to(tensor.dtype) - 1),
    "very large": _rows(lambda tensor: torch.full_like(tensor, _largest(tensor.dtype))),
    "not finite": _rows(lambda tensor: tensor.double() * math.nan),
    "vast": _rows(lambda tensor: torch.zeros(1, dtype=tensor.dtype).expand(10**7, 10**5)),
    "sparse": _rows(lambda tensor: tensor.to_sparse()),
    "on no device": _rows(lambda tensor: tensor.to("meta")),
    "a parameter": _rows(lambda tensor: torch.nn.Parameter(tensor.float())),
    "an intruder": lambda value: (
        np.array([Intruder()], object) if isinstance(value, np.ndarray) else Intruder()
    ),
    "objects": lambda value: np.array([None, 1], object),
    "an array as text": lambda value: np.asarray(value).astype(str),
}


def _largest(dtype: torch.dtype) -> float | bool:
    if dtype == torch.bool:
        return True
    return torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max


def other_bytes(paths: list[str]) -> st.SearchStrategy[Change]:
    """Return a strategy of changes of one file's bytes."""
    at = st.integers(0, WHOLE) | st.integers(0, 20)
    return st.builds(OtherBytes, st.sampled_from(paths), st.sampled_from(sorted(BYTES)), at)


def other_files(paths: list[str], others: list[str]) -> st.SearchStrategy[Change]:
    """Return a strategy of files swapped."""
    return st.builds(OtherFile, st.sampled_from(paths), st.sampled_from(others))


def other_places(paths: list[str]) -> st.SearchStrategy[Change]:
    """Return a strategy of files and folders become something else."""
    return st.builds(OtherPlace, st.sampled_from(paths), st.sampled_from(PLACES))


def other_values(place: Path, paths: list[str]) -> st.SearchStrategy[Change]:
    """Return a strategy of values changed in well-formed files, which are read for their values."""
    values = {path: list(places_in(read(place / path))) for path in paths}
    how = st.sampled_from(sorted(CHANGES))
    return st.one_of(
        [
            st.builds(OtherValue, st.just(path), st.sampled_from(where), how)
            for path, where in values.items()
        ]
    )
