"""A language model as a stack of our own causal layers."""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator

from torch import Tensor, nn

from models.language.causal_layer import LayerOutput
from models.language.key_value_memory import LayerWindow
from models.language.language_model import LanguageModel


class LayerStack(LanguageModel):
    """A language model whose layers are `CausalLayer`s.

    Attributes:
        layers: Those in use, the first one first.
    """

    layers: nn.ModuleList

    @property
    def n_layer(self) -> int:
        """Return L."""
        return len(self.layers)

    @abstractmethod
    def _enter(self, tokens: Tensor, ages: Tensor) -> Tensor:
        """Return what the first layer reads, given the episodes' ages [N].  [N, K, D]"""

    def _read(self, tokens: Tensor, ages: Tensor, windows: list[LayerWindow]) -> Tensor:
        return deque(self._outputs(tokens, ages, windows), maxlen=1)[0].hidden[:, -1]

    def _look(self, tokens: Tensor, ages: Tensor, windows: list[LayerWindow]) -> Iterator[Tensor]:
        n_head, _ = self.heads
        for output in self._outputs(tokens, ages, windows):
            by_head = output.attention.unflatten(0, (n_head, len(tokens)))  # [H, N, K, columns]
            yield by_head.transpose(0, 1)

    def _states(self, tokens: Tensor, ages: Tensor, windows: list[LayerWindow]) -> Iterator[Tensor]:
        return (output.hidden for output in self._outputs(tokens, ages, windows))

    def _outputs(
        self, tokens: Tensor, ages: Tensor, windows: list[LayerWindow]
    ) -> Iterator[LayerOutput]:
        hidden = self._enter(tokens, ages)
        for layer, window in zip(self.layers, windows, strict=True):
            output = layer(hidden, window)
            hidden = output.hidden
            yield output
