"""Frozen weights that the processes of one machine read and hold once."""

import os
import pickle
import tempfile
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def once_a_machine(load: Callable[[], AnyModule]) -> AnyModule:
    """Return a frozen module that one process of each machine has loaded; the others map it.

    Where torchrun has started this process, all ranks must call together. The weights go through a
    file in the folder for temporary files that has no name, so nothing stays of it, and every
    process maps its pages. A module that cannot be pickled is loaded by each process for itself.

    Args:
        load: Loads the module to the CPU. What it raises is read once: the other ranks exit.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return load()
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    with tempfile.TemporaryFile() as file:
        source: str | None = None
        try:
            if local_rank == 0:
                torch.save(load(), file)
                file.flush()
                source = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        except (pickle.PicklingError, AttributeError, TypeError):
            source = ""
        finally:
            sources: list[str | None] = [None] * dist.get_world_size()
            dist.all_gather_object(sources, source)
        found = sources[rank - local_rank]
        if found is None:
            raise SystemExit(2)
        # The file is this program's own, from a moment ago: it may hold classes.
        module = torch.load(found, mmap=True, weights_only=False) if found else load()
        dist.barrier()
    return module
