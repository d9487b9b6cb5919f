"""What Adam and AdamW keep of each parameter, as a checkpoint holds it.

PyTorch makes it at the first step. Here it is there from the start, so that a saved one can be
compared with it: a fused optimiser reads and writes beyond a state of another size than its
parameter. Everything else of an optimiser follows from the settings.
"""

from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

Adam = TypeVar("Adam", bound=Optimizer)


def with_moments(optimizer: Adam) -> Adam:
    """Return a new optimiser that has the zeros it would make at its first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            device = parameter.device if group.get("fused") else "cpu"
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimizer


def moments(optimizer: Optimizer) -> dict[int, Any]:
    """Return the number of steps and the moments of each parameter, by its number."""
    return optimizer.state_dict()["state"]


def load_moments(optimizer: Optimizer, state: dict[int, Any]) -> None:
    """Take over what `moments` returned."""
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
