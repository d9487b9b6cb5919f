"""The interface of trained memories: one step for acting, whole sequences for learning."""

from abc import ABC, abstractmethod
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.agent import Memory, TensorMemory
from models.settings import HeadSettings, NetworkSettings
from utils.errors import UserError


def head_width(settings: HeadSettings) -> int:
    """Return the width of a head; UserError where the heads cannot share the memory's."""
    width, n_heads = settings.memory_width, settings.memory_heads
    if width % n_heads:
        raise UserError(
            f"memory_heads: {n_heads} heads cannot share memory_width={width}; choose a divisor"
        )
    return width // n_heads


class TrainedMemory(nn.Module, ABC):
    """A network that reads features step by step, or whole sequences with gradients.

    Both ways lead to the same numbers. The caller holds the state of N running episodes; `is_first`
    marks those that begin with the present features. Each step's `stored_state` is kept with it; a
    sequence may begin at any step, given again the `n_context` steps before it, or as many as there
    are.
    `refresh` recomputes states that an update has made stale.

    Attributes:
        width: D, of the output.
        has_bfloat16: Whether sequences may be read under automatic mixed precision.
        n_context: Steps before a sequence that `unroll` has to be given.
        n_features: F, of the input.
    """

    width: int
    has_bfloat16: ClassVar[bool] = False
    n_context: int = 0

    def __init__(self, n_features: int, settings: NetworkSettings | None) -> None:
        super().__init__()
        self.n_features = n_features

    @abstractmethod
    def initial(self, n_envs: int) -> Memory:
        """Return the state of N episodes about to begin, on the network's device."""

    @abstractmethod
    def step(self, x: Tensor, state: Memory, is_first: Tensor, advance: bool = True) -> Tensor:
        """Read features [N, F] without gradients and advance the state in place.  [N, D]

        Without `advance` the state stays as it is.
        """

    @abstractmethod
    def stored_state(self, state: Memory, is_first: Tensor) -> Tensor:
        """Return the state before this step, as stored for training.  [N, ...]"""

    @abstractmethod
    def unroll(self, x: Tensor, is_first: Tensor, stored_state: Tensor) -> Tensor:
        """Read whole sequences with gradients.  [T, B, D]

        Args:
            x: Features; those behind a sequence's end have no effect on it.  [T, B, F]
            is_first: Where an episode begins.  [T, B] bool
            stored_state: Stored with the first step of each sequence.  [B, ...]
        """

    def unroll_at(self, x: Tensor, is_first: Tensor, stored_state: Tensor, rows: Tensor) -> Tensor:
        """Return what `unroll` does of some rows [R] of its T*B, sequence by sequence.  [R, D]

        The others were read before, or stand behind a sequence's end. `rows` lie on the CPU.
        """
        return F.embedding(rows.to(x.device), self.unroll(x, is_first, stored_state).flatten(0, 1))

    def read_episode(self, x: Tensor) -> Tensor:
        """Read the features of an episode, [T, 1, F], with gradients.  [T, D]"""
        is_first = torch.zeros(len(x), 1, dtype=torch.bool)
        is_first[0] = True
        stored_state = self.stored_state(self.initial(1), is_first[0].to(x.device))
        return self.unroll(x, is_first, stored_state)[:, 0]

    def refresh(self, x: Tensor, is_first: Tensor, stored_state: Tensor, state: Memory) -> None:
        """Recompute the state in place from features [P, N, F] of the last P <= n_context steps.

        Afterwards it is that of `unroll` after these steps; `stored_state` was kept with the first
        of them. A memory does nothing where its state depends on no earlier weights, or is kept
        although it does.
        """

    def attention(self, x: Tensor, state: Memory, is_first: Tensor) -> Tensor | None:
        """Return a step's attention weights, the state staying as it is; None without attention.

        The columns are the M steps before, oldest first, then the present one.  [L, N, H, 1, M+1]
        """
        return None

    @torch.no_grad()
    def looks(self, x: Tensor, state: Memory, is_first: Tensor) -> dict[str, np.ndarray]:
        """Return the attention weights for `Agent.inspect`, nothing if there are none."""
        weights = self.attention(x, state, is_first)  # [L, N, H, 1, M+1]
        if weights is None:
            return {}
        return {"attention": weights.squeeze(3).transpose(0, 1).half().cpu().numpy()}

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


class NoMemory(TrainedMemory):
    """Returns the present features; its state and stored state are of width 0."""

    def __init__(self, n_features: int, settings: NetworkSettings | None = None) -> None:
        super().__init__(n_features, settings)
        self.width = n_features
        # Says where the network lies, having no weights of its own.
        self.register_buffer("nothing", torch.zeros(0), persistent=False)

    def initial(self, n_envs: int) -> TensorMemory:
        return TensorMemory(torch.zeros(n_envs, 0, device=self.device))

    def step(self, x: Tensor, state: Memory, is_first: Tensor, advance: bool = True) -> Tensor:
        return x

    def stored_state(self, state: Memory, is_first: Tensor) -> Tensor:
        return cast(TensorMemory, state).state

    def unroll(self, x: Tensor, is_first: Tensor, stored_state: Tensor) -> Tensor:
        return x

    @property
    def device(self) -> torch.device:
        return cast(Tensor, self.nothing).device
