"""Time, memory and results of a piece of work; the machine; the tables of figures.

A version is a generator: it builds its inputs, then yields one piece of work after the other, a
function without arguments. Only calling that function is timed.
"""

import math
import os
import platform
import re
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from utils.command_line import whole_number
from utils.errors import UserError, did_you_mean

Result = TypeVar("Result")
Work = Callable[[], Tensor | np.ndarray | None]
Version = Callable[[], Iterator[Work]]  # to be sent to another process: no lambda, no closure
SECONDS, FEWEST = 5.0, 3  # of timed work for each version, and the pieces of it that a median needs


def this_machine(threads: int | None = None) -> dict[str, Any]:
    """Return the machine of some figures; its load is the average of the minute before."""
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count() or 1,
        "threads": threads or torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def in_words(machine: Mapping[str, Any]) -> str:
    return "machine: " + ", ".join(f"{name} {value}" for name, value in machine.items())


def add_threads(parser: ArgumentParser) -> None:
    number, default = whole_number(1, 1024), torch.get_num_threads()
    told = "cores to use; else OMP_NUM_THREADS, or all"
    parser.add_argument("--threads", type=number, default=default, help=told)


class Measured(NamedTuple):
    ms: float  # of a piece of work, the median
    peak_mb: float  # of the process, or on a GPU of its tensors  [10^6 bytes]
    results: list[np.ndarray]  # of the first pieces of work


class Pair(NamedTuple):
    """A fast part and its straightforward version, given the same input in the same order.

    Attributes:
        plain: The straightforward version; None where ours is measured alone.
        compared: The first pieces of work, whose results are compared.
        note: The size, and other remarks.
    """

    name: str
    plain: Version | None
    ours: Version
    compared: int = 5
    note: str = ""


def compare(pair: Pair, threads: int, quick: bool = False) -> dict[str, Any]:
    """Measure both versions, plain first, each in a process of its own: milliseconds.

    `quick` stays in this process and does no more than is compared; the memory means nothing then.
    """
    run = measure if quick else partial(in_own_process, measure)
    rounds, seconds = max(pair.compared, 1 if quick else FEWEST), 0.0 if quick else SECONDS
    how = rounds, 0, pair.compared, threads, seconds
    plain = None if pair.plain is None else run(pair.plain, *how)
    ours = run(pair.ours, *how)
    before = [] if plain is None else plain.results
    gaps = [
        float(np.abs(a.astype(np.float64) - b).max())
        for a, b in zip(before, ours.results, strict=True)
    ]
    return {
        "name": pair.name,
        "plain_ms": None if plain is None else plain.ms,
        "ours_ms": ours.ms,
        "ratio": None if plain is None else plain.ms / ours.ms,
        "difference": max((math.inf if math.isnan(gap) else gap for gap in gaps), default=None),
        "plain_mb": None if plain is None else plain.peak_mb,
        "ours_mb": ours.peak_mb,
        "note": pair.note,
    }


def measure(
    version: Version,
    rounds: int,
    warm_ups: int = 0,
    compared: int = 0,
    threads: int | None = None,
    seconds: float = 0.0,
) -> Measured:
    """Do pieces of a version's work in this process, some of them untimed first.

    At least `rounds` are timed, more until all have taken `seconds`; the results of the first
    `compared` are returned.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    # Of one thread the processor's time: other work on the machine does not count.
    clock = time.process_time if threads == 1 else time.perf_counter
    times: list[float] = []
    works, results = version(), []
    while len(times) < warm_ups + rounds or sum(times) < seconds:
        work = next(works)
        wait_for_gpu()
        begun = clock()
        result = work()
        wait_for_gpu()
        times.append(clock() - begun)
        if len(times) <= compared and result is not None:
            results.append(torch.as_tensor(result).detach().cpu().numpy().copy())
    gpu_mb = peak_gpu_megabytes()
    peak_mb = peak_megabytes() if gpu_mb is None else gpu_mb
    return Measured(1e3 * median(times[warm_ups:]), peak_mb, results)


def peak_megabytes() -> float:
    """Return the most memory this process has held.  [10^6 bytes]"""
    # getrusage would count the parent's memory at the moment it began this process.
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) * 1024 / 1e6


def wait_for_gpu() -> None:
    # While a graph is recorded there is nothing to wait for, and waiting ends the recording.
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()


def peak_gpu_megabytes() -> float | None:
    """Return the most memory of tensors on this process's GPU, [10^6 bytes]; None without one."""
    # The memory of CUDA itself and of its libraries is not in it.
    return torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_initialized() else None


def in_own_process(
    function: Callable[..., Result], *arguments: object, seconds: float | None = None
) -> Result:
    """Return the result of a function, no lambda and no closure, in a fresh process.

    Raises:
        TimeoutError: it took longer than `seconds` and was killed.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        work = process.submit(function, *arguments)
        try:
            return work.result(seconds)
        except TimeoutError:
            for child in active_children():
                child.kill()
            raise TimeoutError(f"not through after {seconds:.0f} s") from None


class Table:
    """Prints its head when made and every row when added, so that slow figures show up early.

    Args:
        columns: A heading and a format for each column, such as plain_ms=">10,.1f"; underscores of
            headings are shown as blanks. A text or a missing number takes the format's width alone.
    """

    def __init__(self, **columns: str) -> None:
        self._formats = list(columns.values())
        self.row(*(name.replace("_", " ") for name in columns))

    def row(self, *cells: str | float | None) -> None:
        shown = []
        for cell, spec in zip(cells, self._formats, strict=True):
            is_text = isinstance(cell, str) or cell is None
            width = re.sub(r"(?<=\d)[,.].*", "", spec)
            shown.append(format("–" if cell is None else cell, width if is_text else spec))
        print(" ".join(shown).rstrip(), flush=True)


def check_names(option: str, names: Sequence[str], allowed: Iterable[str]) -> Sequence[str]:
    for name in names:
        if name not in allowed:
            hint = did_you_mean(name, allowed)
            raise UserError(f"{option}: '{name}' is none of {', '.join(allowed)}.{hint}")
    return names
