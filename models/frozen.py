"""Holding what is pretrained apart from what is trained."""

from typing import Generic, TypeVar

import torch
from torch import nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Frozen(Generic[AnyModule]):
    """Holds a pretrained module so that its owner neither trains nor saves nor moves it."""

    def __init__(self, module: AnyModule) -> None:
        self.module = module.requires_grad_(False)


def check_finite(module: nn.Module) -> None:
    """Raise ValueError where a weight is no finite number, such as in a row that is rarely read."""
    for name, weights in module.named_parameters():
        if not torch.stack(weights.aminmax()).isfinite().all():  # NaN comes out of both
            raise ValueError(f"{name} has numbers that are not finite")
