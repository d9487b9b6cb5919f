"""Layers of a language model that reads one new token, as kernels in Triton.

The libraries' products of 16 rows reach a fifth of the memory's speed; here a layer is seven
kernels. Sums over all inputs or slots are in parts, or most of the device would have no work.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from models.language.kv_cache import Ring
from models.language.layers import FrozenLinear

# The fastest of some sixty sizes on an H200, in 16 environments.
N_ROWS = 16  # the fewest rows that tensor cores take
# Outputs and inputs that a program takes at a time, its warps, and loads on their way.
BLOCKS = {torch.float32: (32, 64, 4, 3), torch.bfloat16: (16, 128, 2, 4)}
MAX_PARTS = 8  # of the inputs of a product
KNOWN_ACTIVATIONS = ("none", "relu", "gelu")
SLOT_PARTS, TILE = 4, 1024  # of the ring; numbers of keys that a program reads at a time
HIDDEN = tl.constexpr(-1e30)  # a score without weight: infinities would give no number


@triton.jit
def product_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    rows,
    weight,
    bias,
    out,
    n_rows,
    n_in,
    n_out,
    per_part,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    part = tl.program_id(1)
    is_row, is_column = row[:, None] < n_rows, column[None, :] < n_out
    end = tl.minimum((part + 1) * per_part, n_in)
    total = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
    for first in tl.range(part * per_part, end, BLOCK_IN, num_stages=STAGES):
        at = first + tl.arange(0, BLOCK_IN)
        x = tl.load(rows + row[:, None] * n_in + at[None, :], is_row & (at[None, :] < end), 0.0)
        places = weight + column[None, :] * n_in + at[:, None]
        w = tl.load(places, is_column & (at[:, None] < end), 0.0)
        # Three products of the numbers' upper and lower halves are as exact as float32.
        total = tl.dot(x.to(w.dtype), w, total, input_precision="tf32x3")
    if HAS_BIAS and part == 0:
        total += tl.load(bias + column, column < n_out, 0.0).to(tl.float32)[None, :]
    if ACTIVATION == "relu":
        total = tl.maximum(total, 0.0)
    if ACTIVATION == "gelu":
        total = 0.5 * total * (1 + tl.erf(total * 0.7071067811865476))
    places = out + (part * n_rows + row[:, None]) * n_out + column[None, :]
    tl.store(places, total, is_row & is_column)


@triton.jit
def norm_kernel(  # type: ignore[no-untyped-def]
    parts,
    residual,
    weight,
    bias,
    out,
    width,
    epsilon,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
):
    row, n_rows = tl.program_id(0), tl.num_programs(0)
    at = tl.arange(0, PADDED)
    inside = at < width
    total = tl.load(residual + row * width + at, inside, 0.0)
    for part in range(PARTS):
        total += tl.load(parts + (part * n_rows + row) * width + at, inside, 0.0)
    centred = tl.where(inside, total - tl.sum(total, axis=0) / width, 0.0)
    deviation = tl.sqrt(tl.sum(centred * centred, axis=0) / width + epsilon)
    scaled = centred / deviation * tl.load(weight + at, inside, 0.0)
    tl.store(out + row * width + at, scaled + tl.load(bias + at, inside, 0.0), inside)


@triton.jit
def attend_kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    qkv,
    keys,
    values,
    positions,
    content_bias,
    position_bias,
    next_slot,
    ages,
    n_visible,
    mixed,
    weighed,
    n_envs,
    n_slots,
    per_part,
    stride,
    scale,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_RELATIVE: tl.constexpr,
):
    # One program for a part of each head h of each environment n, whose slots are row h*N + n.
    row, part, n_rows = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    head, env = row // n_envs, row % n_envs
    n_head = n_rows // n_envs
    at = tl.arange(0, PADDED)
    is_own = at < WIDTH
    own = qkv + env * 3 * n_head * WIDTH + head * WIDTH + at
    query = tl.load(own, is_own, 0.0)
    new_key = tl.load(own + n_head * WIDTH, is_own, 0.0)
    new_value = tl.load(own + 2 * n_head * WIDTH, is_own, 0.0)
    written = tl.load(next_slot) % n_slots
    in_sight = tl.minimum(tl.load(ages + env), n_visible)
    # 64 bits: a large ring has more than 2^31 numbers.
    ring = row.to(tl.int64) * stride
    if part == 0:
        tl.store(keys + ring + written * WIDTH + at, new_key, is_own)
        tl.store(values + ring + written * WIDTH + at, new_value, is_own)

    content = query * scale
    relative = content
    if IS_RELATIVE:
        content = (query + tl.load(content_bias + head * WIDTH + at, is_own, 0.0)) * scale
        relative = (query + tl.load(position_bias + head * WIDTH + at, is_own, 0.0)) * scale

    # Softmax in one pass: sums are scaled anew whenever a larger score turns up.
    largest = tl.full((), HIDDEN, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    summed = tl.zeros((PADDED,), tl.float32)
    end = tl.minimum((part + 1) * per_part, n_slots)
    for first in tl.range(part * per_part, end, BLOCK, num_stages=2):
        slots = first + tl.arange(0, BLOCK)
        is_slot, is_new = slots < end, slots == written
        inside = is_slot[:, None] & is_own[None, :]
        places = ring + slots[:, None] * WIDTH + at[None, :]
        # The new slot is written in this call, maybe after it is read here.
        k = tl.load(keys + places, inside & ~is_new[:, None], 0.0)
        v = tl.load(values + places, inside & ~is_new[:, None], 0.0)
        k = tl.where(is_new[:, None], new_key[None, :], k)
        v = tl.where(is_new[:, None], new_value[None, :], v)
        distance = (written - slots + n_slots) % n_slots
        # Older than the episode, or further back than may be seen.
        is_over = distance > in_sight
        scores = tl.sum(k * content[None, :], axis=1)
        if IS_RELATIVE:
            # Tokens of ended episodes keep the share of their distance and are not read.
            column = (head * n_slots + n_slots - 1 - distance[:, None]) * WIDTH + at[None, :]
            r = tl.load(positions + column, inside, 0.0)
            scores = tl.where(is_over, 0.0, scores) + tl.sum(r * relative[None, :], axis=1)
            scores = tl.where(is_slot, scores, HIDDEN)
        else:
            scores = tl.where(is_over | ~is_slot, HIDDEN, scores)
        larger = tl.maximum(largest, tl.max(scores, axis=0))
        shares = tl.exp(scores - larger)
        # exp of a number up to 0: it never overflows.
        shrunk = tl.exp(largest - larger)
        largest = larger
        total = total * shrunk + tl.sum(shares, axis=0)
        read = tl.where(is_over[:, None], 0.0, shares[:, None] * v)
        summed = summed * shrunk + tl.sum(read, axis=0)
    place = part * n_rows + row
    tl.store(mixed + place * WIDTH + at, summed, is_own)
    tl.store(weighed + 2 * place, largest)
    tl.store(weighed + 2 * place + 1, total)


@triton.jit
def join_kernel(  # type: ignore[no-untyped-def]
    mixed,
    weighed,
    out,
    n_envs,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PARTS: tl.constexpr,
):
    row, n_rows = tl.program_id(0), tl.num_programs(0)
    head, env = row // n_envs, row % n_envs
    at = tl.arange(0, PADDED)
    places = tl.arange(0, PARTS) * n_rows + row
    largest = tl.load(weighed + 2 * places)
    shares = tl.exp(largest - tl.max(largest, axis=0))
    total = tl.sum(shares * tl.load(weighed + 2 * places + 1), axis=0)
    parts = tl.load(mixed + places[:, None] * WIDTH + at[None, :], (at < WIDTH)[None, :], 0.0)
    place = out + (env * (n_rows // n_envs) + head) * WIDTH + at
    tl.store(place, tl.sum(shares[:, None] * parts, axis=0) / total, at < WIDTH)


def product(rows: Tensor, layer: FrozenLinear, n_parts: int = 1) -> Tensor:
    """Return the layer's output of rows [N, in] as parts of its sums over inputs.  [P, N, out]"""
    # The activation needs the whole sum: it comes with a single part alone.
    weight = layer.weight
    assert weight is not None, "packed weights are read on a CPU"
    (n_rows, n_in), n_out = rows.shape, len(weight)
    block_out, block_in, warps, stages = BLOCKS[weight.dtype]
    out = rows.new_empty(n_parts, n_rows, n_out)
    grid = triton.cdiv(n_out, block_out), n_parts, triton.cdiv(n_rows, N_ROWS)
    product_kernel[grid](
        rows,
        weight,
        weight if layer.bias is None else layer.bias,
        out,
        n_rows,
        n_in,
        n_out,
        triton.cdiv(n_in, n_parts * block_in) * block_in,
        HAS_BIAS=layer.bias is not None,
        ACTIVATION=layer.activation_name if n_parts == 1 else "none",
        ROWS=N_ROWS,
        BLOCK_OUT=block_out,
        BLOCK_IN=block_in,
        STAGES=stages,
        num_warps=warps,
    )
    is_done = n_parts > 1 or layer.activation_name in KNOWN_ACTIVATIONS
    return out if is_done else layer.activation(out)


def added(rows: Tensor, layer: FrozenLinear, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return norm(residual + layer(rows)) of rows [N, in] and [N, D].  [N, D]"""
    block_in = BLOCKS[layer.dtype][1]
    parts = product(rows, layer, min(MAX_PARTS, triton.cdiv(rows.shape[1], block_in)))
    n_rows, width = residual.shape
    out = torch.empty_like(residual)
    norm_kernel[(n_rows,)](
        parts,
        residual,
        norm.weight,
        norm.bias,
        out,
        width,
        norm.eps,
        PARTS=len(parts),
        PADDED=triton.next_power_of_2(width),
        num_warps=8,
    )
    return out


def attend(
    qkv: Tensor,
    n_head: int,
    ring: Ring,
    scale: float,
    relative: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """Write a new token of each environment into the ring and return what it reads.  [N, H*d]

    Args:
        qkv: Its queries, keys and values.  [N, 3*H*d] float32
        relative: What Transformer-XL's scores have beside the content's: u, v [H, 1, d], and the
            projections of all distances, farthest first [H, R, d].
    """
    n_envs, width = len(qkv), qkv.shape[1] // (3 * n_head)
    n_rows, n_slots, _ = ring.keys.shape
    mixed = qkv.new_empty(SLOT_PARTS, n_rows, width)
    weighed = qkv.new_empty(SLOT_PARTS, n_rows, 2)  # the largest score, and the sum of shares
    out = qkv.new_empty(n_envs, n_head * width)
    u, v, positions = relative if relative is not None else (qkv, qkv, qkv)
    padded = triton.next_power_of_2(width)
    block = max(TILE // padded, 16)
    attend_kernel[(n_rows, SLOT_PARTS)](
        qkv,
        ring.keys,
        ring.values,
        positions,
        u,
        v,
        ring.position,
        ring.ages,
        ring.n_visible,
        mixed,
        weighed,
        n_envs,
        n_slots,
        triton.cdiv(n_slots, SLOT_PARTS * block) * block,
        ring.keys.stride(0),
        scale,
        WIDTH=width,
        PADDED=padded,
        BLOCK=block,
        IS_RELATIVE=relative is not None,
        num_warps=2,
    )
    join_kernel[(n_rows,)](
        mixed, weighed, out, n_envs, WIDTH=width, PADDED=padded, PARTS=SLOT_PARTS, num_warps=1
    )
    return out
