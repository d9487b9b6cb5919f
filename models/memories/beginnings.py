"""Which sequences of a batch are equal up to which step.

Episodes of one policy begin alike, and what a memory remembers follows from what it has read: what
is equal up to a step is read once.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Beginnings(NamedTuple):
    """The different beginnings of B sequences, of every length up to T.

    Attributes:
        own: Which of the beginnings of its length each sequence has.  [T, B] int64
        counts: How many there are of each length.  [T] int64
    """

    own: Tensor
    counts: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> "Beginnings":
        """Return those of sequences of inputs, equal ones having the same number.  [T, B] int64"""
        n_sequences, n_inputs = rows.shape[1], int(rows.max()) + 1
        every = torch.arange(n_sequences, device=rows.device)
        own, begun = torch.empty_like(rows), torch.zeros_like(every)
        counts: list[int] = []
        for t, step in enumerate(rows):
            if counts and counts[-1] == n_sequences:  # equal ones never follow different ones
                own[t:] = every
                break
            different, begun = (begun * n_inputs + step).unique(return_inverse=True)
            own[t] = begun
            counts.append(len(different))
        counts += [n_sequences] * (len(rows) - len(counts))
        return cls(own, torch.tensor(counts, device=rows.device))

    @property
    def share(self) -> float:
        """Return how many there are for each step of each sequence, 1 if all of them differ."""
        return float(self.counts.sum()) / self.own.numel()

    def numbered(self) -> Tensor:
        """Return a number for the beginning that ends at each step, shorter ones first.  [T, B]"""
        return self.own + (self.counts.cumsum(0) - self.counts)[:, None]
