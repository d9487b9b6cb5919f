"""Making the embeddings SHELM retrieves by: the vocabulary two models share, in prompts."""

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from models.clip_encoder import ImageTextEncoder
from models.language.model_files import PublishedModel
from models.word_embeddings import PROMPTS, PromptEmbeddings, embeddings_file, file_name
from utils.errors import UserError
from utils.files import alone_with

BLOCK = 64  # words embedded, and kept, at a time
DIGEST_BYTES = 32  # of sha256
PACKAGES = ("torch", "open_clip_torch")
NOT_WORDS = re.compile(r"##.+|\[.+\]|<.+>")  # pieces and special tokens


def shared_vocabulary(retrievable: Iterable[str], tokens: Sequence[str]) -> dict[str, int]:
    """Return the words of a language model that an encoder's text side has, too, with their ids.

    Strings must be equal once stripped. Pieces of words and special tokens of the language model
    are left out; of equal strings the first counts.

    Args:
        retrievable: The encoder's words.
        tokens: The strings of the language model's tokens, in the order of their ids.
    """
    known = set(retrievable)
    shared: dict[str, int] = {}
    for number, token in enumerate(tokens):
        word = token.strip()
        if word in known and not NOT_WORDS.fullmatch(word):
            shared.setdefault(word, number)
    return shared


def prompt_means(encoder: ImageTextEncoder, words: Sequence[str], prompts: Iterable[str]) -> Tensor:
    """Return the mean over the prompts of each word's features, not normalised.  [n, W]"""
    features = [encoder.embed_texts([p.format(word) for word in words]) for p in prompts]
    return torch.stack(features).mean(0)


def prepare(
    encoder: ImageTextEncoder, language_model: PublishedModel, suite: str, data_folder: Path
) -> Path | None:
    """Write the embeddings for two models and a suite.

    What an interrupted call has done is kept beside the file and taken up by the next; while
    another call makes the same file, this one waits.

    Returns:
        The file, or None if it was there already.
    """
    path = embeddings_file(encoder.name, language_model.name, suite, data_folder)
    plan = _plan(encoder, language_model, suite)
    if _is_up_to_date(path, plan):
        return None
    data_folder.mkdir(parents=True, exist_ok=True)
    with alone_with(path):
        if _is_up_to_date(path, plan):  # another call has made it meanwhile
            return None
        partial = path.with_suffix(f".{_key(plan)}.partial")
        embeddings = _embed(encoder, plan, partial)
        dataclasses.replace(plan, embeddings=embeddings).write(path)
        partial.unlink()
    return path


def _is_up_to_date(path: Path, plan: PromptEmbeddings) -> bool:
    return path.is_file() and PromptEmbeddings.read(path).agrees(plan)


def _plan(
    encoder: ImageTextEncoder, language_model: PublishedModel, suite: str
) -> PromptEmbeddings:
    """Return all that the file will hold but the embeddings."""
    shared = shared_vocabulary(encoder.vocabulary, language_model.vocabulary())
    if not shared:
        raise UserError(f"{encoder.name} and {language_model.name} have no word in common")
    return PromptEmbeddings(
        tokens=np.array(list(shared)),
        ids=np.array(list(shared.values()), dtype=np.int64),
        embeddings=np.empty((0, encoder.width), dtype=np.float32),
        prompts=np.array(PROMPTS[suite]),
        encoder=np.array(encoder.name),
        encoder_fingerprint=np.array(encoder.fingerprint),
        language_model=np.array(file_name(language_model.name)),
        language_model_fingerprint=np.array(language_model.fingerprint()),
        versions=np.array([f"{package} {version(package)}" for package in PACKAGES]),
    )


def _key(plan: PromptEmbeddings) -> str:
    """Return a short name for all that the embeddings depend on."""
    parts = (*plan.tokens, *plan.prompts, plan.encoder_fingerprint)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:12]


def _embed(encoder: ImageTextEncoder, plan: PromptEmbeddings, partial: Path) -> np.ndarray:
    """Return the embeddings, adding to the blocks an earlier call has left.  [S, W]"""
    words, prompts = plan.tokens.tolist(), plan.prompts.tolist()
    with partial.open("a+b") as file:
        blocks = _whole_blocks(file, len(words), 4 * encoder.width)
        n_done = min(len(blocks) * BLOCK, len(words))
        with tqdm(total=len(words), initial=n_done, unit="word", desc="embedding") as bar:
            for begin in range(n_done, len(words), BLOCK):
                block = words[begin : begin + BLOCK]
                rows = prompt_means(encoder, block, prompts).cpu().numpy().tobytes()
                file.write(rows + _digest(begin, rows))
                file.flush()
                blocks.append(rows)
                bar.update(len(block))
    return np.frombuffer(b"".join(blocks), dtype=np.float32).reshape(-1, encoder.width)


def _whole_blocks(file: BinaryIO, n_words: int, row_bytes: int) -> list[bytes]:
    """Return the rows of the blocks that are as they were written, and cut off what follows."""
    blocks: list[bytes] = []
    end = 0
    file.seek(0)
    for begin in range(0, n_words, BLOCK):
        rows = file.read(row_bytes * min(BLOCK, n_words - begin))
        if file.read(DIGEST_BYTES) != _digest(begin, rows):
            break
        blocks.append(rows)
        end = file.tell()
    file.truncate(end)
    return blocks


def _digest(begin: int, rows: bytes) -> bytes:
    """Return what stands behind a block's rows, to tell them from what a crash may leave."""
    return hashlib.sha256(f"{begin} ".encode() + rows).digest()
