"""A language model as a stack of post-norm transformer layers that read K new tokens at a time."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from models.language.captured_step import CapturedStep, RingStep
from models.language.key_value_memory import KeyValueMemory, Window, join_heads, split_heads
from models.language.language_model import LanguageModel
from models.language.layers import FrozenLinear
from models.language.model_files import PublishedModel

TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # of a CUDA graph, by `dtype`


class LayerOutput(NamedTuple):
    """What one layer makes of K new tokens."""

    hidden: Tensor  # [N, K, D]
    attention: Tensor  # [H*N, K, columns], the latest token last


class CausalLayer(nn.Module):
    """Attention to the past and the K new tokens, then a feed-forward network.

    Args:
        n_head: H.
        qkv: D to queries, keys and values of all heads, [3*H*d].
        out: What the heads found, [H*d], to D.
        norm: Follows the attention.
        inner: D to the feed-forward network's own width, with its activation.
        outer: That width to D.
        last_norm: Follows the feed-forward network.
    """

    def __init__(
        self,
        n_head: int,
        qkv: FrozenLinear,
        out: FrozenLinear,
        norm: nn.LayerNorm,
        inner: FrozenLinear,
        outer: FrozenLinear,
        last_norm: nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.n_head = n_head
        self.qkv = qkv
        self.out = out
        self.norm = norm
        self.inner = inner
        self.outer = outer
        self.last_norm = last_norm

    @abstractmethod
    def attention(self, queries: Tensor, window: Window) -> Tensor:
        """Return where the new tokens look.

        Args:
            queries: Of the new tokens.  [H*N, K, d]
            window: The n tokens in sight, the new ones last.

        Returns:
            Weights that sum to 1; the last n columns are those tokens.  [H*N, K, columns]
        """

    def reading(self, attention: Tensor, window: Window) -> Tensor:
        """Return the weights with which the n tokens' values are read.  [H*N, K, n]"""
        return attention[..., -window.n_tokens :]

    def forward(self, hidden: Tensor, window: Window) -> LayerOutput:
        """Read K new tokens, hidden [N, K, D], and write their keys and values into the window."""
        n_envs, _, width = hidden.shape
        rows = hidden.reshape(-1, width)
        queries, keys, values = split_heads(self.qkv(rows), self.n_head, n_envs)
        window.write(keys, values)
        attention = self.attention(queries, window)
        mixed = window.mix(self.reading(attention, window))
        rows = self.norm(rows + self.out(join_heads(mixed, self.n_head)))
        rows = self.last_norm(rows + self.outer(self.inner(rows)))
        return LayerOutput(rows.view_as(hidden), attention)


class LayerStack(LanguageModel):
    """A language model whose layers are `CausalLayer`s.

    Attributes:
        layers: Those in use, the first one first.
        may_capture: False to leave steps on a GPU unrecorded.
    """

    layers: nn.ModuleList

    def __init__(self, published: PublishedModel, mem_len: int) -> None:
        super().__init__(published, mem_len)
        self.may_capture = True
        # A step is recorded on the slots of one memory, and is of no use without them.
        self._captured: WeakKeyDictionary[KeyValueMemory, CapturedStep] = WeakKeyDictionary()

    @property
    def n_layer(self) -> int:
        """Return L."""
        return len(self.layers)

    def captured_on(self, memory: KeyValueMemory) -> CapturedStep | None:
        """Return the step that is recorded on a memory's slots, if one is."""
        return self._captured.get(memory)

    @property
    def captures(self) -> bool:
        """Return whether steps are recorded as CUDA graphs: on a GPU."""
        return self.may_capture and next(self.parameters()).is_cuda

    @abstractmethod
    def _enter(self, tokens: Tensor, ages: Tensor) -> Tensor:
        """Return what the first layer reads, given the episodes' ages [N].  [N, K, D]"""

    def _hidden(self, tokens: Tensor, memory: KeyValueMemory, ages: Tensor) -> Tensor:
        if not self.captures:
            return super()._hidden(tokens, memory, ages)
        captured = self.captured_on(memory)
        if captured is None or not captured.step.fits(tokens, memory):
            step = RingStep(self._read, tokens, memory, self._n_visible(tokens.shape[1]))
            self._captured[memory] = captured = CapturedStep(step, TOLERANCES[self.dtype])
        if captured.trusted:
            return captured(tokens, ages, memory.position)
        found = captured(tokens, ages, memory.position) if captured.works else None
        expected = super()._hidden(tokens, memory, ages)  # the plain keys and values stay
        if found is not None:
            captured.compare(found, expected)
        return expected

    def _read(self, tokens: Tensor, ages: Tensor, windows: Sequence[Window]) -> Tensor:
        hidden = tokens
        for output in self._outputs(tokens, ages, windows):
            hidden = output.hidden
        return hidden[:, -1]

    def _look(self, tokens: Tensor, ages: Tensor, windows: Sequence[Window]) -> Iterator[Tensor]:
        n_head, _ = self.heads
        for output in self._outputs(tokens, ages, windows):
            by_head = output.attention.unflatten(0, (n_head, len(tokens)))  # [H, N, K, columns]
            yield by_head.transpose(0, 1)

    def _states(self, tokens: Tensor, ages: Tensor, windows: Sequence[Window]) -> Iterator[Tensor]:
        return (output.hidden for output in self._outputs(tokens, ages, windows))

    def _outputs(
        self, tokens: Tensor, ages: Tensor, windows: Sequence[Window]
    ) -> Iterator[LayerOutput]:
        hidden = self._enter(tokens, ages)
        for layer, window in zip(self.layers, windows, strict=True):
            output = layer(hidden, window)
            hidden = output.hidden
            yield output
