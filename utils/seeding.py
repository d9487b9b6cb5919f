"""One seed for everything random, and the positions of the random streams."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np

from utils.environments import State

# An episode of a training has a seed below these, an episode that is only played one of them.
N_HELD_OUT = 2**16
FIRST_HELD_OUT = 2**31 - N_HELD_OUT
N_EVALUATED = 256  # evaluations while training play the first of them, block by block
N_TOGETHER = 16  # environments at most that an evaluation plays in


def seed_everything(seed: int, deterministic: bool = False) -> None:
    """Seed Python, NumPy and PyTorch on every device.

    `deterministic` lets PyTorch choose only operations that give the same bits in every run.
    """
    import torch  # not above: environments have seeds, and --help waits for no PyTorch

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


def evaluation_seed(number: int) -> int:
    """Return the seed of an evaluation that begins with this episode of the list held out."""
    return FIRST_HELD_OUT + number % N_HELD_OUT


def episode_seed(seed: int, env: int, episode: int) -> int:
    """Return the seed of an episode, below 2^31: the limit of many simulators.

    `seed` is a run's, or that of an evaluation: environments take the episodes of its list in
    turns, so that N episodes are the next N, whatever the number of environments.
    """
    if seed >= FIRST_HELD_OUT:
        return evaluation_seed(seed - FIRST_HELD_OUT + env + N_TOGETHER * episode)
    hashed = int(np.random.SeedSequence((seed, env, episode)).generate_state(1)[0]) >> 1
    return hashed % FIRST_HELD_OUT  # the same, but for one episode in 33,000


def random_state() -> State:
    import torch

    name, keys, *position = cast(tuple, np.random.get_state(legacy=True))
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.copy()), *position),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def set_random_state(state: State) -> None:
    """Continue the random streams; a state of another form raises errors of several kinds."""
    import torch

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
