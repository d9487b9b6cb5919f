"""Sentences as vectors: a frozen bidirectional BERT, averaged over its tokens."""

import copy
from functools import cached_property
from hashlib import sha256

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from models.caching import one_thread
from models.language.files import ModelFiles, find_model
from models.language.layers import check_finite
from models.language.load import local_main_process_first
from models.language.transformer import Bert
from models.observations import SentenceTable, SentenceVectors
from models.settings import DEFAULT_ENCODER
from utils.errors import UserError

MOST_TOKENS = 256  # as all-MiniLM-L6-v2 was published
BLOCK = 256  # texts read at a time


class SentenceEncoder(nn.Module):
    """Map texts to the mean of their token outputs (Reimers and Gurevych 2019, arXiv:1908.10084).

    The mean runs over all tokens, the two that BERT adds included, and is not normalised.
    `published` is a BERT with its tokenizer.json.
    """

    def __init__(self, published: ModelFiles) -> None:
        super().__init__()
        self.published = published
        self.tokenizer = Tokenizer.from_file(str(published.find("tokenizer.json")))
        self.bert = Bert(published, mem_len=1)
        self.width = self.bert.width
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(min(MOST_TOKENS, self.bert.n_positions))

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
        for name, parameter in spoiled.bert.layers.named_parameters():
            if "norm" in name:
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
    """Return a published BERT with its tokenizer.json, on the CPU; UserError if there is none."""

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
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise UserError(
            f"{setting_name}: '{name_or_folder}' is no BERT as it is published ({reason}). "
            f"Choose {DEFAULT_ENCODER}, or another of the sentence-transformers library"
        ) from error
