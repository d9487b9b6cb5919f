"""One kernel for the attention of one new token to a ring of slots, in Triton.

It reads the products of a layer's first matrix, writes the new keys and values into their slots,
and reads every slot once: as separate operations these are some twenty kernels a layer.
"""

import triton
import triton.language as tl
from torch import Tensor

from models.language.kv_cache import CacheView

# Numbers of keys that a program reads at a time, and its warps: the fastest of sixteen pairs on an
# H200. Larger tiles spill registers; with the distances' projections there are more loads to hide.
TILE, WARPS, WARPS_RELATIVE = 4096, 4, 8
HIDDEN = tl.constexpr(-1e30)  # a score without weight: infinities would give no number


@triton.jit
def attend_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    qkv,
    keys,
    values,
    positions,
    content_bias,
    position_bias,
    order,
    ended,
    new,
    mixed,
    n_envs,
    n_slots,
    stride,
    scale,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_RELATIVE: tl.constexpr,
):
    # One program for each head h of each environment n; its slots are row h*N + n of the ring.
    row = tl.program_id(0)
    head, env = row // n_envs, row % n_envs
    n_head = tl.num_programs(0) // n_envs
    at = tl.arange(0, PADDED)
    is_own = at < WIDTH
    own = qkv + env * 3 * n_head * WIDTH + head * WIDTH + at
    query = tl.load(own, mask=is_own, other=0.0)
    new_key = tl.load(own + n_head * WIDTH, mask=is_own, other=0.0)
    new_value = tl.load(own + 2 * n_head * WIDTH, mask=is_own, other=0.0)
    written = tl.load(new)
    # 64 bits: a large ring has more than 2^31 numbers.
    ring = row.to(tl.int64) * stride
    tl.store(keys + ring + written * WIDTH + at, new_key, mask=is_own)
    tl.store(values + ring + written * WIDTH + at, new_value, mask=is_own)

    content = query * scale
    relative = content
    if IS_RELATIVE:
        u = tl.load(content_bias + head * WIDTH + at, mask=is_own, other=0.0)
        w = tl.load(position_bias + head * WIDTH + at, mask=is_own, other=0.0)
        content = (query + u) * scale
        relative = (query + w) * scale

    # Softmax in one pass: sums are scaled anew whenever a larger score turns up.
    largest = tl.full((), HIDDEN, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    summed = tl.zeros((PADDED,), tl.float32)
    for first in range(0, n_slots, BLOCK):
        slots = first + tl.arange(0, BLOCK)
        is_slot = slots < n_slots
        inside = is_slot[:, None] & is_own[None, :]
        places = ring + slots[:, None] * WIDTH + at[None, :]
        is_new = slots == written
        k = tl.load(keys + places, mask=inside & ~is_new[:, None], other=0.0)
        v = tl.load(values + places, mask=inside & ~is_new[:, None], other=0.0)
        k = tl.where(is_new[:, None], new_key[None, :], k)
        v = tl.where(is_new[:, None], new_value[None, :], v)
        is_over = tl.load(ended + env * n_slots + slots, mask=is_slot, other=1) != 0
        scores = tl.sum(k * content[None, :], axis=1)
        if IS_RELATIVE:
            # Tokens of ended episodes keep the share of their distance and are not read.
            older = tl.load(order + slots, mask=is_slot, other=0)
            column = positions + (head * n_slots + older[:, None]) * WIDTH + at[None, :]
            r = tl.load(column, mask=inside, other=0.0)
            scores = tl.where(is_over, 0.0, scores) + tl.sum(r * relative[None, :], axis=1)
            scores = tl.where(is_slot, scores, HIDDEN)
        else:
            scores = tl.where(is_over, HIDDEN, scores)
        larger = tl.maximum(largest, tl.max(scores, axis=0))
        shares = tl.exp(scores - larger)
        # exp of a number up to 0: it never overflows.
        shrunk = tl.exp(largest - larger)
        largest = larger
        total = total * shrunk + tl.sum(shares, axis=0)
        read = tl.where(is_over[:, None], 0.0, shares[:, None] * v)
        summed = summed * shrunk + tl.sum(read, axis=0)
    result = mixed + env * n_head * WIDTH + head * WIDTH + at
    tl.store(result, summed / total, mask=is_own)


def attend(
    qkv: Tensor,
    n_head: int,
    window: CacheView,
    scale: float,
    relative: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """Write a new token of each environment into the ring and return what it reads.  [N, H*d]

    Args:
        qkv: Its queries, keys and values.  [N, 3*H*d] float32
        window: From `ring_windows`.
        scale: Of the scores.
        relative: What Transformer-XL's scores have beside the content's: u, v [H, 1, d], and the
            projections of all distances, farthest first [H, R, d].
    """
    n_envs, width = len(qkv), qkv.shape[1] // (3 * n_head)
    (keys,), (values,) = window.keys, window.values
    mixed = qkv.new_empty(n_envs, n_head * width)
    u, v, positions = relative if relative is not None else (qkv, qkv, qkv)
    padded = triton.next_power_of_2(width)
    attend_kernel[(n_head * n_envs,)](
        qkv,
        keys,
        values,
        positions,
        u,
        v,
        window.order,
        window.ended,
        window.new,
        mixed,
        n_envs,
        keys.shape[1],
        keys.stride(0),
        scale,
        WIDTH=width,
        PADDED=padded,
        BLOCK=max(TILE // padded, 16),
        IS_RELATIVE=relative is not None,
        num_warps=WARPS if relative is None else WARPS_RELATIVE,
    )
    return mixed
