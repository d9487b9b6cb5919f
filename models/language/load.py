"""Frozen language models as memories, loaded by name or from a folder."""

import os
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from models.language import LanguageModel
from models.language.files import ModelFiles, find_model
from models.language.layers import check_finite
from utils.errors import UserError, did_you_mean

Loaded = TypeVar("Loaded")
# Each is imported when it is asked for. Any other type is a decoder of the transformers library,
# or not supported.
KINDS = {
    "bert": "models.language.transformer:Bert",
    "roberta": "models.language.transformer:Roberta",
    "distilbert": "models.language.transformer:DistilBert",
    "transfo-xl": "models.language.transformer:TransformerXL",
}
FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class LanguageModelFacts(NamedTuple):
    """The sizes in config.json; positions are None where they have no end."""

    model_type: str
    n_layer: int
    width: int
    n_tokens: int
    n_positions: int | None


def describe_language_model(name_or_folder: str | Path) -> LanguageModelFacts:
    """Return the sizes of a language model from its config.json; UserError if unsupported."""
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
        name_or_folder: `all-MiniLM-L6-v2`, `SmolLM2-135M-Instruct` (installed), `transfo-xl-wt103`
            (from the hub), any BERT, RoBERTa, DistilBERT or decoder (GPT-2, Llama, Qwen,
            ...) on the hub, a local folder in the published layout, or a GGUF file.
        mem_len: M, the number of tokens that are remembered.
        n_layer: The number of first layers to keep; None for all.

    Raises:
        UserError: the model is missing, damaged or not supported, or an argument does not fit it.
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
    model = local_main_process_first(lambda: _build(files, facts, mem_len, n_layer))
    return model.to(device).pack(dtype)


def _build(
    files: ModelFiles, facts: LanguageModelFacts, mem_len: int, n_layer: int | None
) -> LanguageModel:
    try:
        if facts.model_type in KINDS:
            kind = pkgutil.resolve_name(KINDS[facts.model_type])
            model: LanguageModel = kind(files, mem_len, n_layer)
        else:
            from models.language.decoder import Decoder  # brings in the transformers library

            model = Decoder(files, mem_len, n_layer)
        sizes = (model.width, model.embeddings.n_tokens)
        if sizes != (facts.width, facts.n_tokens):
            raise ValueError(f"embeddings are {sizes[1]} x {sizes[0]}")
        token = model.embed(torch.zeros(1, 1, dtype=torch.int64))
        hidden = model.step(token, model.initial_memory(1), torch.ones(1, dtype=torch.bool))
        if hidden.shape != (1, model.width) or not hidden.isfinite().all():
            raise ValueError("its hidden states are not finite numbers of its width")
        check_finite(model)
    except UserError:
        raise
    except Exception as error:  # files that do not fit raise about ten kinds of errors
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise UserError(
            f"language model '{files.name}': config.json and weights do not fit ({reason})."
        ) from error
    return model


def _describe(files: ModelFiles) -> LanguageModelFacts:
    config = files.config()
    model_type = str(config.get("model_type"))
    if model_type in KINDS:
        kind = pkgutil.resolve_name(KINDS[model_type])
        for key in filter(None, kind.sizes):
            size = config.get(key)
            if not isinstance(size, int) or size < 1:
                given = f"has {key}={size}" if key in config else f"lacks '{key}'"
                raise UserError(
                    f"language model '{files.name}': config.json {given}, needed is a whole number."
                )
        sizes: list[Any] = [key and config[key] for key in kind.sizes]
        if sizes[3] is not None:  # a BERT
            sizes[3] -= kind.n_unused
        return LanguageModelFacts(model_type, *sizes)
    # Brings in the transformers library.
    from models.language.decoder import DECODERS, REFUSED, describe

    if model_type not in DECODERS:
        hint = did_you_mean(model_type, (*KINDS, *DECODERS))
        reasons = (f"{reason}." for types, reason in REFUSED if model_type in types)
        raise UserError(
            f"language model '{files.name}': model_type '{model_type}' "
            f"{next(reasons, f'is not supported.{hint}')} Supported are {', '.join(KINDS)}, "
            "and the decoder-only models of the transformers library (gpt2, llama, qwen3, ...)."
        )
    return LanguageModelFacts(model_type, *describe(config, files.name))


def local_main_process_first(load: Callable[[], Loaded]) -> Loaded:
    """Load in the first process of each machine, then in the others.

    The first one fetches files from a hub and brings them into the system's memory; mapped files
    are there once for all. Where torchrun has started this process, all ranks must call together.
    An exception in the first process ends the others in silence.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return load()
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    loaded: list[Loaded] = []
    try:
        if local_rank == 0:
            loaded.append(load())
    finally:
        have_loaded = [False] * dist.get_world_size()
        dist.all_gather_object(have_loaded, bool(loaded))
    if not have_loaded[rank - local_rank]:
        raise SystemExit(2)
    return loaded[0] if loaded else load()
