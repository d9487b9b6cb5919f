"""Reading the strings of a language model's tokens; a file can hold data only, never code."""

import json
from collections.abc import Callable
from pathlib import Path

from utils.errors import UserError
from utils.saved_tensors import load_saved


def read_vocabulary(path: Path) -> list[str]:
    """Return the string of every token, in the order of their ids."""
    try:
        return [str(token) for token in READERS[path.name](path)]
    except Exception as error:  # a broken file raises about ten kinds of errors
        raise UserError(f"{path}: not a readable vocabulary, fetch it again.") from error


def _read_saved(path: Path) -> list[str]:
    # The published dictionary holds lists, an OrderedDict and a Counter: torch allows no more.
    return load_saved(path)["idx2sym"]


def _read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def _read_tokenizer(path: Path) -> list[str]:
    ids = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
    return sorted(ids, key=ids.__getitem__)


READERS: dict[str, Callable[[Path], list[str]]] = {
    "vocab.bin": _read_saved,
    "vocab.txt": _read_lines,
    "tokenizer.json": _read_tokenizer,
}
