"""One seed for everything random, and the positions of the random streams."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch

SEED_OF_EVALUATION = 42


def seed_everything(seed: int, deterministic: bool = False) -> None:
    """Seed Python, NumPy and PyTorch on every device.

    `deterministic` lets PyTorch choose only operations that give the same bits in every run.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if deterministic:  # cuBLAS reads it when it is first used
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # takes 2 s of imports
        torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic


def derived_seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def evaluation_seed(seed: int, number: int = 0) -> int:
    """Return a seed for environments that are played and not trained in.

    A training of the same seed, or another small one, has none of their episodes.
    """
    return derived_seed(seed + SEED_OF_EVALUATION, number)


def random_state() -> dict[str, Any]:
    name, keys, *position = cast(tuple, np.random.get_state(legacy=True))
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.copy()), *position),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Continue the random streams; a state of another form raises errors of several kinds."""
    name, keys, *position = state["numpy"]
    if not 0 <= position[0] <= len(keys):  # NumPy would read there
        raise ValueError(f"NumPy's stream stands at {position[0]} of {len(keys)} numbers")
    random.setstate(state["python"])
    np.random.set_state((name, keys.numpy(), *position))
    torch.set_rng_state(state["torch"])
    for device, cuda_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(cuda_state, device)


@contextmanager
def streams_kept() -> Iterator[None]:
    """Let no random stream of this process have moved in the end."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)
