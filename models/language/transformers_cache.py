"""The slots of a `KeyValueMemory` as the cache the transformers library reads and writes."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from models.language.key_value_memory import LayerWindow


class WindowLayer(CacheLayerMixin):
    """One layer's window; its rows are the heads of the first environment, then of the next."""

    is_sliding = False

    def __init__(self, window: LayerWindow) -> None:
        super().__init__()
        self.window = window
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new tokens' keys and values [N, H, K, d]; return all in sight [N, H, n, d]."""
        by_head = key_states.shape[:2]
        self.window.write(key_states.flatten(0, 1), value_states.flatten(0, 1))
        return (
            _joined(self.window.keys).unflatten(0, by_head),
            _joined(self.window.values).unflatten(0, by_head),
        )

    def get_seq_length(self) -> int:
        """Return how many tokens are in sight before the new ones."""
        return self.window.n_tokens - sum(keys.shape[1] for keys, _ in self.window.new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many tokens are in sight and that none before them is counted."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: the memory makes room by itself."""
        return -1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing; the slots are there."""


def window_cache(windows: list[LayerWindow]) -> Cache:
    """Return the windows of all layers as one cache for a single call."""
    return Cache(layers=[WindowLayer(window) for window in windows])


def _joined(runs: list[Tensor]) -> Tensor:
    return runs[0] if len(runs) == 1 else torch.cat(runs, dim=1)
