"""Holding what is pretrained apart from what is trained."""

from typing import Generic, TypeVar

from torch import nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Frozen(Generic[AnyModule]):
    """Holds a pretrained module so that its owner neither trains nor saves nor moves it."""

    def __init__(self, module: AnyModule) -> None:
        self.module = module.requires_grad_(False)
