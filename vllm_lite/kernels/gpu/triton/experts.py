"""A mixture of experts by Triton: routing, sorting pairs by expert, and grouped GEMMs.

A program multiplies one tile of one expert's pairs; unused tiles of an order, whose size does
not depend on the routing, return at once. Sorting counts first, so that results are reproducible.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.triton import tuning
from vllm_lite.kernels.gpu.triton.elementwise import act_and_mul
from vllm_lite.kernels.gpu.triton.linear import tile_of
from vllm_lite.kernels.reference.experts import ExpertOrder, max_tiles

_SORT_BLOCK = 1024


@triton.jit
def route_kernel(
    weights_ptr,
    ids_ptr,
    logits_ptr,
    logits_stride,
    num_experts,
    top_k,
    IS_RENORMALIZED: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOICES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, EXPERTS)
    is_expert = experts < num_experts
    logits = tl.load(logits_ptr + row * logits_stride + experts, mask=is_expert, other=0.0)
    logits = tl.where(is_expert, logits.to(tl.float32), float("-inf"))
    shares = tl.exp(logits - tl.max(logits, axis=0))
    shares = shares / tl.sum(shares, axis=0)
    # Padding sorts below any expert, even one of probability zero.
    left = tl.where(is_expert, shares, -1.0)
    places = tl.arange(0, CHOICES)
    weights = tl.zeros([CHOICES], tl.float32)
    ids = tl.zeros([CHOICES], tl.int32)
    for choice in range(top_k):
        best = tl.max(left, axis=0)
        expert = tl.argmax(left, axis=0)
        weights = tl.where(places == choice, best, weights)
        ids = tl.where(places == choice, expert, ids)
        left = tl.where(experts == expert, -2.0, left)
    if IS_RENORMALIZED:
        weights = weights / tl.sum(weights, axis=0)
    is_choice = places < top_k
    tl.store(weights_ptr + row * top_k + places, weights, mask=is_choice)
    tl.store(ids_ptr + row * top_k + places, ids, mask=is_choice)


@triton.jit
def count_pairs_kernel(counts_ptr, ids_ptr, num_pairs, BLOCK: tl.constexpr):
    expert = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.int32)
    for first in range(0, num_pairs, BLOCK):
        places = first + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + places, mask=places < num_pairs, other=-1)
        total += (ids == expert).to(tl.int32)
    tl.store(counts_ptr + expert, tl.sum(total, axis=0))


@triton.jit
def place_pairs_kernel(
    pairs_ptr,
    expert_of_tile_ptr,
    counts_ptr,
    ids_ptr,
    num_pairs,
    num_experts,
    num_tiles,
    TILE: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    expert = tl.program_id(0)
    experts = tl.arange(0, EXPERTS)
    counts = tl.load(counts_ptr + experts, mask=experts < num_experts, other=0)
    tiles = (counts + TILE - 1) // TILE
    first_tile = tl.sum(tl.where(experts < expert, tiles, 0), axis=0)
    inside = tl.arange(0, BLOCK)
    if expert == num_experts:  # the program after the experts': what none of them uses
        for first in range(first_tile * TILE, num_tiles * TILE, BLOCK):
            places = first + inside
            is_place = places < num_tiles * TILE
            tl.store(pairs_ptr + places, places * 0 + num_pairs, mask=is_place)
        for first in range(first_tile, num_tiles, BLOCK):
            tl.store(
                expert_of_tile_ptr + first + inside, inside * 0 - 1, mask=first + inside < num_tiles
            )
        return
    own_tiles = tl.sum(tl.where(experts == expert, tiles, 0), axis=0)
    for first in range(0, own_tiles, BLOCK):
        places = first + inside
        tl.store(
            expert_of_tile_ptr + first_tile + places, places * 0 + expert, mask=places < own_tiles
        )
    place = first_tile * TILE
    for first in range(0, num_pairs, BLOCK):
        pairs = first + inside
        ids = tl.load(ids_ptr + pairs, mask=pairs < num_pairs, other=-1)
        is_own = ids == expert
        order = tl.cumsum(is_own.to(tl.int32), axis=0)
        tl.store(pairs_ptr + place + order - 1, pairs, mask=is_own)
        place += tl.sum(is_own.to(tl.int32), axis=0)
    rest = place + tl.arange(0, TILE)
    is_rest = rest < (first_tile + own_tiles) * TILE
    tl.store(pairs_ptr + rest, rest * 0 + num_pairs, mask=is_rest)


@triton.jit
def experts_linear_kernel(
    out_ptr,
    x_ptr,
    weight_ptr,
    pair_weights_ptr,
    pairs_ptr,
    expert_of_tile_ptr,
    num_tiles,
    num_pairs,
    pairs_per_row,
    num_outputs,
    num_inputs,
    x_stride,
    expert_stride,
    weight_stride,
    HAS_WEIGHTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row_tile, column_tile = tile_of(tl.program_id(0), num_tiles, tl.cdiv(num_outputs, BLOCK_N), 8)
    expert = tl.load(expert_of_tile_ptr + row_tile).to(tl.int64)
    if expert < 0:
        return
    pairs = tl.load(pairs_ptr + row_tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_pair = pairs < num_pairs
    outputs = (column_tile * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_output = outputs < num_outputs
    inside = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + (pairs // pairs_per_row)[:, None] * x_stride + inside[None, :]
    weight_ptrs = weight_ptr + expert * expert_stride
    weight_ptrs += outputs[None, :] * weight_stride + inside[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, num_inputs, BLOCK_K):
        is_input = first + inside < num_inputs
        x = tl.load(x_ptrs + first, mask=is_pair[:, None] & is_input[None, :], other=0.0)
        weight = tl.load(
            weight_ptrs + first, mask=is_input[:, None] & is_output[None, :], other=0.0
        )
        acc = tl.dot(x, weight, acc, input_precision="ieee")
    if HAS_WEIGHTS:
        acc *= tl.load(pair_weights_ptr + pairs, mask=is_pair, other=0.0)[:, None]
    place = pairs[:, None] * num_outputs + outputs[None, :]
    tl.store(out_ptr + place, acc, mask=is_pair[:, None] & is_output[None, :])


def route_topk(logits: Tensor, top_k: int, is_renormalized: bool = True) -> tuple[Tensor, Tensor]:
    num_rows, num_experts = logits.shape
    weights = logits.new_empty((num_rows, top_k), dtype=torch.float32)
    ids = logits.new_empty((num_rows, top_k), dtype=torch.int32)
    route_kernel[(num_rows,)](
        weights,
        ids,
        logits,
        logits.stride(0),
        num_experts,
        top_k,
        IS_RENORMALIZED=is_renormalized,
        EXPERTS=triton.next_power_of_2(num_experts),
        CHOICES=triton.next_power_of_2(top_k),
        num_warps=1,
    )
    return weights, ids


def order_by_expert(ids: Tensor, num_experts: int, tile_size: int) -> ExpertOrder:
    ids = ids.contiguous()
    num_pairs = ids.numel()
    tiles = max_tiles(num_pairs, num_experts, tile_size)
    counts = ids.new_empty(num_experts)
    pairs, expert_of_tile = ids.new_empty(tiles * tile_size), ids.new_empty(tiles)
    count_pairs_kernel[(num_experts,)](counts, ids, num_pairs, BLOCK=_SORT_BLOCK)
    place_pairs_kernel[(num_experts + 1,)](
        pairs,
        expert_of_tile,
        counts,
        ids,
        num_pairs,
        num_experts,
        tiles,
        TILE=tile_size,
        EXPERTS=triton.next_power_of_2(num_experts),
        BLOCK=_SORT_BLOCK,
    )
    return ExpertOrder(pairs, expert_of_tile, tile_size)


def experts_mlp(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    act: str = "silu",
    first_expert: int = 0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """As in `reference`; weighted results are rounded to x's type before they are summed."""
    num_tokens, top_k = ids.shape
    num_experts = len(gate_up)
    tile = tuning.product_tile("experts", triton.cdiv(num_tokens * top_k, num_experts), x.device)
    order = order_by_expert(ids - first_expert, num_experts, tile.block_m)
    hidden = _experts_linear(x, gate_up, order, tile, top_k, None)
    results = _experts_linear(act_and_mul(hidden, act), down, order, tile, 1, weights.contiguous())
    return results.view(num_tokens, top_k, -1).sum(1, dtype=out_dtype)


def _experts_linear(
    x: Tensor,
    weight: Tensor,
    order: ExpertOrder,
    tile: tuning.ProductTile,
    pairs_per_row: int,
    pair_weights: Tensor | None,
) -> Tensor:
    """Multiply each pair's row of x by its expert's weight [E, M, N] and its share: [T * K, M]."""
    num_outputs, num_inputs = weight.shape[1:]
    num_pairs = len(x) * pairs_per_row
    tiles = len(order.expert_of_tile)
    # Pairs of other ranks' experts are in no tile and stay zero.
    out = x.new_zeros((num_pairs, num_outputs))
    experts_linear_kernel[(tiles * triton.cdiv(num_outputs, tile.block_n),)](
        out,
        x,
        weight,
        out if pair_weights is None else pair_weights,
        order.pairs,
        order.expert_of_tile,
        tiles,
        num_pairs,
        pairs_per_row,
        num_outputs,
        num_inputs,
        x.stride(0),
        weight.stride(0),
        weight.stride(1),
        HAS_WEIGHTS=pair_weights is not None,
        **tile.launch(),
    )
    return out
