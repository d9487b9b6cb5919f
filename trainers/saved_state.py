"""Whether a saved state fits the run that is to take it over, asked before it does.

A checkpoint's checksum says that it is as it was written, not by whom. PyTorch's fused optimiser
reads and writes beyond a state of another size than its parameter: a process can crash of it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

PLAIN = (bool, int, float, str, type(None))
FREE = ("lr",)  # what a schedule changes in the course of a run


def check_like(saved: Any, here: Any, name: str) -> None:
    """Raise ValueError unless a saved value is built like one of this run.

    Dictionaries must have the same keys, lists the same length, tensors the same type and shape,
    and numbers must be of the same kind; those in tensors must be finite.

    Args:
        saved: From a checkpoint.
        here: What takes its place in a new run.
        name: What to call it.
    """
    if isinstance(here, Tensor):
        _check_tensor(saved, here, name)
    elif type(saved) is not type(here):
        raise ValueError(f"{name} is a {type(saved).__name__}, not a {type(here).__name__}")
    elif isinstance(here, Mapping):
        if saved.keys() != here.keys():
            raise ValueError(f"{name} does not have the keys {', '.join(map(str, here))}")
        for key in here:
            check_like(saved[key], here[key], f"{name}.{key}")
    elif not isinstance(here, PLAIN):
        if len(saved) != len(here):
            raise ValueError(f"{name} has {len(saved)} entries, not {len(here)}")
        for number, (one, other) in enumerate(zip(saved, here, strict=True)):
            check_like(one, other, f"{name}.{number}")


def check_optimizer(saved: Any, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
    """Raise ValueError unless a saved state of AdamW is one of these parameters."""
    groups = optimizer.state_dict()["param_groups"]
    check_like(saved["param_groups"], groups, "param_groups")
    for one, other in zip(saved["param_groups"], groups, strict=True):
        differing = [name for name in other if name not in FREE and one[name] != other[name]]
        if differing or not math.isfinite(one["lr"]):
            raise ValueError(f"param_groups differ in {', '.join(differing) or 'lr'}")
    for number, state in saved["state"].items():
        if type(number) is not int or not 0 <= number < len(parameters):
            raise ValueError("the optimizer's state is of a parameter that there is not")
        moment = parameters[number].detach().cpu()
        like = {"step": torch.tensor(0.0), "exp_avg": moment, "exp_avg_sq": moment}
        check_like(state, like, f"optimizer.{number}")


def check_reward(saved: Any, reward: Any) -> None:
    """Raise ValueError unless a saved state is one of this reward, or of none."""
    if reward is None:
        check_like(saved, None, "reward")
        return
    here = reward.state_dict()
    for part in ("networks", "statistics"):
        check_like(saved[part], here[part], f"reward.{part}")
    check_optimizer(saved["optimizer"], reward.optimizer, reward.parameters)


def _check_tensor(saved: Any, here: Tensor, name: str) -> None:
    if type(saved) is not Tensor or saved.layout != torch.strided or saved.is_meta:
        raise ValueError(f"{name} is no plain tensor")
    if saved.shape != here.shape or saved.dtype != here.dtype:
        raise ValueError(
            f"{name} is {saved.dtype} of shape {tuple(saved.shape)}, "
            f"not {here.dtype} of shape {tuple(here.shape)}"
        )
    if saved.is_floating_point() and not saved.isfinite().all():
        raise ValueError(f"{name} has numbers that are not finite")
