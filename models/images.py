"""Images of a batch: scaled to one, told apart, and encoded once where they are equal.

Worlds of tiles repeat themselves: few of the images of a rollout differ, and few of the windows
that a convolution sees of those. Images are told apart by a 128-bit hash of their bytes.
"""

import functools
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from models.observations import ObservationBatch

WORD = 8  # bytes
SEED = 20220524
SAMPLE = 256  # images that show whether windows repeat


def unit_images(images: Tensor) -> Tensor:
    """Return uint8 images as floats in [0, 1], the images' space ending at 255."""
    return images.float().div_(255)


def image_hashes(images: Tensor) -> Tensor:
    """Return two independent 64-bit hashes of each image.

    Every word is added to a fixed random number, multiplied and folded before the sum, so that
    each bit of the image reaches the low bits of its hash; sums wrap around.

    Args:
        images: [B, C, H, W] uint8

    Returns:
        [B, 2] int64
    """
    flat = images.reshape(len(images), -1)
    words = F.pad(flat, (0, -flat.shape[1] % WORD)).view(torch.int64)  # [B, n_words]
    added, factors = _keys(words.shape[1], images.device)
    halves = []
    for key in range(2):
        mixed = (words + added[key]).mul_(factors[key])
        mixed ^= mixed >> 29
        halves.append(mixed.mul_(factors[1 - key]).bitwise_xor_(mixed >> 32).sum(1))
    return torch.stack(halves, dim=1)


def first_occurrences(hashes: Tensor) -> tuple[Tensor, Tensor]:
    """Return which of B hashes are seen for the first time, and each one's number among those.

    Args:
        hashes: [B, 2] int64

    Returns:
        firsts: Index of the first occurrence of each of P different hashes.  [P] int64
        number_of: Which of the P each hash is.  [B] int64
    """
    firsts, number_of = _firsts(*hashes[:, 0].unique(return_inverse=True))
    if not torch.equal(hashes[firsts][number_of], hashes):  # half a hash alike: not seen yet
        return _firsts(*hashes.unique(dim=0, return_inverse=True))  # ten times slower
    return firsts, number_of


class DistinctImages:
    """The U images of a batch that differ, on a CPU: counting would make a GPU's host wait.

    They are looked for once among all images that are stored with the batch's.

    Attributes:
        row_of: Which of the U each image of the batch is.  [B] int64
    """

    def __init__(self, batch: ObservationBatch) -> None:
        assert batch.stored.images is not None, "asked for where images are shown"
        self._stored, self._found = batch.stored.images, batch.found
        if "images" not in self._found:
            self._found["images"] = first_occurrences(image_hashes(self._stored))
        self._firsts, number_of = self._found["images"]  # of the P that are stored
        self._numbers, self.row_of = batch.picked(number_of).unique(return_inverse=True)

    @property
    def images(self) -> Tensor:
        """The images.  [U, C, H, W] uint8"""
        return self._stored[self._firsts[self._numbers]]

    def windows(self, side: int, stride: int) -> tuple[Tensor, Tensor] | None:
        """Return the different windows of these images, `stride` pixels apart.

        Returns:
            windows: [Q, C, side, side] uint8
            window_of: Which of them stands at each place of each image.  [U, rows, columns] int64

            None where the windows of all that are stored have more pixels than the images.
        """
        name = f"windows of {side} by {stride}"
        if name not in self._found:
            self._found[name] = _windows(self._stored[self._firsts], side, stride)
        if self._found[name] is None:
            return None
        windows, window_of = self._found[name]
        used, places = window_of[self._numbers].unique(return_inverse=True)
        return windows[used], places


def encoded_once(batch: ObservationBatch, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what images [U, C, H, W] in [0, 1] are encoded to, [U, F], of a batch.  [B, F]"""
    if batch.is_cuda:
        return encode(unit_images(cast(Tensor, batch.images)))
    different = DistinctImages(batch)
    return F.embedding(different.row_of, encode(unit_images(different.images)))


def _windows(images: Tensor, side: int, stride: int) -> tuple[Tensor, Tensor] | None:
    if len(images) > SAMPLE and _windows(images[:SAMPLE], side, stride) is None:
        return None
    places = images.unfold(2, side, stride).unfold(3, side, stride)
    n_images, n_channels, n_rows, n_columns = places.shape[:4]  # and [side, side]
    flat = places.permute(0, 2, 3, 1, 4, 5).reshape(-1, n_channels, side, side)
    firsts, number_of = first_occurrences(image_hashes(flat))
    windows = flat[firsts]
    if windows.numel() > images.numel():
        return None
    return windows, number_of.view(n_images, n_rows, n_columns)


def _firsts(different: Tensor, number_of: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first of B rows that has each of P numbers [P], and the numbers [B]."""
    places = torch.arange(len(number_of), device=number_of.device)
    firsts = places.new_full((len(different),), len(number_of))
    return firsts.scatter_reduce_(0, number_of, places, "amin"), number_of


@functools.cache
def _keys(n_words: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return fixed random summands and odd factors.  [2, n_words] int64 each"""
    generator = torch.Generator().manual_seed(SEED)
    low, high = -(2**63), 2**63 - 1
    added = torch.randint(low, high, (2, n_words), generator=generator)
    factors = torch.randint(low, high, (2, n_words), generator=generator) | 1
    return added.to(device), factors.to(device)
