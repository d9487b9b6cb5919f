"""Frozen weights that the processes of one machine fetch and read from the disk once."""

import os
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

Loaded = TypeVar("Loaded")


def once_a_machine(load: Callable[[], Loaded]) -> Loaded:
    """Return what a function loads, which the first process of each machine does before the others.

    It fetches files from a hub and brings them from the disk into the system's memory, where the
    others find them; files of safetensors are mapped, so their pages are there once. Where torchrun
    has started this process, all ranks must call together.

    Args:
        load: Reads weights. What it raises in the first process ends the others in silence.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return load()
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    loaded: list[Loaded] = []
    try:
        if local_rank == 0:
            loaded.append(load())
    finally:
        have_loaded = [False] * dist.get_world_size()
        dist.all_gather_object(have_loaded, bool(loaded))
    if not have_loaded[rank - local_rank]:
        raise SystemExit(2)
    return loaded[0] if loaded else load()
