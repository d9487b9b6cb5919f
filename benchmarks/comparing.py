"""Two versions of the same work side by side: how long, how much memory, how far apart.

A version is a generator: it builds what it needs, then yields one piece of work after the other, a
function without arguments. Only calling that function is timed.
"""

import math
from collections.abc import Callable, Iterator
from statistics import median
from types import TracebackType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring import Result, Stopwatch, own_process, peak_megabytes, wait_for_gpu

Work = Callable[[], Tensor | None]
Version = Callable[[], Iterator[Work]]  # to be sent to another process: no lambda, no closure


class Pair(NamedTuple):
    """A part of the program and its straightforward version.

    Attributes:
        name: Of the row.
        plain, ours: The two, which are given the same input in the same order.
        rounds: Pieces of work the plain version does.
        repeats: Pieces of work ours does for each of those; it is faster.
        steps: What a piece of work counts for; the figures are for one of it.
        note: What else there is to say.
    """

    name: str
    plain: Version
    ours: Version
    rounds: int = 5
    repeats: int = 4
    steps: int = 1
    note: str = ""


class Figures(NamedTuple):
    """What a comparison found.

    Attributes:
        plain_ms, ours_ms: Milliseconds a step, median.
        ratio: How many times faster ours is.
        difference: The largest between results of the same work; None where there are none.
        plain_mb, ours_mb: The most memory a process held that did nothing else.  [10^6 bytes]
    """

    name: str
    plain_ms: float
    ours_ms: float
    ratio: float
    difference: float | None
    plain_mb: float
    ours_mb: float
    note: str


class Round(NamedTuple):
    """One piece of work: how long it took and what came out."""

    seconds: float
    result: np.ndarray | None


class Runner:
    """A version at work, in a process of its own so that its memory can be told apart.

    Args:
        version: What to run.
        threads: Cores it may use.
        apart: False to stay in this process: quick, and the memory is that of everything in it.
    """

    def __init__(self, version: Version, threads: int, apart: bool = True) -> None:
        self._process = own_process() if apart else None
        self._key = str(id(self))
        self._do(_open, self._key, version, threads)

    def advance(self) -> Round:
        """Do the next piece of work."""
        return self._do(_advance, self._key)

    def median_ms(self, rounds: int) -> float:
        """Do some pieces of work and return how many milliseconds one took, the median."""
        return 1e3 * median(self.advance().seconds for _ in range(rounds))

    def peak_megabytes(self) -> float:
        """Return the most memory the process has held."""
        return self._do(peak_megabytes)

    def __enter__(self) -> "Runner":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._do(_close, self._key)
        if self._process:
            self._process.shutdown()

    def _do(self, function: Callable[..., Result], *arguments: object) -> Result:
        if self._process is None:
            return function(*arguments)
        return self._process.submit(function, *arguments).result()


def compare(pair: Pair, threads: int, apart: bool = True) -> Figures:
    """Let both versions work in turns, so that both see the same moods of the machine."""
    expected: list[Round] = []
    found: list[Round] = []
    with Runner(pair.plain, threads, apart) as plain, Runner(pair.ours, threads, apart) as ours:
        for _ in range(pair.rounds):
            expected.append(plain.advance())
            found += [ours.advance() for _ in range(pair.repeats)]
        memory = plain.peak_megabytes(), ours.peak_megabytes()
    plain_ms, ours_ms = (
        1e3 * median(each.seconds for each in rounds) / pair.steps for rounds in (expected, found)
    )
    difference = largest_difference(expected, found)
    return Figures(pair.name, plain_ms, ours_ms, plain_ms / ours_ms, difference, *memory, pair.note)


def largest_difference(expected: list[Round], found: list[Round]) -> float | None:
    """Return the largest difference of results of the same work; NaN counts as infinite."""
    pairs = [(a.result, b.result) for a, b in zip(expected, found, strict=False)]
    gaps = [float(np.abs(a - b).max()) for a, b in pairs if a is not None and b is not None]
    return max((math.inf if math.isnan(gap) else gap for gap in gaps), default=None)


_at_work: dict[str, Iterator[Work]] = {}  # in the process that does the work


def _open(key: str, version: Version, threads: int) -> None:
    torch.set_num_threads(threads)
    _at_work[key] = version()


def _advance(key: str) -> Round:
    work = next(_at_work[key])
    wait_for_gpu()
    watch = Stopwatch()
    result = work()
    wait_for_gpu()
    seconds = watch.seconds
    return Round(seconds, None if result is None else result.detach().double().cpu().numpy())


def _close(key: str) -> None:
    del _at_work[key]
