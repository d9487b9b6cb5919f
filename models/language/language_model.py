"""What every frozen language model offers as a memory."""

import logging
from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn

from models.language.files import ModelFiles
from models.language.kv_cache import Foreseen, KeyValueMemory, Window
from models.language.layers import FrozenLinear, TokenEmbeddings

log = logging.getLogger(__name__)


class LanguageModel(nn.Module):
    """A frozen causal language model that reads token vectors and keeps what it has read.

    The memory belongs to the caller and is advanced in place; the model itself never changes.

    Attributes:
        name: As it was asked for.
        embeddings: What the model's own tokens look like to its first layer.
        width: D.
        n_layer: L, the layers in use.
        mem_len: M, how many tokens are remembered.
        heads: How many keys and values a token has in a layer, and their width d.
        dtype: Of the products with the weights.
    """

    embeddings: TokenEmbeddings
    heads: tuple[int, int]

    def __init__(self, published: ModelFiles, mem_len: int) -> None:
        super().__init__()
        self.published = published
        self.name = published.name
        self.mem_len = mem_len
        self.dtype = torch.float32

    @property
    @abstractmethod
    def n_layer(self) -> int:
        """Return L."""

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.parameters()).device

    @property
    def width(self) -> int:
        """Return D."""
        return self.embeddings.width

    @property
    @abstractmethod
    def n_past(self) -> int:
        """Return how many past tokens a new one can see at most."""

    @cached_property
    def vocabulary(self) -> list[str]:
        """Return the string of every token; read from its file when first asked for."""
        return self.published.vocabulary()

    @cached_property
    def fingerprint(self) -> str:
        """Return the sha256 of what the weights came from."""
        return self.published.fingerprint()

    def initial_memory(self, n_envs: int, n_new: int = 1) -> KeyValueMemory:
        """Return the memory of `n_envs` episodes about to begin, on the model's device.

        It has room for K=`n_new` tokens at a time and makes more when they come.
        """
        store = KeyValueMemory.empty(n_envs, self.n_layer, self.n_past, self.heads, self.device)
        store.make_room(n_new)
        return store

    def pack(self, dtype: torch.dtype = torch.float32) -> Self:
        """Lay the layers' weights out for the device they are on; products then use this type."""
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
        """Return the vectors of token ids [...] as the first layer is fed them.  [..., D]"""
        return self.embeddings.lookup(ids)

    @torch.no_grad()
    def read_text(self, text: str) -> Tensor:
        """Return the vectors of a text's tokens as the first layer is fed them.  [n, D]"""
        ids = self.published.tokenize(text)
        return self.embed(torch.tensor(ids, dtype=torch.int64, device=self.device))

    @torch.no_grad()
    def step(
        self, tokens: Tensor, memory: KeyValueMemory, starts: Tensor, advance: bool = True
    ) -> Tensor:
        """Read K tokens per environment and return the last layer at the last of them.

        Args:
            tokens: Token vectors.  [N, K, D]
            memory: What was read before; these tokens are added to it.
            starts: True where an episode begins with these tokens: it remembers nothing.  [N]
            advance: False to look ahead and leave the memory as it was. Reading the same tokens
                afterwards costs nothing.

        Returns:
            The hidden state.  [N, D]
        """
        ages = memory.current_ages(starts)
        hidden = memory.recall(tokens, ages)
        if hidden is None:
            hidden = self._hidden(tokens, memory, ages)
        if advance:
            memory.advance(tokens.shape[1], ages)
        else:
            memory.foreseen = Foreseen(tokens.clone(), ages, hidden)
        return hidden

    @torch.no_grad()
    def attention(self, tokens: Tensor, memory: KeyValueMemory, starts: Tensor) -> Tensor:
        """Return where each new token looks; the memory stays as it was.

        Arguments are those of `step`. The columns are the M slots, oldest first, then the K new
        tokens; what a token cannot see is zero.  [L, N, H, K, M+K]
        """
        ages = memory.current_ages(starts)
        maps = self._look(tokens, ages, self._windows(tokens, memory, ages))
        n_columns = self.mem_len + tokens.shape[1]
        return torch.stack([nn.functional.pad(m, (n_columns - m.shape[-1], 0)) for m in maps])

    @torch.no_grad()
    def hidden_states(self, tokens: Tensor, memory: KeyValueMemory, starts: Tensor) -> Tensor:
        """Return every layer's output at each new token; the memory stays as it was.

        Arguments are those of `step`.  [L, N, K, D]
        """
        ages = memory.current_ages(starts)
        return torch.stack([*self._states(tokens, ages, self._windows(tokens, memory, ages))])

    def _hidden(self, tokens: Tensor, memory: KeyValueMemory, ages: Tensor) -> Tensor:
        """Return the hidden state [N, D] of tokens and write them into the memory's next slots."""
        return self._read(tokens, ages, self._windows(tokens, memory, ages))

    def _windows(self, tokens: Tensor, memory: KeyValueMemory, ages: Tensor) -> list[Window]:
        n_envs, n_new, width = tokens.shape
        if (n_envs, width) != (memory.n_envs, self.width):
            raise ValueError(
                f"tokens [{n_envs}, {n_new}, {width}] for a memory of {memory.n_envs} envs "
                f"and a language model of width {self.width}"
            )
        return memory.windows(ages, self._n_visible(n_new), n_new)

    def _n_visible(self, n_new: int) -> int:
        """Return how many past tokens a call with `n_new` tokens may see."""
        return self.n_past

    @abstractmethod
    def _read(self, tokens: Tensor, ages: Tensor, windows: list[Window]) -> Tensor:
        """Return the hidden state [N, D] of the last of K tokens and write them into the windows.

        Args:
            tokens: Token vectors.  [N, K, D]
            ages: Tokens before these in each running episode.  [N]
            windows: What each layer sees.
        """

    @abstractmethod
    def _look(self, tokens: Tensor, ages: Tensor, windows: list[Window]) -> Iterable[Tensor]:
        """Return every layer's attention, the latest tokens in the last columns.

        Arguments are those of `_read`.  L times [N, H, K, columns]
        """

    @abstractmethod
    def _states(self, tokens: Tensor, ages: Tensor, windows: list[Window]) -> Iterable[Tensor]:
        """Return every layer's output.

        Arguments are those of `_read`.  L times [N, K, D]
        """
