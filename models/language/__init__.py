"""Frozen language models as memories, loaded by name or from a folder."""

from pathlib import Path
from typing import NamedTuple

import torch

from models.language.bert import Bert
from models.language.embeddings import AdaptiveEmbeddings, DenseEmbeddings, TokenEmbeddings
from models.language.key_value_memory import KeyValueMemory
from models.language.language_model import LanguageModel
from models.language.published import ModelFiles, find_model
from models.language.transformer_xl import TransformerXL
from utils.errors import UserError, suggestion

__all__ = [
    "AdaptiveEmbeddings",
    "DenseEmbeddings",
    "KeyValueMemory",
    "LanguageModel",
    "LanguageModelFacts",
    "TokenEmbeddings",
    "describe_language_model",
    "load_language_model",
]


class Kind(NamedTuple):
    """How models of one `model_type` are built, and where their settings say how large they are."""

    build: type[TransformerXL] | type[Bert]
    n_layer: str
    width: str


KINDS = {
    "transfo-xl": Kind(TransformerXL, "n_layer", "d_model"),
    "bert": Kind(Bert, "num_hidden_layers", "hidden_size"),
}


class LanguageModelFacts(NamedTuple):
    """What config.json tells about a language model."""

    model_type: str
    n_layer: int
    width: int
    n_tokens: int


def describe_language_model(name_or_folder: str | Path) -> LanguageModelFacts:
    """Return the size of a language model from its config.json alone; UserError if unsupported."""
    return _describe(find_model(name_or_folder))


def load_language_model(
    name_or_folder: str | Path,
    mem_len: int = 511,
    n_layer: int | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> LanguageModel:
    """Return a published language model, frozen.

    Args:
        name_or_folder: `all-MiniLM-L6-v2` (installed), `transfo-xl-wt103` (from the hub), any
            other BERT on the hub, or a local folder in the published layout.
        mem_len: M, how many tokens are remembered; at least 1.
        n_layer: Keep only the first layers; None for all.
        device: Where the weights and memories live.
        dtype: What the layers' weights are kept and multiplied in.
    """
    files = find_model(name_or_folder)
    facts = _describe(files)
    if mem_len < 1:
        raise UserError(f"mem_len={mem_len}: a language model needs a mem_len of at least 1.")
    if n_layer is not None and not 1 <= n_layer <= facts.n_layer:
        raise UserError(
            f"n_layer={n_layer}: language model '{files.name}' has {facts.n_layer} layers. "
            f"Choose 1 to {facts.n_layer}."
        )
    return KINDS[facts.model_type].build(files, mem_len, n_layer).to(device).pack(dtype)


def _describe(files: ModelFiles) -> LanguageModelFacts:
    config = files.config()
    model_type = str(config.get("model_type"))
    if model_type not in KINDS:
        raise UserError(
            f"language model '{files.name}': model_type '{model_type}' is not supported."
            f"{suggestion(model_type, KINDS)} Supported are {', '.join(KINDS)}."
        )
    kind = KINDS[model_type]
    try:
        sizes = (config[kind.n_layer], config[kind.width], config["vocab_size"])
    except KeyError as error:
        raise UserError(f"language model '{files.name}': config.json lacks {error}.") from error
    return LanguageModelFacts(model_type, *sizes)
