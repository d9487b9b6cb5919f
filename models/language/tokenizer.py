"""A model's tokens, read by the tokenizers library; a file can hold data only, never code."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from utils.errors import UserError
from utils.files import load_saved

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORDS = r"\w+|[^\w\s]"
MOST_TOKENS = 10_000_000  # published vocabularies have a thirtieth


def read_tokenizer(path: Path) -> "Tokenizer":
    """Return the tokenizer in a file that has one of the names of `TOKENIZERS`."""
    try:
        tokenizer = TOKENIZERS[path.name](path)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode("a word")
        highest = max(tokenizer.get_vocab().values())
        if highest >= MOST_TOKENS:  # all of them are listed by their numbers
            raise ValueError(f"a token has the number {highest}")
    except Exception as error:  # a broken file raises about ten kinds of errors
        raise UserError(f"{path}: not a readable tokenizer, fetch it again.") from error
    return tokenizer


def token_strings(tokenizer: "Tokenizer") -> list[str]:
    """Return the text of every token in the order of their ids, empty where an id is not used."""
    from tokenizers.decoders import ByteLevel

    in_bytes = isinstance(tokenizer.decoder, ByteLevel)  # tokens are written as one letter a byte
    added = tokenizer.get_added_tokens_decoder()
    known = tokenizer.get_vocab()
    strings = [""] * (max(known.values()) + 1)
    for token, number in known.items():
        if number in added:
            strings[number] = token
        elif in_bytes:
            strings[number] = tokenizer.decoder.decode([token])
        else:
            strings[number] = token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ")  # SentencePiece's
    return strings


def _of_json(path: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


def _of_words(path: Path) -> "Tokenizer":
    """Return a tokenizer of words and signs, as the text of Transformer-XL was cut."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    # The published dictionary holds lists, an OrderedDict and a Counter: torch allows no more.
    words = [str(word) for word in load_saved(path)["idx2sym"]]
    number_of = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(number_of, _unknown(number_of, "<unk>")))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "removed", invert=True)
    return tokenizer


def _of_word_pieces(path: Path) -> "Tokenizer":
    """Return BERT's tokenizer; without capitals in its words it reads small letters."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    number_of = models.WordPiece.read_file(str(path))
    has_capitals = any(token[:1].isupper() for token in number_of)
    tokenizer = Tokenizer(models.WordPiece(number_of, unk_token=_unknown(number_of, "[UNK]")))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not has_capitals)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _unknown(number_of: dict[str, int], token: str) -> str:
    """Return the token that stands for unknown words; the first one where it is missing."""
    return token if token in number_of else min(number_of, key=number_of.__getitem__)


def _of_byte_pairs(path: Path) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    merges = str(path.with_name("merges.txt"))
    tokenizer = Tokenizer(models.BPE.from_file(str(path), merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZERS: dict[str, Callable[[Path], "Tokenizer"]] = {
    "tokenizer.json": _of_json,
    "vocab.bin": _of_words,
    "vocab.txt": _of_word_pieces,
    "vocab.json": _of_byte_pairs,
}
