"""Reading the strings of a language model's tokens; a file can hold data only, never code."""

import json
from collections.abc import Callable
from pathlib import Path

from utils.errors import UserError
from utils.saved_tensors import load_saved

MOST_TOKENS = 10_000_000  # published vocabularies have a thirtieth


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
    content = json.loads(path.read_text(encoding="utf-8"))
    known = content["model"]["vocab"]
    if isinstance(known, list):  # pairs of a token and its score
        known = {token: number for number, (token, _) in enumerate(known)}
    in_bytes = (content.get("decoder") or {}).get("type") == "ByteLevel"
    readable = _from_bytes if in_bytes else _from_pieces
    strings = {number: readable(token) for token, number in known.items()}
    added = content.get("added_tokens", [])
    return _by_id(strings | {token["id"]: token["content"] for token in added})


def _read_byte_pairs(path: Path) -> list[str]:
    known = json.loads(path.read_text(encoding="utf-8"))
    return _by_id({number: _from_bytes(token) for token, number in known.items()})


def _from_bytes(token: str) -> str:
    """Return the text of a token that is written as one letter a byte."""
    from tokenizers.decoders import ByteLevel

    return ByteLevel().decode([token])


def _from_pieces(token: str) -> str:
    return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ")  # how SentencePiece writes a space


def _by_id(strings: dict[int, str]) -> list[str]:
    """Return the strings in the order of their ids, an empty one where an id is not used."""
    if max(strings) >= MOST_TOKENS:
        raise ValueError(f"a token has the number {max(strings)}")
    return [strings.get(number, "") for number in range(max(strings) + 1)]


READERS: dict[str, Callable[[Path], list[str]]] = {
    "vocab.bin": _read_saved,
    "vocab.txt": _read_lines,
    "tokenizer.json": _read_tokenizer,
    "vocab.json": _read_byte_pairs,
}
