"""Frozen language models, loaded by name or from a folder: as memories and to encode sentences."""

import copy
import os
import pkgutil
from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import Tensor, nn

from models.caching import one_thread
from models.language import LanguageModel
from models.language.files import ModelFiles, find_model
from models.language.layers import check_finite
from models.observations import SentenceTable, SentenceVectors
from models.settings import DEFAULT_ENCODER
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
MOST_TOKENS = 256  # of a sentence, as all-MiniLM-L6-v2 was published
BLOCK = 256  # sentences read at a time


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
        raise UserError(
            f"language model '{files.name}': config.json and weights do not fit ({_why(error)})."
        ) from error
    return model


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


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
                    f"language model '{files.name}': config.json {given}. Give a whole number."
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


class SentenceEncoder(nn.Module):
    """Map texts to the mean of their token outputs (Reimers and Gurevych 2019, arXiv:1908.10084).

    The mean runs over all tokens, the two that BERT adds included, and is not normalised.
    `published` is a BERT, RoBERTa or DistilBERT with its tokenizer.json.
    """

    def __init__(self, published: ModelFiles) -> None:
        super().__init__()
        self.published = published
        self.tokenizer = Tokenizer.from_file(str(published.find("tokenizer.json")))
        model_type = str(published.config().get("model_type", "bert"))
        self.bert: LanguageModel = pkgutil.resolve_name(KINDS[model_type])(published, mem_len=1)
        self.width = self.bert.width
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(min(MOST_TOKENS, self.bert.n_positions or MOST_TOKENS))

    @cached_property
    def fingerprint(self) -> str:
        return self.published.fingerprint()

    @torch.no_grad()
    def forward(self, texts: list[str]) -> Tensor:
        """Map n texts to their vectors; a text without a token is zeros.  [n, D]"""
        tokenized = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        vectors = torch.zeros(len(texts), self.width, device=self.bert.device)
        # Texts of one length are read together: there is no padding to mask.
        rows_of: dict[int, list[int]] = {}
        for row, tokens in enumerate(tokenized):
            if tokens:
                rows_of.setdefault(len(tokens), []).append(row)
        for rows in rows_of.values():
            for begin in range(0, len(rows), BLOCK):
                block = rows[begin : begin + BLOCK]
                ids = torch.tensor([tokenized[row] for row in block], device=vectors.device)
                vectors[block] = self.bert.read_both_ways(ids).mean(1)
        return vectors

    @torch.no_grad()
    def token_sum(self, text: str) -> Tensor:
        """Map a text to the sum of its token outputs.  [D]"""
        ids = torch.tensor([self.tokenizer.encode(text).ids], device=self.bert.device)
        return self.bert.read_both_ways(ids)[0].sum(0)


class SentenceFeatures(SentenceVectors):
    """A sentence encoder's vectors [D], read by one thread: the same bits with any number."""

    def __init__(self, sentences: SentenceTable, encoder: SentenceEncoder) -> None:
        super().__init__(sentences, self._features_of)
        self._encoder = encoder
        self.width = encoder.width

    def fingerprints(self) -> dict[str, str]:
        return {"sentence_encoder": self._encoder.fingerprint}

    def _features_of(self, text: str) -> Tensor:
        with one_thread():
            return self._encoder([text])[0]


class SentenceSums(SentenceFeatures):
    """The sums of token outputs [D], which, unlike means, add up over sentences."""

    def _features_of(self, text: str) -> Tensor:
        with one_thread():
            return self._encoder.token_sum(text)


def with_orthogonal_layers(encoder: SentenceEncoder) -> SentenceEncoder:
    """Return a copy with random orthogonal linear layers, biases 0, always the same ones."""
    # The code of Du et al. (2023) does this to its pretrained encoder, since it initialises the
    # whole agent at once. Embeddings and LayerNorms stay.
    spoiled = copy.deepcopy(encoder)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), one_thread():
        for name, parameter in spoiled.bert.named_parameters():
            if not name.startswith("layers.") or "norm" in name:
                continue
            if parameter.ndim == 1:
                parameter.zero_()
                continue
            # Queries, keys and values are three layers, which stand in one tensor here.
            for weight in parameter.chunk(3 if "qkv" in name else 1):
                nn.init.orthogonal_(weight, generator=generator)
    spoiled.fingerprint = sha256(f"{encoder.fingerprint} orthogonal".encode()).hexdigest()
    return spoiled


def load_sentence_encoder(
    name_or_folder: str, setting_name: str = "sentence_encoder"
) -> SentenceEncoder:
    """Return a published BERT, or a kin, with its tokenizer.json, on the CPU; else UserError."""

    def load() -> SentenceEncoder:
        encoder = SentenceEncoder(find_model(name_or_folder))
        encoder(["a"])
        check_finite(encoder)
        return encoder

    try:
        return local_main_process_first(load)
    except UserError as error:
        raise UserError(*(f"{setting_name}: {line}" for line in error.lines)) from error
    except Exception as error:  # files that do not fit raise about ten kinds of errors
        raise UserError(
            f"{setting_name}: '{name_or_folder}' is no published BERT ({_why(error)}). "
            f"Choose {DEFAULT_ENCODER}, or another of the sentence-transformers library"
        ) from error
