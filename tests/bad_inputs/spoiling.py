"""Trials: a program on a copy of good files, spoiled in their bytes, places or values."""

import contextlib
import json
import math
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from models.word_embeddings import CHECKSUM, PromptEmbeddings
from tests.bad_inputs.gallery import JSON_FILES, PNG, Intruder
from tests.bad_inputs.harness import run_forked
from trainers.checkpoint import load_checkpoint, save_checkpoint
from utils.files import load_saved

WHOLE = 1000  # parts of a file: a place in it is drawn as so many thousandths
BYTES = {
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


class Change(NamedTuple):
    """Something that befalls a file or folder before a program sees it.

    Attributes:
        path: Which.
        how: One of BYTES, of CHANGES, of PLACES, or "as PATH" for the content of another file.
        where: In its bytes, in thousandths; or the keys that lead to the value; or None.
    """

    path: str
    how: str
    where: int | tuple[Any, ...] | None = None

    def apply(self, place):
        """Do it below the place; do nothing where an earlier change has left nothing to spoil."""
        path = place / self.path
        if isinstance(self.where, int):
            content = path.read_bytes() if path.is_file() else b""
            at = min(self.where * len(content) // WHOLE, max(len(content) - 1, 0))
            if content:
                path.write_bytes(BYTES[self.how](content, at))
        elif self.where is not None:
            if path.is_file():  # an earlier change may have made it endless, or unreadable
                with contextlib.suppress(Exception):
                    write(path, replaced(read(path), self.where, self.how))
        elif self.how.startswith("as "):
            other = place / self.how.removeprefix("as ")
            if other.is_file() and path.is_file():
                path.write_bytes(other.read_bytes())
        elif path.exists():
            self._put(path)

    def _put(self, path):
        """Put something else where a file or folder was, or nothing."""
        if self.how in ("locked", "read-only"):
            path.chmod(0 if self.how == "locked" else 0o444 | path.is_dir() * 0o111)
            return
        kept = path.with_name(f"{path.name}.kept")
        path.rename(kept)
        own = LINKS | {"a link to its copy": kept.name, "a link to itself": path.name}
        if self.how != "a link to its copy":
            shutil.rmtree(kept) if kept.is_dir() and not kept.is_symlink() else kept.unlink()
        if self.how in ("a folder", "a full folder"):
            path.joinpath(*["config.json"] * (self.how == "a full folder")).mkdir(parents=True)
        elif self.how == "a pipe":
            os.mkfifo(path)
        elif self.how != "removed":
            path.symlink_to(own[self.how])


class Trial(NamedTuple):
    """A program with its words, on spoiled files."""

    command: tuple[str, ...]
    changes: list[Change]

    def run(self, gallery):
        """Run the program on a copy of the good files, changed."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            place = Path(shutil.copytree(gallery, Path(folder) / "a" / "b" / "place"))
            for change in self.changes:
                change.apply(place)
            return run_forked(self.command[0], list(self.command[1:]), place)

    def __str__(self):
        return "\n    ".join([shlex.join(self.command)[:600], *map(str, self.changes)])


def read(path):
    """Return the content of a good file."""
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    if path.suffix == ".safetensors":
        return load_file(path)
    return load_checkpoint(path) if path.suffix == ".pt" else load_saved(path)


def write(path, content):
    """Write a file of the kind its ending says; embeddings with a checksum that is right."""
    if path.suffix == ".json":
        path.write_text(json.dumps(content, default=str))
    elif path.suffix == ".npz" and CHECKSUM in content:
        PromptEmbeddings(**{k: v for k, v in content.items() if k != CHECKSUM}).write(path)
    elif path.suffix == ".npz":
        np.savez(path, **content)
    elif path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in content.items()}, path)
    elif path.suffix == ".pt":
        save_checkpoint(path, content)
    else:
        torch.save(content, path)


def places_in(content, at=()):
    """Yield where every value stands in nested dictionaries, lists and tuples, the whole first."""
    yield at
    items = content.items() if isinstance(content, dict) else ()
    items = enumerate(content[:20]) if isinstance(content, list | tuple) else items
    for key, value in items:
        yield from places_in(value, (*at, key))


def replaced(content, where, how):
    """Return a copy of nested values with one of them changed."""
    if not where:
        return CHANGES[how](content)
    (key, *rest), is_dict = where, isinstance(content, dict)
    items = dict(content) if is_dict else list(content)
    if not rest and how == "removed":
        del items[key]
    else:
        items[key] = replaced(content[key], tuple(rest), how)
    return items if is_dict else type(content)(items)


def _rows(change):
    """Return a change of tensors that works on arrays, and makes a text of all else."""

    def changed(value):
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return change(torch.from_numpy(value.copy())).numpy()
        if isinstance(value, np.ndarray) and value.ndim:
            return value[:-1]
        return change(value) if isinstance(value, torch.Tensor) else str(value)

    return changed


def _constant(value):
    return lambda old: np.array(value) if isinstance(old, np.ndarray) else value


def _largest(dtype):
    if dtype == torch.bool:
        return True
    return torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max


CONSTANTS: dict = {
    "None": None,
    "true": True,
    "0": 0,
    "-1": -1,
    "2**63": 2**63,
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
CHANGES = {
    **{name: _constant(value) for name, value in CONSTANTS.items()},
    "removed": _constant(None),
    "in a list": lambda value: [value],
    "another key": lambda value: dict(value) | {"more": 1} if isinstance(value, dict) else [value],
    "a number as key": lambda value: {1: 2, **value} if isinstance(value, dict) else {1: value},
    "turned": _rows(lambda tensor: tensor.flip(-1) if tensor.ndim else tensor[None]),
    "flat": _rows(torch.flatten),
    "without a row": _rows(lambda tensor: tensor[:-1]),
    "with a row more": _rows(lambda tensor: torch.cat([tensor, tensor[-1:]])),
    "without rows": _rows(lambda tensor: tensor[:0]),
    "one dimension more": _rows(lambda tensor: tensor[None]),
    "its first": _rows(lambda tensor: tensor.flatten()[:1].squeeze()),
    "as float64": _rows(torch.Tensor.double),
    "as int32": _rows(torch.Tensor.int),
    "as complex": _rows(lambda tensor: tensor.to(torch.complex64)),
    "as bfloat16": _rows(torch.Tensor.bfloat16),
    "negative": _rows(lambda tensor: -tensor.double().abs().to(tensor.dtype) - 1),
    "very large": _rows(lambda tensor: torch.full_like(tensor, _largest(tensor.dtype))),
    "not finite": _rows(lambda tensor: (tensor.double() * math.nan).to(torch.float32)),
    "vast": _rows(lambda tensor: torch.zeros(1, dtype=tensor.dtype).expand(10**7, 10**5)),
    "sparse": _rows(lambda tensor: tensor.to_sparse()),
    "on no device": _rows(lambda tensor: tensor.to("meta")),
    "a parameter": _rows(lambda tensor: torch.nn.Parameter(tensor.float())),
    "an intruder": lambda value: (
        np.array([Intruder()], object) if isinstance(value, np.ndarray) else Intruder()
    ),
    "an array as text": lambda value: np.asarray(value).astype(str),
}


def trials(gallery, commands, paths, valued=(), most=2):
    """Return a strategy of commands after some changes of files, most often one.

    Args:
        gallery: The good files.
        commands: Programs with their words.
        paths: Files and folders to spoil.
        valued: Those of them with values that can be changed one by one.
        most: Changes.
    """
    path, others = st.sampled_from(paths), [f"as {each}" for each in (*paths, *valued)]
    at = st.integers(0, WHOLE) | st.integers(0, 20)
    kinds = [
        st.builds(Change, path, st.sampled_from(sorted(BYTES)), at),
        st.builds(Change, path, st.sampled_from([*PLACES, *others]), st.none()),
    ]
    for each in valued:
        where = st.sampled_from(list(places_in(read(gallery / each))))
        kinds.append(st.builds(Change, st.just(each), st.sampled_from(sorted(CHANGES)), where))
    changes = st.lists(st.one_of(kinds), min_size=1, max_size=most)
    return st.builds(Trial, st.sampled_from(commands), changes)
