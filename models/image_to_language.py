"""What every way from an image to language has in common."""

from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from models.images import unit_images
from models.observations import Observations

BLOCK_SIZE = 16
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Frozen(Generic[AnyModule]):
    """Holds a pretrained module so that its owner neither trains nor saves nor moves it."""

    def __init__(self, module: AnyModule) -> None:
        self.module = module.requires_grad_(False)


class ImageToLanguage(nn.Module):
    """A frozen map from images to tokens, in two parts.

    The costly one, `forward`, is a pure function of one image, so its results can be remembered.
    What may change while a run goes on comes after it.

    Attributes:
        block_size: Images `forward` is given at a time.
        larger_blocks: Where many are new: multiples of it.
        n_tokens: K, the tokens that an image becomes.
    """

    block_size = BLOCK_SIZE
    larger_blocks: tuple[int, ...] = ()
    n_tokens = 1

    def seen(self, observations: Observations) -> Tensor:
        """Return what is read of observations, as bytes [N, ...] uint8: the images."""
        assert observations.images is not None, "an environment without images is refused"
        return observations.images

    def prepared(self, seen: Tensor) -> Tensor:
        """Return what `forward` maps of what is `seen`: images in [0, 1]."""
        return unit_images(seen)

    def forward(self, images: Tensor) -> Tensor:
        """Map images in [0, 1], [N, C, H, W], to what becomes of each [N, ...]."""
        raise NotImplementedError

    def tokens(self, encoded: Tensor) -> Tensor:
        """Return the tokens of what became of images [N, ...].  [N, K, D]"""
        return encoded

    def observe(self, encoded: Tensor) -> None:
        """Take in what was seen at one step of a training rollout [N, ...]."""

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of every pretrained part, by the setting that names it."""
        return {}


class NothingToLanguage(ImageToLanguage):
    """Where text alone is shown: nothing else becomes tokens.

    Args:
        width: D.
    """

    n_tokens = 0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def seen(self, observations: Observations) -> Tensor:
        """Return a zero for each observation: they are all alike.  [N, 1] uint8"""
        shown = observations.any()
        return torch.zeros(len(shown), 1, dtype=torch.uint8, device=shown.device)

    def forward(self, images: Tensor) -> Tensor:
        """Return no token.  [N, 0, D]"""
        return images.new_zeros(len(images), 0, self.width)
