"""Mean and variance of a stream of numbers, kept without keeping the numbers."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike


class RunningMeanVariance:
    """Mean and variance of all values seen so far, as float64.

    Before the first value the variance is 1, with the weight of a ten-thousandth of a value.

    Attributes:
        mean: Mean of the values.
        variance: Population variance of the values.
        count: Number of values, the initial weight included.
    """

    def __init__(self) -> None:
        self.mean = 0.0
        self.variance = 1.0
        self.count = 1e-4

    def update(self, values: ArrayLike) -> None:
        """Take in a batch of values (Chan, Golub and LeVeque 1979, updating formulas).

            M2 = n_a * var_a + n_b * var_b + (mean_b - mean_a)^2 * n_a * n_b / (n_a + n_b)

        Args:
            values: Any shape; each element counts once. Tensors must be on the CPU, detached.
        """
        batch = np.asarray(values, dtype=np.float64)
        if batch.size == 0:
            return
        total = self.count + batch.size
        difference = float(batch.mean()) - self.mean
        squares = self.count * self.variance + batch.size * float(batch.var())
        squares += difference**2 * self.count * batch.size / total
        self.mean += difference * batch.size / total
        self.variance = squares / total
        self.count = total

    def state_dict(self) -> dict[str, float]:
        """Return everything a checkpoint needs, as plain numbers."""
        return {"mean": self.mean, "variance": self.variance, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.mean = float(state["mean"])
        self.variance = float(state["variance"])
        self.count = float(state["count"])
