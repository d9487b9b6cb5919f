"""Threads of PyTorch's operations: how they wait, and how many there are.

PyTorch is not imported here: OpenMP reads its environment variables when PyTorch is loaded.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

NUMBER = "OMP_NUM_THREADS"


def let_waiting_threads_sleep() -> None:
    """Let threads that wait for others give their core away, unless the user says otherwise.

    By default they spin, which beside other work takes the core that the awaited thread needs.
    To be called before PyTorch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def number_of_threads(given: int | None) -> int:
    """Return how many threads a run has: the given number, or OMP_NUM_THREADS, or one.

    One, as the networks of the memory tasks are small: a small operation waits for the slowest of
    its threads, and where cores are shared with other work it can take ten times as long with two.
    """
    number = os.environ.get(NUMBER, "")
    return given or (int(number) if number.isdecimal() else 0) or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Let sums be taken in the same order however many threads there are otherwise."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
