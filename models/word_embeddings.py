"""The file of `prepare_embeddings.py`: the shared words of two models and their features."""

import dataclasses
import hashlib
import io
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from models.encoders import ImageTextEncoder
from models.language import LanguageModel
from models.language.files import ModelFiles
from models.settings import EmbeddingsSettings
from utils.errors import UserError, cli_command
from utils.files import DATA_FOLDER, atomic_write, file_lock

PROMPTS = {
    "minigrid": ("{}",),
    "miniworld": ("{}",),
    "psychlab": (
        "a render of {}",
        "a render of a {}",
        "a screenshot of a {}",
        "a screenshot of {}",
        "a screen showing {}",
        "a screen showing a {}",
    ),
    "avalon": (
        "a screenshot of {}",
        "a screenshot of a {}",
        "a screenshot of many {}",
        "a biome containing {}",
        "a biome containing a {}",
        "a biome containing many {}",
        "a biome full of {}",
    ),
}
CHECKSUM = "sha256"
NOT_WORDS = re.compile(r"##.+|\[.+\]|<.+>")  # pieces and special tokens
PACKAGES = ("torch", "open_clip_torch")
BLOCK = 64  # words embedded, and kept, at a time
SUITE_OF = {
    "MiniWorld-": "miniworld",
    "psychlab_": "psychlab",
    "ContinuousRecognition-": "psychlab",
    "Avalon-": "avalon",
}


@dataclass(frozen=True)
class PromptEmbeddings:
    """The shared vocabulary of an encoder and a language model, in the order of the latter's ids.

    Attributes:
        tokens: The S words.  [S] text
        ids: Their numbers in the language model.  [S] int64
        embeddings: The mean of each word's prompts, not normalised.  [S, W] float32
        prompts: The embedded texts, `{}` standing for the word.  [P] text
        encoder, language_model: Names; of a local folder the last part.  [] text
        encoder_fingerprint, language_model_fingerprint: sha256 of the weights.  [] text
        versions: Of the packages in use, such as "torch 2.11.0".  text
    """

    tokens: np.ndarray
    ids: np.ndarray
    embeddings: np.ndarray
    prompts: np.ndarray
    encoder: np.ndarray
    encoder_fingerprint: np.ndarray
    language_model: np.ndarray
    language_model_fingerprint: np.ndarray
    versions: np.ndarray

    @classmethod
    def read(cls, path: Path) -> "PromptEmbeddings":
        """Return a file's content; UserError if it is foreign or damaged."""
        names = [field.name for field in dataclasses.fields(cls)]
        try:
            with np.load(path, allow_pickle=False) as arrays:
                found = cls(**{name: arrays[name] for name in names})
                checksum = str(arrays[CHECKSUM])
            found.check()
        except Exception as error:  # a broken file raises about ten kinds of errors
            raise UserError(f"{path}: not a file of prepare_embeddings.py, delete it") from error
        if checksum != found.checksum():
            raise UserError(
                f"{path}: damaged, its content does not have its checksum. Delete it and run "
                "prepare_embeddings.py again"
            )
        return found

    def check(self) -> None:
        """Raise ValueError unless the arrays fit together and hold numbers."""
        n_words = len(self.ids)
        shapes = (self.tokens.shape, self.ids.shape, self.embeddings.shape[:-1])
        if set(shapes) != {(n_words,)} or self.embeddings.dtype != np.float32:
            raise ValueError(f"shapes {shapes} of {self.embeddings.dtype}")
        if n_words < 1 or self.ids.dtype != np.int64 or self.ids.min() < 0:
            raise ValueError("numbers of words are missing or below 0")
        if not np.isfinite(self.embeddings).all():
            raise ValueError("an embedding is not a number")
        if not self.embeddings.any(axis=1).all():
            raise ValueError("an embedding is zero and points nowhere")

    def checksum(self) -> str:
        digest = hashlib.sha256()
        for name, value in sorted(vars(self).items()):
            digest.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
        return digest.hexdigest()

    def write(self, path: Path) -> None:
        arrays: dict[str, Any] = vars(self) | {CHECKSUM: np.array(self.checksum())}
        content = io.BytesIO()  # NumPy cannot end a file that no more fits into
        np.savez(content, **arrays)
        with atomic_write(path) as file:
            file.write(content.getbuffer())

    def agrees(self, other: "PromptEmbeddings") -> bool:
        differing, theirs = {"embeddings", "versions"}, vars(other)
        return all(
            np.array_equal(value, theirs[name])
            for name, value in vars(self).items()
            if name not in differing
        )


def suite_of(env: str) -> str:
    """Return the suite of an environment's prompts; the bare words of minigrid by default."""
    return next((suite for start, suite in SUITE_OF.items() if env.startswith(start)), "minigrid")


def file_name(model: str) -> str:
    """Return a model's name without slashes, for a file's name: of a folder its last part."""
    return Path(model).resolve().name if os.path.isdir(model) else re.sub(r"[^\w.-]+", "-", model)


def embeddings_file(
    encoder: str, language_model: str, suite: str, data_folder: Path = DATA_FOLDER
) -> Path:
    return data_folder / f"{file_name(encoder)}_{file_name(language_model)}_{suite}.npz"


def configured_embeddings(config: EmbeddingsSettings) -> PromptEmbeddings:
    """Return a run's embeddings; UserError if missing or for models of other names."""
    path = configured_file(config)
    if not os.path.isfile(path):
        raise UserError(f"{path} is missing. {_what_to_do(config)}")
    found = PromptEmbeddings.read(path)
    wanted = (config.clip_encoder, file_name(config.language_model))
    names = (str(found.encoder), str(found.language_model))
    if names != wanted:
        raise UserError(
            f"{path} was made for {' and '.join(names)}, not for {' and '.join(wanted)}. "
            f"{_what_to_do(config)}"
        )
    return found


def fitting_embeddings(
    config: EmbeddingsSettings, encoder: ImageTextEncoder, language_model: LanguageModel
) -> PromptEmbeddings:
    """Return a run's embeddings; UserError if other weights than these made them."""
    found = configured_embeddings(config)
    models: list[Any] = [encoder, language_model]
    stored = (found.encoder_fingerprint, found.language_model_fingerprint)
    for model, fingerprint in zip(models, map(str, stored), strict=True):
        if fingerprint != model.fingerprint:
            raise UserError(
                f"{configured_file(config)} was made with other weights of {model.name} "
                f"({fingerprint[:8]}..., not {model.fingerprint[:8]}...). {_what_to_do(config)}"
            )
    width, n_tokens = encoder.width, language_model.embeddings.n_tokens
    if found.embeddings.shape[1] != width or found.ids.max() >= n_tokens:
        raise UserError(
            f"{configured_file(config)} does not fit an encoder of width {width} and a language "
            f"model of {n_tokens} tokens. {_what_to_do(config)}"
        )
    return found


def configured_file(config: EmbeddingsSettings) -> Path:
    default = embeddings_file(config.clip_encoder, config.language_model, suite_of(config.env))
    return Path(config.embeddings or default)


def _what_to_do(config: EmbeddingsSettings) -> str:
    words = [*cli_command("prepare_embeddings.py"), "--suite", suite_of(config.env)]
    words += ["--clip-encoder", config.clip_encoder]
    if config.clip_pretrained != "openai":
        words += ["--clip-pretrained", config.clip_pretrained]
    words += ["--language-model", config.language_model]
    default = configured_file(config.replace(embeddings=None))
    setting = f", and set embeddings={default}" if config.embeddings else ""
    return f"Run: {shlex.join(words)}{setting}"


def shared_vocabulary(retrievable: Iterable[str], tokens: Sequence[str]) -> dict[str, int]:
    """Return the common words of a language model and an encoder, with the former's ids.

    Strings must be equal once stripped. Pieces of words and special tokens of the language model
    are left out; of equal strings the first counts. `tokens` are in the order of their ids.
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
    encoder: ImageTextEncoder, language_model: ModelFiles, suite: str, data_folder: Path
) -> Path | None:
    """Write the embeddings for two models and a suite; return the file, None if it existed.

    The blocks of an interrupted call are kept beside the file and used by the next; while another
    call makes the same file, this one waits.
    """
    path = embeddings_file(encoder.name, language_model.name, suite, data_folder)
    plan = _plan(encoder, language_model, suite)
    if _is_up_to_date(path, plan):
        return None
    data_folder.mkdir(parents=True, exist_ok=True)
    with file_lock(path):
        if _is_up_to_date(path, plan):  # another call has made it meanwhile
            return None
        parts = (*plan.tokens, *plan.prompts, plan.encoder_fingerprint)  # all they depend on
        key = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:12]
        partial = path.with_suffix(f".{key}.parts")
        embeddings = _embed(encoder, plan, partial)
        dataclasses.replace(plan, embeddings=embeddings).write(path)
        shutil.rmtree(partial)
    return path


def _is_up_to_date(path: Path, plan: PromptEmbeddings) -> bool:
    return path.is_file() and PromptEmbeddings.read(path).agrees(plan)


def _plan(encoder: ImageTextEncoder, language_model: ModelFiles, suite: str) -> PromptEmbeddings:
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


def _embed(encoder: ImageTextEncoder, plan: PromptEmbeddings, partial: Path) -> np.ndarray:
    """Return the embeddings [S, W], reusing the blocks of an interrupted call."""
    words, prompts = plan.tokens.tolist(), plan.prompts.tolist()
    partial.mkdir(exist_ok=True)
    blocks = []
    for begin in tqdm(range(0, len(words), BLOCK), unit="block", desc="embedding", disable=None):
        path = partial / f"{begin}.npy"
        if not path.is_file():
            rows = prompt_means(encoder, words[begin : begin + BLOCK], prompts).cpu().numpy()
            with atomic_write(path) as file:
                np.save(file, rows)
        blocks.append(np.load(path, allow_pickle=False))
    return np.concatenate(blocks)
