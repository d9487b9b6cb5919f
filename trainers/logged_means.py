"""Means of what gradient steps log, from one row of metrics to the next."""

import math
from collections.abc import Mapping


class LoggedMeans:
    """Sums of logged values and the number of steps they come from."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._n_steps = 0

    @property
    def are_finite(self) -> bool:
        """Whether no sum is NaN or infinite."""
        return all(map(math.isfinite, self._sums.values()))

    def add(self, sums: Mapping[str, float], n_steps: int = 1) -> None:
        """Add the sums over a number of gradient steps."""
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._n_steps += n_steps

    def means(self) -> dict[str, float]:
        """Return the mean of each value over the steps that were added."""
        return {name: total / self._n_steps for name, total in self._sums.items()}

    def clear(self) -> None:
        """Begin anew."""
        self._sums, self._n_steps = {}, 0
