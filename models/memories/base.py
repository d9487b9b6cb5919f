"""What every trained memory offers: one step for acting, whole sequences for learning."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from models.agent import Memory, TensorMemory
from utils.settings import Part, setting


@dataclass(frozen=True)
class NetworkSettings(Part):
    """What a memory reads that is a network of layers."""

    title = "trained memory"

    memory_width: int = setting("width of the memory", low=1, high=16_384, default=256)
    memory_layers: int = setting("layers of the memory", low=1, high=128, default=1)


class TrainedMemory(nn.Module, ABC):
    """A network that reads features step by step, or whole sequences with gradients.

    Both ways lead to the same numbers. The state of N running episodes belongs to the caller;
    `starts` marks those that begin with the present features: they remember nothing.

    For an update the caller stores `context` with each step; a sequence may begin at any step of
    which the `n_context` steps before are given again, or as many as there are. The states of
    running episodes that an update has made stale are computed anew by `refresh`.

    Attributes:
        width: D, the width of what it returns.
        remembers: Whether what it returns depends on earlier steps.
        n_context: How many steps before a sequence's own `unroll` has to be given.
    """

    width: int
    remembers: ClassVar[bool] = True
    n_context: int = 0

    def __init__(self, n_features: int, settings: Any) -> None:
        super().__init__()

    @abstractmethod
    def initial(self, n_envs: int) -> Memory:
        """Return the state of N episodes about to begin, on the network's device."""

    @abstractmethod
    def step(self, x: Tensor, state: Memory, starts: Tensor, advance: bool = True) -> Tensor:
        """Read one step without gradients and advance the state in place.

        Args:
            x: Features.  [N, F]
            state: What was read before.
            starts: Where an episode begins with these features.  [N] bool
            advance: False looks ahead: the state stays as it is.

        Returns:
            What is remembered, the present included.  [N, D]
        """

    @abstractmethod
    def context(self, state: Memory, starts: Tensor) -> Tensor:
        """Return what a sequence that begins with the present step starts from.  [N, ...]"""

    @abstractmethod
    def unroll(self, x: Tensor, starts: Tensor, context: Tensor) -> Tensor:
        """Read whole sequences with gradients.

        Args:
            x: Features; what follows a sequence's end has no effect on it.  [T, B, F]
            starts: Where an episode begins.  [T, B] bool
            context: Stored with the first step of each sequence.  [B, ...]

        Returns:
            What is remembered at each step.  [T, B, D]
        """

    def refresh(self, x: Tensor, starts: Tensor, context: Tensor, state: Memory) -> None:
        """Overwrite what is kept of the last P <= n_context steps by what the weights make of them.

        The state is afterwards that of `unroll` after these steps. Memories whose state does not
        depend on earlier weights, or is left as they made it, do nothing.

        Args:
            x: Features of these steps.  [P, N, F]
            starts: Where an episode begins.  [P, N] bool
            context: Stored with the first of them.  [N, ...]
            state: Of the running episodes.
        """

    def attention(self, x: Tensor, state: Memory, starts: Tensor) -> Tensor | None:
        """Return where a step looks, the state staying as it is; None if it does not look.

        The columns are the M steps before, oldest first, then the present one.
        [L, N, H, 1, M+1]
        """
        return None

    @torch.no_grad()
    def looks(self, x: Tensor, state: Memory, starts: Tensor) -> dict[str, np.ndarray]:
        """Return what `Agent.inspect` says of where a step looks, nothing if it does not look."""
        weights = self.attention(x, state, starts)  # [L, N, H, 1, M+1]
        if weights is None:
            return {}
        return {"attention": weights.squeeze(3).transpose(0, 1).half().cpu().numpy()}

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.parameters()).device


class NoMemory(TrainedMemory):
    """Keeps nothing: hands the present features on; its state and contexts are of width 0."""

    remembers: ClassVar[bool] = False

    def __init__(self, n_features: int, settings: Any = None) -> None:
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
