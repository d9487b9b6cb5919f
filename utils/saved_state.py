"""Whether a saved state fits the run that is to load it, asked before it does."""

# A checkpoint's checksum proves that it is unchanged, not its origin.

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)
PLAIN = (bool, int, float, str, type(None))


def check_like(saved: Any, here: Any, name: str, ragged: Collection[str] = ()) -> None:
    """Raise ValueError unless a saved value is built like its counterpart here in a new run.

    Dictionaries must have the same keys, lists the same length, tensors the same type and shape,
    and numbers must be of the same kind; those in tensors must be finite. Names in `ragged`, parts
    of a different size in every run, are left out.
    """
    if name in ragged:
        return
    if isinstance(here, Tensor):
        _check_tensor(saved, here, name)
    elif isinstance(here, Mapping):
        if not isinstance(saved, Mapping) or saved.keys() != here.keys():
            raise ValueError(f"{name} does not have the keys {', '.join(map(str, here))}")
        for key in here:
            check_like(saved[key], here[key], f"{name}.{key}", ragged)
    elif type(saved) is not type(here):  # a bool is an int for isinstance
        raise ValueError(f"{name} is a {type(saved).__name__}, not a {type(here).__name__}")
    elif not isinstance(here, PLAIN):
        if len(saved) != len(here):
            raise ValueError(f"{name} has {len(saved)} entries, not {len(here)}")
        for number, (one, other) in enumerate(zip(saved, here, strict=True)):
            check_like(one, other, f"{name}.{number}", ragged)


def check_steps(saved: Mapping[str, Tensor], like: Mapping[str, Tensor], name: str) -> None:
    """Raise ValueError unless saved tensors [P, N, ...] are P > 0 steps of such as [N, ...]."""
    n_steps = max(1, len(next(iter(saved.values()))))
    check_like(saved, {kind: v.expand(n_steps, *v.shape) for kind, v in like.items()}, name)


def called(value: Any, name: str) -> Iterator[Tensor]:
    for key, each in value.items() if isinstance(value, Mapping) else ():
        if key == name and isinstance(each, Tensor):
            yield each
        yield from called(each, name)


def _check_tensor(saved: Any, here: Tensor, name: str) -> None:
    # A file may hold subclasses, sparse or meta tensors, which pass as tensors and fail in use.
    if type(saved) is not Tensor or saved.layout != torch.strided or saved.is_meta:
        raise ValueError(f"{name} is no plain tensor")
    if saved.shape != here.shape or saved.dtype != here.dtype:
        raise ValueError(
            f"{name} is {saved.dtype} of shape {tuple(saved.shape)}, "
            f"not {here.dtype} of shape {tuple(here.shape)}"
        )
    if saved.is_floating_point() and not saved.isfinite().all():
        raise ValueError(f"{name} has numbers that are not finite")


@torch.no_grad()
def with_moments(optimizer: AnyOptimizer) -> AnyOptimizer:
    """Return a new optimiser that has the zeros it would make at its first step."""
    # So a saved state can be compared with it: a fused optimiser reads and writes beyond a state of
    # another size than its parameter. All else of an optimiser follows from the settings.
    # A step of zero gradients makes them, whatever the optimiser calls them; then both are undone.
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    before = [parameter.clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter, values in zip(parameters, before, strict=True):
        parameter.copy_(values)
        parameter.grad = None
        for name, value in optimizer.state[parameter].items():
            if not torch.is_tensor(value) or (value.any() and name != "step"):
                kind = type(optimizer).__name__
                raise TypeError(f"{kind}: its '{name}' does not begin with zeros")
            value.zero_()
    return optimizer


def moments(optimizer: Optimizer) -> dict[int, Any]:
    return optimizer.state_dict()["state"]


def moments_of(optimizers: Iterable[Optimizer]) -> list[list[Tensor]]:
    """Return all moments of optimisers as they are, in groups of alike ones."""
    states = [state for each in optimizers for state in each.state.values()]
    return [[state[name] for state in states] for name in states[0]]


def load_moments(optimizer: Optimizer, state: dict[int, Any]) -> None:
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
