"""What every frozen language model offers as a memory."""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn

from models.language.causal_layer import LayerOutput
from models.language.embeddings import TokenEmbeddings
from models.language.key_value_memory import Foreseen, KeyValueMemory
from models.language.layers import FrozenLinear
from models.language.published import PublishedModel


class LanguageModel(nn.Module):
    """A frozen causal language model that reads token vectors and keeps what it has read.

    The memory belongs to the caller and is advanced in place; the model itself never changes.

    Attributes:
        name: As it was asked for.
        embeddings: What the model's own tokens look like to its first layer.
        width: D.
        n_layer: L, the layers in use.
        mem_len: M, how many tokens are remembered.
    """

    embeddings: TokenEmbeddings
    layers: nn.ModuleList
    heads: tuple[int, int]  # their number H and width d

    def __init__(self, published: PublishedModel, mem_len: int) -> None:
        super().__init__()
        self.published = published
        self.name = published.name
        self.mem_len = mem_len

    @property
    def n_layer(self) -> int:
        """Return L."""
        return len(self.layers)

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
        """Return the sha256 of the file the weights came from."""
        return self.published.fingerprint()

    def initial_memory(self, n_envs: int, n_new: int = 1) -> KeyValueMemory:
        """Return the memory of `n_envs` episodes about to begin, on the model's device.

        It has room for K=`n_new` tokens at a time and makes more when they come.
        """
        device = next(self.parameters()).device
        store = KeyValueMemory.empty(n_envs, self.n_layer, self.n_past, self.heads, device)
        store.make_room(n_new)
        return store

    def pack(self, dtype: torch.dtype = torch.float32) -> Self:
        """Lay the layers' weights out for the device they are on; products then use this type."""
        for module in self.layers.modules():
            if isinstance(module, FrozenLinear):
                module.pack(dtype)
        return self

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """Return the vectors of token ids [...] as the first layer is fed them.  [..., D]"""
        return self.embeddings.lookup(ids)

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
            hidden = deque(self._outputs(tokens, memory, ages), maxlen=1)[0].hidden[:, -1]
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
        n_head, _ = self.heads
        n_envs, n_new, _ = tokens.shape
        maps = []
        for output in self._outputs(tokens, memory, memory.current_ages(starts)):
            by_head = output.attention.view(n_head, n_envs, n_new, -1).transpose(0, 1)
            missing = self.mem_len + n_new - by_head.shape[-1]
            maps.append(nn.functional.pad(by_head, (missing, 0)))
        return torch.stack(maps)

    @torch.no_grad()
    def hidden_states(self, tokens: Tensor, memory: KeyValueMemory, starts: Tensor) -> Tensor:
        """Return every layer's output at each new token; the memory stays as it was.

        Arguments are those of `step`.  [L, N, K, D]
        """
        outputs = self._outputs(tokens, memory, memory.current_ages(starts))
        return torch.stack([output.hidden for output in outputs])

    def _outputs(
        self, tokens: Tensor, memory: KeyValueMemory, ages: Tensor
    ) -> Iterator[LayerOutput]:
        n_envs, n_new, width = tokens.shape
        if (n_envs, width) != (memory.n_envs, self.width):
            raise ValueError(
                f"tokens [{n_envs}, {n_new}, {width}] for a memory of {memory.n_envs} envs "
                f"and a language model of width {self.width}"
            )
        hidden = self._enter(tokens, ages)
        windows = memory.windows(ages, self._n_visible(n_new), n_new)
        for layer, window in zip(self.layers, windows, strict=True):
            output = layer(hidden, window)
            hidden = output.hidden
            yield output

    def _n_visible(self, n_new: int) -> int:
        """Return how many past tokens a call with `n_new` tokens may see."""
        return self.n_past

    @abstractmethod
    def _enter(self, tokens: Tensor, ages: Tensor) -> Tensor:
        """Return what the first layer reads, given the episodes' ages [N].  [N, K, D]"""
