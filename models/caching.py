"""Images of a batch: scaled to one, told apart, and encoded once where they are equal.

Worlds of tiles repeat themselves: few of the images of a rollout differ, and few of the windows
that a convolution sees of those. Images are told apart by a 128-bit hash of their bytes.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from models.observations import ObservationBatch

WORD = 8  # bytes
SEED = 20220524
SAMPLE = 256  # images that show whether windows repeat
NEAR_BYTES = 2**18  # of images that are hashed at a time


def to_float01(images: Tensor) -> Tensor:
    """Return uint8 images as floats in [0, 1], the images' space ending at 255."""
    return images.float().div_(255)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let sums be taken in one order, for any number of threads elsewhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def image_hashes(images: Tensor) -> Tensor:
    """Return two independent 64-bit hashes [B, 2] int64 of images [B, C, H, W] uint8."""
    size = images[:1].numel()
    if len(images) * size > NEAR_BYTES and not images.is_cuda:
        # A dozen passes over numbers that stay in the processor's cache: two to four times as fast.
        parts = images.split(max(1, NEAR_BYTES // size))
        return torch.cat([_hashes(part) for part in parts])
    return _hashes(images)


def _hashes(images: Tensor) -> Tensor:
    # Words are multiplied and folded before the sum: each bit reaches the low bits of the hash.
    flat = images.reshape(len(images), -1)
    # Eight bytes at once: images of one batch have one size, so padding tells none apart.
    words = F.pad(flat, (0, -flat.shape[1] % WORD)).view(torch.int64)  # [B, n_words]
    added, factors = _keys(words.shape[1], images.device)
    halves = []
    for key in range(2):
        mixed = (words + added[key]).mul_(factors[key])
        # Products reach high bits alone; shifting brings them back down.
        mixed ^= mixed >> 29
        halves.append(mixed.mul_(factors[1 - key]).bitwise_xor_(mixed >> 32).sum(1))
    return torch.stack(halves, dim=1)


def first_occurrence_rows(hashes: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each of P hashes [B, 2] stands first [P], and the number of each [B]; int64."""
    firsts, number_of = _firsts(*hashes[:, 0].unique(return_inverse=True))
    # One half first: sorting numbers is much quicker than sorting rows.
    if not torch.equal(hashes[firsts][number_of], hashes):  # half a hash alike: not seen yet
        return _firsts(*hashes.unique(dim=0, return_inverse=True))  # ten times slower
    return firsts, number_of


class DistinctImages:
    """The U different images of a batch; `row_of` [B] int64 tells which of them each image is."""

    # On a CPU: counting would make a GPU's host wait.

    def __init__(self, batch: ObservationBatch) -> None:
        assert batch.stored.images is not None, "asked for where images are shown"
        self._stored, self._found = batch.stored.images, batch.found
        if "images" not in self._found:
            self._found["images"] = first_occurrence_rows(image_hashes(self._stored))
        self._firsts, number_of = self._found["images"]  # of the P that are stored
        # Only those of this batch: other minibatches have other images.
        self._numbers, self.row_of = batch.picked(number_of).unique(return_inverse=True)

    @property
    def images(self) -> Tensor:
        """[U, C, H, W] uint8"""
        return self._stored[self._firsts[self._numbers]]

    def windows(self, side: int, stride: int) -> tuple[Tensor, Tensor] | None:
        """Return the Q different windows [Q, C, side, side], and which stands where.

        The places are [U, rows, columns] int64, `stride` pixels apart. None where the windows of
        all stored images have more pixels than the images.
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
    """Return the features [B, F] of a batch; `encode` maps images in [0, 1] to features."""
    if batch.is_cuda:
        return encode(to_float01(cast(Tensor, batch.images)))
    different = DistinctImages(batch)
    return F.embedding(different.row_of, encode(to_float01(different.images)))


def _windows(images: Tensor, side: int, stride: int) -> tuple[Tensor, Tensor] | None:
    # Pictures of cameras hardly repeat a window: a sample tells it without the whole work.
    if len(images) > SAMPLE and _windows(images[:SAMPLE], side, stride) is None:
        return None
    # Nothing is copied yet: unfolded windows are views of the images.
    places = images.unfold(2, side, stride).unfold(3, side, stride)
    n_images, n_channels, n_rows, n_columns = places.shape[:4]  # and [side, side]
    flat = places.permute(0, 2, 3, 1, 4, 5).reshape(-1, n_channels, side, side)
    firsts, number_of = first_occurrence_rows(image_hashes(flat))
    windows = flat[firsts]
    if windows.numel() > images.numel():
        return None
    return windows, number_of.view(n_images, n_rows, n_columns)


def _firsts(different: Tensor, number_of: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first of B rows that has each of P numbers [P], and the numbers [B]."""
    places = torch.arange(len(number_of), device=number_of.device)
    # amin with a start above all places: the first of each, in any order of the scatter.
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


FIRST_ROWS = 1024
INDEX_BYTES = 280  # of Python's, to find one row: a key of two numbers and its place


class ObservationCache:
    """A pure function of one image, computed once for each different image.

    Results are found by a hash of the image; a full table drops the least recently used one. Blocks
    have a fixed size: the same bits come out with and without the cache.

    Args:
        function: Map images [B, C, H, W] uint8 to results [B, ...], each row from its image alone.
        megabytes: Size of the table and its index; 0 remembers nothing.
        larger_blocks: Multiples of `block_size` for many images, where they give the same bits.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        megabytes: float,
        block_size: int,
        larger_blocks: Sequence[int] = (),
    ) -> None:
        self.function, self.block_size = function, block_size
        self.larger_blocks = sorted(larger_blocks, reverse=True)
        self._same_bits: dict[tuple[int, int], bool] = {}  # by block size and number of threads
        self.n_bytes = int(megabytes * 2**20)
        self.n_seen = self.n_hits = 0
        self._rows: OrderedDict[tuple[int, int], int] = OrderedDict()  # least recently used first
        self._table: Tensor | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """Return the results of images [N, C, H, W] uint8.  [N, ...]"""
        hashes = image_hashes(images)
        keys = [(first, second) for first, second in hashes.tolist()]
        self.n_seen += len(keys)
        if any(key not in self._rows for key in keys):
            return self._with_missing(images, hashes, keys)
        self.n_hits += len(keys)
        return self._remembered(keys)

    @property
    def hit_rate(self) -> float:
        return self.n_hits / max(self.n_seen, 1)

    def clear(self) -> None:
        self._rows.clear()

    def _remembered(self, keys: list[tuple[int, int]]) -> Tensor:
        assert self._table is not None, "a key in use has a row in the table"
        for key in keys:
            # Now the most recently used, so the last to leave.
            self._rows.move_to_end(key)
        rows = torch.tensor([self._rows[key] for key in keys], device=self._table.device)
        return self._table[rows]

    def _with_missing(self, images: Tensor, hashes: Tensor, keys: list[tuple[int, int]]) -> Tensor:
        firsts, number_of = first_occurrence_rows(hashes)
        distinct = [keys[first] for first in firsts.tolist()]
        missing = [n for n, key in enumerate(distinct) if key not in self._rows]
        self.n_hits += sum(key in self._rows for key in keys)
        computed = self._compute(images[firsts[missing]])
        results = computed.new_empty((len(distinct), *computed.shape[1:]))
        results[missing] = computed
        # Read before the new ones enter, which may push them out.
        known = [n for n, key in enumerate(distinct) if key in self._rows]
        if known:
            results[known] = self._remembered([distinct[n] for n in known])
        self._remember([distinct[n] for n in missing], computed)
        return results[number_of]

    def _compute(self, images: Tensor) -> Tensor:
        """Return the results of images, in blocks filled up with repetitions.  [B, ...]"""
        # Every block has one size: a product's last bits may depend on the number of rows.
        padding = -len(images) % self.block_size
        padded = torch.cat((images, images[-1:].expand(padding, *images.shape[1:])))
        blocks = padded.split(self._sizes_of_blocks(padded))
        return torch.cat([self.function(block) for block in blocks])[: len(images)]

    def _sizes_of_blocks(self, padded: Tensor) -> list[int]:
        sizes, n_left = [], len(padded)
        for size in self.larger_blocks:
            if n_left >= size and self._gives_same_bits(padded[:size]):
                sizes += n_left // size * [size]
                n_left %= size
        return sizes + n_left // self.block_size * [self.block_size]

    def _gives_same_bits(self, block: Tensor) -> bool:
        """Return whether a block gives the bits of small ones; the first of each size is tried."""
        # The order in which a product is summed may follow from its size and the threads.
        key = len(block), torch.get_num_threads()
        if key not in self._same_bits:
            small = [self.function(part) for part in block.split(self.block_size)]
            self._same_bits[key] = torch.equal(self.function(block), torch.cat(small))
        return self._same_bits[key]

    def _remember(self, keys: list[tuple[int, int]], results: Tensor) -> None:
        # The index counts, too: of small results it is the larger part.
        n_rows = self.n_bytes // (results[0].numel() * results.element_size() + INDEX_BYTES)
        for key, result in zip(keys[:n_rows], results, strict=False):
            row = len(self._rows)
            if row >= n_rows:
                _, row = self._rows.popitem(last=False)
            self._grow(row, n_rows, result)[row] = result
            self._rows[key] = row

    def _grow(self, row: int, n_rows: int, result: Tensor) -> Tensor:
        if self._table is None:
            self._table = result.new_empty((min(FIRST_ROWS, n_rows), *result.shape))
        elif row >= len(self._table):
            more = min(len(self._table), n_rows - len(self._table))
            self._table = torch.cat((self._table, self._table.new_empty((more, *result.shape))))
        return self._table
