"""The one stopwatch, the most memory a process and its GPU have held, and the machine."""

import os
import platform
import re
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

Result = TypeVar("Result")


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._begin, self._begin_cpu = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        """Seconds of the clock so far."""
        return time.perf_counter() - self._begin

    @property
    def cpu_seconds(self) -> float:
        """Seconds of processor time so far, of all threads together."""
        return time.process_time() - self._begin_cpu


class Machine(NamedTuple):
    """What figures were taken on; `load` is the average of the minute before."""

    processor: str
    cores: int
    threads: int
    load: float
    torch: str
    device: str

    @classmethod
    def here(cls, threads: int | None = None) -> "Machine":
        """Return this machine, used with so many threads or as many as PyTorch has now."""
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        return cls(
            platform.machine(),
            os.cpu_count() or 1,
            threads or torch.get_num_threads(),
            round(os.getloadavg()[0], 1),
            torch.__version__,
            device,
        )

    def __str__(self) -> str:
        return (
            f"machine: {self.processor}, {self.cores} cores, {self.threads} threads, "
            f"load {self.load}, torch {self.torch}, GPU: {self.device}"
        )


def peak_megabytes() -> float:
    """Return the most memory this process has held.  [10^6 bytes]"""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent held when it began this process
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def wait_for_gpu() -> None:
    """Wait until a GPU that this process uses has done all it was told to."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak_gpu_megabytes() -> float | None:
    """Return the most memory that tensors of this process have held on its GPU; None without one.

    What CUDA itself and its libraries take is not in it.  [10^6 bytes]
    """
    return torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_initialized() else None


def own_process() -> ProcessPoolExecutor:
    """Return a fresh process that holds nothing of this one."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def in_own_process(
    function: Callable[..., Result], *arguments: object, seconds: float | None = None
) -> Result:
    """Return what a function returns in a fresh process.

    Args:
        function: To be sent there: no lambda, no closure.
        arguments: For it.
        seconds: After which the process is killed; None for never.

    Raises:
        TimeoutError: it was killed.
    """
    others = active_children()
    with own_process() as process:
        work = process.submit(function, *arguments)
        try:
            return work.result(seconds)
        except TimeoutError:
            for child in active_children():
                if child not in others:
                    child.kill()
            raise TimeoutError(f"not through after {seconds:.0f} s") from None
