"""Frozen language models as memories and as writers; here is the interface of the memories."""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from models.language.files import ModelFiles
from models.language.kv_cache import CacheView, Foreseen, KVCache, join_heads
from models.language.layers import FrozenLinear, TokenEmbeddings
from utils.errors import UserError

log = logging.getLogger(__name__)


class LanguageModel(nn.Module):
    """A frozen causal language model that reads token vectors and keeps their keys and values.

    The memory belongs to the caller and is advanced in place; the model itself never changes.

    Attributes:
        embeddings: The vectors of the model's own tokens, as its first layer reads them.
        n_layer: L, the layers in use.
        heads: The number of keys of a token in a layer, and their width d.
        n_positions: P, the pretrained positions; None where they have no end.
        mem_len: M, the number of tokens that are remembered.
        dtype: Of the products with the weights.
        supported: The allowed values of settings in config.json that change the mathematics; the
            first by default.
    """

    supported: ClassVar[Mapping[str, Sequence[object]]] = {}

    embeddings: TokenEmbeddings
    n_layer: int
    heads: tuple[int, int]
    n_positions: int | None = None

    def __init__(self, published: ModelFiles, mem_len: int) -> None:
        super().__init__()
        self.published = published
        self.name = published.name
        self.mem_len = mem_len
        self.dtype = torch.float32
        self.config = published.config()
        for key, values in self.supported.items():
            if (given := self.config.get(key, values[0])) not in values:
                raise UserError(
                    f"language model '{self.name}': config.json has {key}={given}, "
                    f"supported is {key}={' or '.join(map(str, values))}."
                )

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def width(self) -> int:
        return self.embeddings.width

    @property
    def n_past(self) -> int:
        """The most past tokens that a single new one can see."""
        return self._n_visible(1)

    @cached_property
    def vocabulary(self) -> list[str]:
        return self.published.vocabulary()

    @cached_property
    def fingerprint(self) -> str:
        return self.published.fingerprint()

    def initial_memory(self, n_envs: int, n_new: int = 1) -> KVCache:
        """Return the memory of new episodes, with room for `n_new` tokens a step, or more later."""
        store = KVCache.empty(n_envs, self.n_layer, self.n_past, self.heads, self.device)
        store.make_room(n_new)
        return store

    def pack(self, dtype: torch.dtype = torch.float32) -> Self:
        """Convert the layers' weights to a type, in the fastest layout for their device."""
        self.dtype = dtype
        layers = [module for module in self.modules() if isinstance(module, FrozenLinear)]
        for layer in layers:
            layer.pack(dtype)
        if dtype == torch.bfloat16 and any(layer.is_slow for layer in layers):
            log.warning(
                "%s: this processor has no fast bfloat16 products; PyTorch's plain ones are used, "
                "and frozen_dtype=float32 may be faster",
                self.name,
            )
        return self

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """Return the first layer's inputs for token ids [...].  [..., D]"""
        return self.embeddings.lookup(ids)

    @torch.no_grad()
    def read_text(self, text: str) -> Tensor:
        """Return the first layer's inputs for the tokens of a text.  [n, D]"""
        ids = self.published.tokenize(text)
        return self.embed(torch.tensor(ids, dtype=torch.int64, device=self.device))

    def read_both_ways(self, ids: Tensor) -> Tensor:
        """Return the last layer's outputs [B, K, D] of texts [B, K], all tokens in sight of all."""
        raise ValueError(f"{self.name} was trained to read from left to right alone")

    @torch.no_grad()
    def step(
        self, tokens: Tensor, memory: KVCache, is_first: Tensor, advance: bool = True
    ) -> Tensor:
        """Read K tokens per environment and return the last hidden state at the last one.  [N, D]

        Args:
            tokens: Token vectors.  [N, K, D]
            memory: From `initial_memory`; these tokens are added to it.
            is_first: True where an episode begins with these tokens.  [N]
            advance: False to look ahead and leave the memory as it was. Reading the same tokens
                afterwards costs nothing.
        """
        n_envs, n_new, width = tokens.shape
        if (n_envs, width) != (memory.n_envs, self.width):
            raise ValueError(
                f"tokens [{n_envs}, {n_new}, {width}] for a memory of {memory.n_envs} envs "
                f"and a language model of width {self.width}"
            )
        ages = memory.current_ages(is_first)
        hidden = memory.recall(tokens, ages)
        if hidden is None:
            hidden = self._hidden(tokens, memory, ages)
        if advance:
            memory.advance(n_new, ages)
        else:
            memory.foreseen = Foreseen(tokens.clone(), ages, hidden)
        return hidden

    @torch.no_grad()
    def attention(self, tokens: Tensor, memory: KVCache, is_first: Tensor) -> Tensor:
        """Return the attention of each new token; the memory stays as it was.  [L, N, H, K, M+K]

        Arguments are those of `step`. The columns are the M slots, oldest first, then the K new
        tokens, zero where a token is hidden.
        """
        ages = memory.current_ages(is_first)
        maps = self._look(tokens, ages, self._windows(tokens, memory, ages))
        n_columns = self.mem_len + tokens.shape[1]
        return torch.stack([nn.functional.pad(m, (n_columns - m.shape[-1], 0)) for m in maps])

    @torch.no_grad()
    def hidden_states(self, tokens: Tensor, memory: KVCache, is_first: Tensor) -> Tensor:
        """Return every layer's output at each new token, without advancing.  [L, N, K, D]"""
        ages = memory.current_ages(is_first)
        return torch.stack([*self._states(tokens, ages, self._windows(tokens, memory, ages))])

    def read_episode(self, tokens: Tensor) -> Tensor:
        """Return the last layer's output at each of an episode's first n <= `n_past` tokens.

        Of tokens [n, D], with gradients; behind it the first layer's keys and values, if any.
        """
        (n_head, width), n_tokens = self.heads, len(tokens)
        unread, new = tokens.new_empty(n_head, n_tokens, width), slice(n_tokens)
        windows = [CacheView([unread], [unread], None, new, None) for _ in range(self.n_layer)]
        ages = torch.zeros(1, dtype=torch.int64, device=tokens.device)
        hidden = self.read(tokens[None], ages, windows)
        pairs = torch.cat((*windows[0].keys, *windows[0].values))  # [2*H, n, d]
        return torch.cat((hidden[0], join_heads(pairs, 2 * n_head)), dim=-1)

    def _hidden(self, tokens: Tensor, memory: KVCache, ages: Tensor) -> Tensor:
        """Return the hidden state [N, D] of tokens and write them into the memory's next slots."""
        return self.read(tokens, ages, self._windows(tokens, memory, ages))[:, -1]

    def _windows(self, tokens: Tensor, memory: KVCache, ages: Tensor) -> list[CacheView]:
        n_new = tokens.shape[1]
        return memory.windows(ages, self._n_visible(n_new), n_new)

    def _n_visible(self, n_new: int) -> int:
        # Past and new tokens share the pretrained positions.
        if self.n_positions is None:
            return self.mem_len
        return max(min(self.mem_len, self.n_positions - n_new), 0)

    @abstractmethod
    def read(self, tokens: Tensor, ages: Tensor, windows: list[CacheView]) -> Tensor:
        """Return the last hidden states [N, K, D] of tokens [N, K, D], written into the windows.

        The hidden state of a memory is the last of these, defined here alone. `ages` [N] are the
        tokens before these in each running episode; every layer has a window.
        """

    @abstractmethod
    def _look(self, tokens: Tensor, ages: Tensor, windows: list[CacheView]) -> Iterable[Tensor]:
        """Return every layer's attention, latest tokens last: L times [N, H, K, columns]."""

    @abstractmethod
    def _states(self, tokens: Tensor, ages: Tensor, windows: list[CacheView]) -> Iterable[Tensor]:
        """Return every layer's output.  L times [N, K, D]"""
