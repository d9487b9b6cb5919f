"""A batch of images that knows which of them are equal.

Worlds of tiles repeat themselves: few of the images of a rollout differ, and few of the windows
that a convolution sees of those. What is equal needs to be computed once.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from models.image_hash import first_occurrences, image_hashes

SAMPLE = 256  # images that show whether windows repeat


def unit_images(images: Tensor) -> Tensor:
    """Return uint8 images as floats in [0, 1], the images' space ending at 255."""
    return images.float().div_(255)


class Features(NamedTuple):
    """Features of B observations, of which U differ.

    Attributes:
        distinct: [U, F]
        row_of: Which row each observation has; None where every one has its own.  [B] int64
    """

    distinct: Tensor
    row_of: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> "Features":
        """Apply a function of rows [U, F] once to what is equal."""
        return Features(function(self.distinct), self.row_of)

    def each(self) -> Tensor:
        """Return the features of every observation.  [B, F]"""
        if self.row_of is None:
            return self.distinct
        rows = F.embedding(self.row_of, self.distinct.flatten(1))
        return rows.unflatten(1, self.distinct.shape[1:])

    def counts(self) -> Tensor:
        """Return how many of the observations each row stands for.  [U] float32"""
        if self.row_of is None:
            return self.distinct.new_ones(len(self.distinct))
        return torch.bincount(self.row_of, minlength=len(self.distinct)).to(self.distinct.dtype)

    def select(self, observations: Tensor) -> "Features":
        """Return the features of some observations, given their numbers.  [B'] int64"""
        if self.row_of is None:
            return Features(self.distinct[observations])
        shown, row_of = self.row_of[observations].unique(return_inverse=True)
        return Features(self.distinct[shown], row_of)


class ImageBatch:
    """B images, a selection of those that a rollout has shown.

    Args:
        pool: The P different images of all.
        number_of: Which of them each image of the batch is.  [B] int64
    """

    def __init__(self, pool: "DistinctImages", number_of: Tensor) -> None:
        self._pool, self._number_of = pool, number_of

    @classmethod
    def of(cls, images: Tensor) -> "ImageBatch":
        """Return images [B, C, H, W] uint8 as a batch."""
        if images.is_cuda:  # counting them would make the host wait for the device
            numbers = torch.arange(len(images), device=images.device)
            return cls(DistinctImages(images), numbers)
        firsts, number_of = first_occurrences(image_hashes(images))
        return cls(DistinctImages(images[firsts]), number_of)

    def __len__(self) -> int:
        return len(self._number_of)

    def __getitem__(self, rows: Tensor) -> "ImageBatch":
        """Return some of the images, given their numbers in this batch.  [B'] int64"""
        return ImageBatch(self._pool, self._number_of[rows])

    def numbers(self) -> Tensor | None:
        """Return a number for each image that equal ones share [B]; None on a GPU."""
        return None if self._pool.on_gpu else self._number_of

    def pixels(self) -> Tensor:
        """Return the images themselves.  [B, C, H, W] uint8"""
        return self._pool.select(self._number_of).images

    def each(self, encoder: Callable[["DistinctImages"], Tensor]) -> Features:
        """Return what an encoder of different images, [U, F], makes of each image."""
        if self._pool.on_gpu:
            return Features(encoder(self._pool.select(self._number_of)))
        shown, row_of = self._number_of.unique(return_inverse=True)
        return Features(encoder(self._pool.select(shown)), row_of)


class Windows(NamedTuple):
    """The different windows of P images.

    Attributes:
        windows: [Q, C, side, side] uint8
        window_of: Which window stands at each place of each image.  [P, rows, columns] int64
    """

    windows: Tensor
    window_of: Tensor


class DistinctImages:
    """U images that all differ, a selection of the P a rollout has shown.

    Args:
        images: All of them.  [P, C, H, W] uint8
    """

    def __init__(self, images: Tensor) -> None:
        self._all = images
        self._rows = torch.arange(len(images), device=images.device)
        # Shared by all selections.
        self._windows: dict[tuple[int, int], Windows | None] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def images(self) -> Tensor:
        """The images.  [U, C, H, W] uint8"""
        return self._all[self._rows]

    @property
    def on_gpu(self) -> bool:
        """Whether counting would make the host wait for a device."""
        return self._all.is_cuda

    def select(self, rows: Tensor) -> "DistinctImages":
        """Return some of the images, given their numbers among these.  [U'] int64"""
        selection = DistinctImages.__new__(DistinctImages)
        selection._all, selection._windows = self._all, self._windows
        selection._rows = self._rows[rows]
        return selection

    def windows(self, side: int, stride: int) -> Windows | None:
        """Return the different windows of these images, `stride` pixels apart.

        None where the windows of all P images have more pixels than the images themselves.
        """
        if (side, stride) not in self._windows:
            self._windows[side, stride] = _windows(self._all, side, stride)
        every = self._windows[side, stride]
        if every is None:
            return None
        used, window_of = every.window_of[self._rows].unique(return_inverse=True)
        return Windows(every.windows[used], window_of)


def _windows(images: Tensor, side: int, stride: int) -> Windows | None:
    if len(images) > SAMPLE and _windows(images[:SAMPLE], side, stride) is None:
        return None
    places = images.unfold(2, side, stride).unfold(3, side, stride)
    n_images, n_channels, n_rows, n_columns = places.shape[:4]  # and [side, side]
    flat = places.permute(0, 2, 3, 1, 4, 5).reshape(-1, n_channels, side, side)
    firsts, number_of = first_occurrences(image_hashes(flat))
    windows = flat[firsts]
    if windows.numel() > images.numel():
        return None
    return Windows(windows, number_of.view(n_images, n_rows, n_columns))
