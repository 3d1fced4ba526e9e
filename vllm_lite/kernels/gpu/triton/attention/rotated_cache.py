"""Norms and rotation of heads and the write to the cache in one Triton kernel.

A program has a token's queries or keys of some heads.
Rounds where the separate operations round, and sums a head's squares in `norm`'s order.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.sizes import next_power_of_2
from vllm_lite.kernels.gpu.triton.chained import begin_next_and_wait, chained
from vllm_lite.kernels.gpu.triton.launch import launch
from vllm_lite.kernels.gpu.triton.norm import warps_for

_MOST_HEADS = 8  # of a program; a power of two


@triton.jit
def _normed_part(rows, weight_ptr, columns, mask, factors, HAS_NORM: tl.constexpr):
    """Some columns of heads at `rows` times their factors and weights, rounded, as float32."""
    x = tl.load(rows[:, None] + columns[None, :], mask=mask[None, :], other=0.0)
    wide = x.to(tl.float32)
    if HAS_NORM:
        weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)[None, :]
        wide = (wide * factors[:, None]).to(weight.dtype).to(tl.float32) * weight.to(tl.float32)
        wide = wide.to(x.dtype).to(tl.float32)
    return wide


@triton.jit
def _turn_heads(
    rows,
    to_rows,
    weight_ptr,
    cos,
    sin,
    size,
    eps,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    IS_NEOX: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Normalise heads at `rows` and rotate them by `cos` and `sin` [BLOCK_HALF].

    Columns beyond the rotated ones are stored if BLOCK_REST.
    """
    factors = tl.full(rows.shape, 1.0, tl.float32)
    if HAS_NORM:
        # All threads' loads precede the sum, and stores follow: heads may be their own target.
        columns = tl.arange(0, BLOCK)
        x = tl.load(rows[:, None] + columns[None, :], mask=(columns < size)[None, :], other=0.0)
        x = x.to(tl.float32)
        factors = tl.rsqrt(tl.sum(x * x, axis=1) / size + eps)
    pairs = tl.arange(0, BLOCK_HALF)
    mask = pairs < HALF
    if IS_NEOX:
        first_columns = pairs
        second_columns = pairs + HALF
    else:
        first_columns = 2 * pairs
        second_columns = 2 * pairs + 1
    first = _normed_part(rows, weight_ptr, first_columns, mask, factors, HAS_NORM)
    second = _normed_part(rows, weight_ptr, second_columns, mask, factors, HAS_NORM)
    if BLOCK_REST > 0:
        rest = 2 * HALF + tl.arange(0, BLOCK_REST)
        kept = _normed_part(rows, weight_ptr, rest, rest < size, factors, HAS_NORM)
        tl.store(to_rows[:, None] + rest[None, :], kept, mask=(rest < size)[None, :])
    firsts = to_rows[:, None] + first_columns[None, :]
    seconds = to_rows[:, None] + second_columns[None, :]
    tl.store(firsts, first * cos[None, :] - second * sin[None, :], mask=mask[None, :])
    tl.store(seconds, second * cos[None, :] + first * sin[None, :], mask=mask[None, :])


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
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    IS_NEOX: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS
    slot = tl.load(slot_mapping_ptr + token)
    position = tl.load(positions_ptr + token).to(tl.int64)
    pairs = tl.arange(0, BLOCK_HALF)
    turns = cos_sin_ptr + position * (2 * HALF) + pairs
    cos = tl.load(turns, mask=pairs < HALF, other=0.0)
    sin = tl.load(turns + HALF, mask=pairs < HALF, other=0.0)
    begin_next_and_wait(IS_CHAINED)
    heads = tl.arange(0, HEADS)
    rows = heads_ptr + token * token_stride + (head + heads) * head_stride
    if head < num_heads:
        _turn_heads(
            rows,
            rows,
            query_weight_ptr,
            cos,
            sin,
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
        to = ((head - num_heads + heads) * BLOCK_SIZE + slot % BLOCK_SIZE) * size
        columns = tl.arange(0, BLOCK)[None, :]
        mask = columns < size
        value_rows = rows + num_kv_heads * head_stride
        value = tl.load(value_rows[:, None] + columns, mask=mask)
        _turn_heads(
            rows,
            key_cache_ptr + block * key_block_stride + to,
            key_weight_ptr,
            cos,
            sin,
            size,
            eps,
            HALF,
            BLOCK,
            BLOCK_HALF,
            BLOCK_REST,
            IS_NEOX,
            HAS_NORM,
        )
        to_rows = value_cache_ptr + block * value_block_stride + to
        tl.store(to_rows[:, None] + columns, value, mask=mask)


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
    num_heads = num_all - 2 * num_kv_heads
    block = next_power_of_2(size)
    # Of both kinds the programs have whole ones: as many heads as divide both, a power of two.
    together = math.gcd(num_heads, num_kv_heads, _MOST_HEADS)
    programs = (num_heads + num_kv_heads) // together
    launch(
        rotate_and_cache_kernel,
        (num_tokens, programs),
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
        num_heads,
        num_kv_heads,
        size,
        eps,
        BLOCK_SIZE=block_size,
        HALF=rotated // 2,
        HEADS=together,
        BLOCK=block,
        BLOCK_HALF=next_power_of_2(rotated // 2),
        BLOCK_REST=next_power_of_2(size - rotated) if size > rotated else 0,
        IS_NEOX=is_neox,
        HAS_NORM=weights is not None,
        num_warps=warps_for(together * block),
        **chained(heads.device),
    )
