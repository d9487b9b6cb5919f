"""The step of a stack of layers as one CUDA graph.

A step is some hundred small kernels, and a GPU is through with each before the host has sent the
next. A graph sends them all at once, and does exactly what was recorded: the same shapes at the
same addresses. So each step reads the whole ring of slots in the order in which they lie, and all
that changes from step to step is put into tensors that stay in their places: the tokens, the ages
and the slot that is written next.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from models.language.key_value_memory import KeyValueMemory, Window, ring_windows

Read = Callable[[Tensor, Tensor, list[Window]], Tensor]
WARM_UPS = 3  # calls in which libraries set themselves up, before one is recorded
CHECKS = 8  # steps that are taken both ways


class RingStep:
    """The reading of K tokens, given in tensors that stay in their places.

    Args:
        read: What the language model does with tokens, ages and windows.
        tokens: An example of what is read.  [N, K, D]
        memory: Whose ring is read, from now on all of it.
        n_visible: How many past tokens may be seen at most.
    """

    def __init__(self, read: Read, tokens: Tensor, memory: KeyValueMemory, n_visible: int) -> None:
        memory.open(tokens.shape[1])
        self.read, self.n_visible = read, n_visible
        self.keys, self.values = memory.keys, memory.values
        self.n_slots = memory.n_slots
        self.tokens, self.ages = tokens.clone(), memory.ages.clone()
        self.position = torch.tensor(memory.position, device=tokens.device)

    def fits(self, tokens: Tensor, memory: KeyValueMemory) -> bool:
        """Return whether such tokens and this memory are what the tensors were made for."""
        same_ring = memory.keys is self.keys and memory.n_slots == self.n_slots
        return same_ring and tokens.shape == self.tokens.shape

    def put(self, tokens: Tensor, ages: Tensor, position: int) -> None:
        """Say what is read next: tokens [N, K, D], ages [N] before them, the first one's slot."""
        self.tokens.copy_(tokens)
        self.ages.copy_(ages)
        self.position.fill_(position)

    def run(self) -> Tensor:
        """Read what was put, without the host looking at a single number.  [N, D]"""
        rings = self.keys[:, :, : self.n_slots], self.values[:, :, : self.n_slots]
        n_new = self.tokens.shape[1]
        windows = ring_windows(rings, self.position, self.ages, n_new, self.n_visible)
        return self.read(self.tokens, self.ages, windows)


class CapturedStep:
    """A `RingStep` as a graph; compared a few times with the plain step, given up if it differs.

    Args:
        step: What is recorded.
        tolerance: By how much results may differ, as a share of the largest number.

    Attributes:
        step: That.
        works: False once it could not be recorded or has differed.
        reason: Why it does not work; empty while it does.
    """

    def __init__(self, step: RingStep, tolerance: float) -> None:
        self.step, self.tolerance = step, tolerance
        self.works, self.reason, self._n_unchecked = True, "", CHECKS
        try:
            self._replay = recorded(step.run)
        except RuntimeError as error:  # of many kinds, from drivers and libraries
            self._give_up(str(error).partition("\n")[0])

    @property
    def trusted(self) -> bool:
        """Return whether it has agreed with the plain step often enough."""
        return self.works and self._n_unchecked == 0

    def __call__(self, tokens: Tensor, ages: Tensor, position: int) -> Tensor:
        """Read tokens [N, K, D] into the ring, from the given slot on.  [N, D]"""
        self.step.put(tokens, ages, position)
        return self._replay().clone()

    def compare(self, found: Tensor, expected: Tensor) -> None:
        """Take note of what the plain step makes of the same tokens.  [N, D] both"""
        difference = ((found - expected).abs().max() / expected.abs().max()).item()
        self._n_unchecked -= 1
        if not difference <= self.tolerance:
            self._give_up(f"it differs by {difference:.1%} from the plain step")

    def _give_up(self, reason: str) -> None:
        self.works, self.reason = False, reason
        print(f"steps are not replayed as a CUDA graph: {reason}", file=sys.stderr)


def recorded(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return what repeats the work as one CUDA graph; its result is overwritten by each call."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
