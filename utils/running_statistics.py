"""Mean and variance of a stream of numbers, kept without keeping the numbers."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Moments(NamedTuple):
    """Count n, mean, and sum of squared differences from it; numbers, or tensors by element."""

    count: Any
    mean: Any
    squares: Any

    @classmethod
    def of(cls, rows: Any) -> "Moments":
        """Return those of a tensor's rows [B, F], in double precision.  [F] each"""
        rows = rows.double()
        mean = rows.mean(0)
        return cls(len(rows), mean, (rows - mean).square().sum(0))

    def merged(self, other: "Moments") -> "Moments":
        """Return the moments of both (Chan, Golub and LeVeque 1979, updating formulas).

        M2 = M2_a + M2_b + (mean_b - mean_a)^2 * n_a * n_b / (n_a + n_b)
        """
        total = self.count + other.count
        difference = other.mean - self.mean
        squares = self.squares + other.squares
        squares = squares + difference * difference * self.count * other.count / total
        return Moments(total, self.mean + difference * other.count / total, squares)


class RunningMeanVariance:
    """Mean and population variance of all values so far, float64; before the first one 0 and 1."""

    # The variance 1 has the weight of a ten-thousandth of a value, which is included in `count`.

    def __init__(self) -> None:
        self.mean = 0.0
        self.variance = 1.0
        self.count = 1e-4

    def update(self, values: ArrayLike, correction: int = 0) -> None:
        """Add a batch of values of any shape; each element counts once.

        `correction` 1 takes the batch for a sample, so that its own variance is unbiased.
        """
        batch = np.asarray(values, dtype=np.float64)
        if batch.size == 0:
            return
        own = Moments(self.count, self.mean, self.count * self.variance)
        new = Moments(
            batch.size, float(batch.mean()), batch.size * float(batch.var(ddof=correction))
        )
        self.count, self.mean, squares = own.merged(new)
        self.variance = squares / self.count

    def state_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "variance": self.variance, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = float(state["mean"])
        self.variance = float(state["variance"])
        self.count = float(state["count"])
