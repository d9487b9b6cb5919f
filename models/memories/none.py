"""A memory that keeps nothing, for agents that see all they need."""

from typing import ClassVar, cast

import torch
from torch import Tensor

from models.agent import Memory, TensorMemory
from models.memories.trained_memory import MemorySettings, TrainedMemory


class NoMemory(TrainedMemory):
    """Hands the present features on; its state and contexts are of width 0."""

    remembers: ClassVar[bool] = False

    def __init__(self, n_features: int, settings: MemorySettings) -> None:
        super().__init__(n_features, settings)
        self.width = n_features
        # Says where the network lies, having no weights of its own.
        self.register_buffer("nothing", torch.zeros(0), persistent=False)

    def initial(self, n_envs: int) -> TensorMemory:
        """Return a state of width 0."""
        return TensorMemory(torch.zeros(n_envs, 0, device=self.device))

    def step(self, x: Tensor, state: Memory, starts: Tensor, advance: bool = True) -> Tensor:
        """Return the features [N, F]."""
        return x

    def context(self, state: Memory, starts: Tensor) -> Tensor:
        """Return nothing.  [N, 0]"""
        return cast(TensorMemory, state).state

    def unroll(self, x: Tensor, starts: Tensor, context: Tensor) -> Tensor:
        """Return the features [T, B, F]."""
        return x

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return cast(Tensor, self.nothing).device
