"""Threads of PyTorch's operations: how they wait, and whether the user has said how many.

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


def number_is_given() -> bool:
    """Return whether the user has chosen the number of threads."""
    return bool(os.environ.get(NUMBER))


def fix_number(n_threads: int) -> None:
    """Use so many threads in this process, as if the user had chosen them."""
    import torch

    os.environ[NUMBER] = str(n_threads)
    torch.set_num_threads(n_threads)


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
