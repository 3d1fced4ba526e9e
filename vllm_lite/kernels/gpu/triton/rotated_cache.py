"""Norms and rotation of heads and the write to the cache in one Triton kernel: one program a head.

Rounds where the separate operations round, and sums a head's squares in `norm`'s order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.triton.chained import chained, wait_for_inputs
from vllm_lite.kernels.gpu.triton.norm import warps_for


@triton.jit
def normed_part(from_ptr, weight_ptr, columns, mask, factor, HAS_NORM: tl.constexpr):
    """Some columns of a head times `factor` and their weights, rounded, as float32."""
    x = tl.load(from_ptr + columns, mask=mask, other=0.0)
    wide = x.to(tl.float32)
    if HAS_NORM:
        weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
        wide = (wide * factor).to(weight.dtype).to(tl.float32) * weight.to(tl.float32)
        wide = wide.to(x.dtype).to(tl.float32)
    return wide


@triton.jit
def turn_head(
    from_ptr,
    to_ptr,
    weight_ptr,
    turn_ptr,
    size,
    eps,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    IS_NEOX: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Normalise a head and rotate it by cosines and sines at turn_ptr.

    Columns beyond the rotated ones are stored if BLOCK_REST.
    """
    factor = 1.0
    if HAS_NORM:
        # All threads' loads precede the sum, and stores follow: a head may be its own target.
        columns = tl.arange(0, BLOCK)
        x = tl.load(from_ptr + columns, mask=columns < size, other=0.0).to(tl.float32)
        factor = tl.rsqrt(tl.sum(x * x, axis=0) / size + eps)
    pairs = tl.arange(0, BLOCK_HALF)
    mask = pairs < HALF
    cos = tl.load(turn_ptr + pairs, mask=mask, other=0.0)
    sin = tl.load(turn_ptr + HALF + pairs, mask=mask, other=0.0)
    if IS_NEOX:
        first_columns = pairs
        second_columns = pairs + HALF
    else:
        first_columns = 2 * pairs
        second_columns = 2 * pairs + 1
    first = normed_part(from_ptr, weight_ptr, first_columns, mask, factor, HAS_NORM)
    second = normed_part(from_ptr, weight_ptr, second_columns, mask, factor, HAS_NORM)
    if BLOCK_REST > 0:
        rest = 2 * HALF + tl.arange(0, BLOCK_REST)
        kept = normed_part(from_ptr, weight_ptr, rest, rest < size, factor, HAS_NORM)
        tl.store(to_ptr + rest, kept, mask=rest < size)
    tl.store(to_ptr + first_columns, first * cos - second * sin, mask=mask)
    tl.store(to_ptr + second_columns, second * cos + first * sin, mask=mask)


@triton.jit
def rotate_and_cache_kernel(
    heads_ptr,
    positions_ptr,
    cos_sin_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    query_weight_ptr,
    key_weight_ptr,
    token_stride,
    head_stride,
    key_block_stride,
    value_block_stride,
    num_heads,
    num_kv_heads,
    size,
    eps,
    BLOCK_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    IS_NEOX: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    wait_for_inputs(IS_CHAINED)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slot_mapping_ptr + token)
    position = tl.load(positions_ptr + token).to(tl.int64)
    turn_ptr = cos_sin_ptr + position * (2 * HALF)
    from_ptr = heads_ptr + token * token_stride + head * head_stride
    if head < num_heads:
        turn_head(
            from_ptr,
            from_ptr,
            query_weight_ptr,
            turn_ptr,
            size,
            eps,
            HALF,
            BLOCK,
            BLOCK_HALF,
            BLOCK_REST if HAS_NORM else 0,
            IS_NEOX,
            HAS_NORM,
        )
    elif slot >= 0:
        block = slot // BLOCK_SIZE
        to = ((head - num_heads) * BLOCK_SIZE + slot % BLOCK_SIZE) * size
        columns = tl.arange(0, BLOCK)
        mask = columns < size
        value = tl.load(from_ptr + num_kv_heads * head_stride + columns, mask=mask)
        turn_head(
            from_ptr,
            key_cache_ptr + block * key_block_stride + to,
            key_weight_ptr,
            turn_ptr,
            size,
            eps,
            HALF,
            BLOCK,
            BLOCK_HALF,
            BLOCK_REST,
            IS_NEOX,
            HAS_NORM,
        )
        tl.store(value_cache_ptr + block * value_block_stride + to + columns, value, mask=mask)


def rotate_and_cache(
    heads: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    is_neox: bool,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    weights: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> None:
    num_tokens, num_all, size = heads.shape
    num_kv_heads, block_size = key_cache.shape[1:3]
    rotated = cos_sin_cache.shape[1]
    block = triton.next_power_of_2(size)
    rotate_and_cache_kernel[(num_tokens, num_all - num_kv_heads)](
        heads,
        positions,
        cos_sin_cache,
        key_cache,
        value_cache,
        slot_mapping,
        *(weights or (heads, heads)),
        heads.stride(0),
        heads.stride(1),
        key_cache.stride(0),
        value_cache.stride(0),
        num_all - 2 * num_kv_heads,
        num_kv_heads,
        size,
        eps,
        BLOCK_SIZE=block_size,
        HALF=rotated // 2,
        BLOCK=block,
        BLOCK_HALF=triton.next_power_of_2(rotated // 2),
        BLOCK_REST=triton.next_power_of_2(size - rotated) if size > rotated else 0,
        IS_NEOX=is_neox,
        HAS_NORM=weights is not None,
        num_warps=warps_for(block),
        **chained(heads.device),
    )
