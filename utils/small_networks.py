"""Small networks that are trained on the spot, and the files that keep them."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from utils.environments import State
from utils.errors import UserError, cli_command
from utils.files import atomic_write, load_saved, save_tensors

Reader = TypeVar("Reader")


class Batches(Protocol):
    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...

    def __len__(self) -> int: ...


def fit(
    network: nn.Module,
    batches: Batches,
    loss_of: Callable[..., Tensor],
    learning_rate: float,
    name: str | None,
) -> None:
    """Take one step on each batch; `loss_of` maps a batch to its loss.

    The learning rate is constant for the first half and falls linearly to zero in the second.
    `name` labels the progress bar; None shows none.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate)
    n_steps = len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, 2 - 2 * step / n_steps)
    )
    with tqdm(batches, desc=name, unit="batch", disable=True if name is None else None) as bar:
        for batch in bar:
            loss = loss_of(*batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.set_postfix(loss=f"{loss.item():.4f}", refresh=False)


def load_reader(path: Path, build: Callable[[Any], Reader], setting: str, program: str) -> Reader:
    """Build the content of a file of `save_reader`; UserError if it is missing or foreign."""
    again = shlex.join(cli_command(program))
    if not path.is_file():
        raise UserError(f"{setting}: {path} is missing. Run: {again}")
    try:
        return build(load_saved(path))
    except Exception as error:  # a broken file raises about ten kinds of errors
        problem = f"{setting}: {path}: not a file of {program}. Delete it and run: {again}"
        raise UserError(problem) from error


def save_reader(state: State, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        save_tensors(state, file)
    return path
