"""Cutting texts into a language model's tokens, by what it was published with."""

import re
from collections.abc import Callable
from pathlib import Path

from models.language.vocabulary import read_vocabulary
from utils.errors import UserError

Tokenizer = Callable[[str], list[int]]
WORDS = re.compile(r"\w+|[^\w\s]")
UNKNOWN = "<unk>"


def read_tokenizer(path: Path) -> Tokenizer:
    """Return what cuts texts, without the tokens that mark their beginning and end.

    Args:
        path: One of `TOKENIZERS`.
    """
    try:
        tokenize = TOKENIZERS[path.name](path)
        tokenize("a word")
        return tokenize
    except Exception as error:  # a broken file raises about ten kinds of errors
        raise UserError(f"{path}: not a readable tokenizer, fetch it again.") from error


def _of_tokenizer(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _of_word_pieces(path: Path) -> Tokenizer:
    """Return what BERT was published with; without capitals in its words it reads small letters."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    number_of = {token: number for number, token in enumerate(read_vocabulary(path))}
    has_capitals = any(token[:1].isupper() for token in number_of)
    tokenizer = Tokenizer(models.WordPiece(number_of, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not has_capitals)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _of_byte_pairs(path: Path) -> Tokenizer:
    from tokenizers.implementations import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(str(path), str(path.with_name("merges.txt")))
    return lambda text: tokenizer.encode(text).ids


def _of_words(path: Path) -> Tokenizer:
    """Return what cuts into words and signs and looks them up, as Transformer-XL's text was cut."""
    number_of = {token: number for number, token in enumerate(read_vocabulary(path))}
    unknown = number_of.get(UNKNOWN, 0)
    return lambda text: [number_of.get(word, unknown) for word in WORDS.findall(text)]


TOKENIZERS: dict[str, Callable[[Path], Tokenizer]] = {
    "tokenizer.json": _of_tokenizer,
    "vocab.txt": _of_word_pieces,
    "vocab.json": _of_byte_pairs,
    "vocab.bin": _of_words,
}
