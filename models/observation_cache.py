"""Remembers the results of images already seen, exactly."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from models.images import first_occurrences, image_hashes

FIRST_ROWS = 1024
INDEX_BYTES = 280  # of Python's, to find one row: a key of two numbers and its place


class ObservationCache:
    """A pure function of one image, computed once for each different image.

    Results stand in one table on the device, found by a 128-bit hash of the image's bytes; when the
    table is full the least recently used result leaves. Images are computed in blocks of a fixed
    size, so that a result does not depend on which others were missing: the same bits come out
    with the cache on or off. Where many are missing, larger blocks take the place of many small
    ones, if they have been seen to give the same bits on this machine.

    Args:
        function: Map images [B, C, H, W] uint8 to results [B, ...], each row from its image alone.
        megabytes: Size of the table and its index; 0 remembers nothing.
        block_size: Images computed at a time.
        larger_blocks: Multiples of it to be tried, where that is quicker than many small ones.
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
        """Share of the images so far whose result was remembered."""
        return self.n_hits / max(self.n_seen, 1)

    def clear(self) -> None:
        """Forget all results; the table stays for the next ones."""
        self._rows.clear()

    def _remembered(self, keys: list[tuple[int, int]]) -> Tensor:
        assert self._table is not None, "a key in use has a row in the table"
        for key in keys:
            self._rows.move_to_end(key)
        rows = torch.tensor([self._rows[key] for key in keys], device=self._table.device)
        return self._table[rows]

    def _with_missing(self, images: Tensor, hashes: Tensor, keys: list[tuple[int, int]]) -> Tensor:
        """Compute the missing results, each once, and return all of them."""
        firsts, number_of = first_occurrences(hashes)
        distinct = [keys[first] for first in firsts.tolist()]
        missing = [n for n, key in enumerate(distinct) if key not in self._rows]
        self.n_hits += sum(key in self._rows for key in keys)
        computed = self._compute(images[firsts[missing]])
        results = computed.new_empty((len(distinct), *computed.shape[1:]))
        results[missing] = computed
        known = [n for n, key in enumerate(distinct) if key in self._rows]
        if known:
            results[known] = self._remembered([distinct[n] for n in known])
        self._remember([distinct[n] for n in missing], computed)
        return results[number_of]

    def _compute(self, images: Tensor) -> Tensor:
        """Return the results of images, in blocks filled up with repetitions.  [B, ...]"""
        padding = -len(images) % self.block_size
        padded = torch.cat((images, images[-1:].expand(padding, *images.shape[1:])))
        blocks = padded.split(self._sizes_of_blocks(padded))
        return torch.cat([self.function(block) for block in blocks])[: len(images)]

    def _sizes_of_blocks(self, padded: Tensor) -> list[int]:
        """Return how images are cut up: into larger blocks first, if these give the same bits."""
        sizes, n_left = [], len(padded)
        for size in self.larger_blocks:
            if n_left >= size and self._gives_same_bits(padded[:size]):
                sizes += n_left // size * [size]
                n_left %= size
        return sizes + n_left // self.block_size * [self.block_size]

    def _gives_same_bits(self, block: Tensor) -> bool:
        """Return whether a block gives what small ones do; the first of each size is tried.

        The order in which a product is summed may follow from its size and the threads.
        """
        key = len(block), torch.get_num_threads()
        if key not in self._same_bits:
            small = [self.function(part) for part in block.split(self.block_size)]
            self._same_bits[key] = torch.equal(self.function(block), torch.cat(small))
        return self._same_bits[key]

    def _remember(self, keys: list[tuple[int, int]], results: Tensor) -> None:
        n_rows = self.n_bytes // (results[0].numel() * results.element_size() + INDEX_BYTES)
        for key, result in zip(keys[:n_rows], results, strict=False):
            row = len(self._rows)
            if row >= n_rows:
                _, row = self._rows.popitem(last=False)
            self._grow(row, n_rows, result)[row] = result
            self._rows[key] = row

    def _grow(self, row: int, n_rows: int, result: Tensor) -> Tensor:
        """Return the table, doubled if it has no such row yet."""
        if self._table is None:
            self._table = result.new_empty((min(FIRST_ROWS, n_rows), *result.shape))
        elif row >= len(self._table):
            more = min(len(self._table), n_rows - len(self._table))
            self._table = torch.cat((self._table, self._table.new_empty((more, *result.shape))))
        return self._table
