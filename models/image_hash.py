"""Telling images apart by a 128-bit hash of their bytes, many at once on any device."""

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

WORD = 8  # bytes
SEED = 20220524
TOLD_BY = 32  # bytes that hardly ever are alike in different rows


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
    firsts, number_of = _first_rows(*hashes[:, 0].unique(return_inverse=True))
    if not torch.equal(hashes[firsts][number_of], hashes):  # half a hash alike: not seen yet
        return _first_rows(*hashes.unique(dim=0, return_inverse=True))  # ten times slower
    return firsts, number_of


def first_rows(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each of P different numbers is first [P], and which each of B is [B]."""
    return _first_rows(*numbers.unique(return_inverse=True))


def first_equal_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same of rows [B, D] of floats, which are equal where all their bytes are.

    Rows that begin alike are mostly equal, so that their beginnings are looked at first.
    """
    bits = rows.contiguous().view(torch.uint8)  # [B, n]
    firsts, number_of = first_occurrences(image_hashes(bits[:, :TOLD_BY].contiguous()))
    words = rows.contiguous().view(torch.int32)
    if not torch.equal(words.index_select(0, firsts[number_of]), words):
        return first_occurrences(image_hashes(bits))
    return firsts, number_of


def _first_rows(different: Tensor, number_of: Tensor) -> tuple[Tensor, Tensor]:
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
