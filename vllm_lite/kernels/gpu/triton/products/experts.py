"""A mixture of experts by Triton: routing, sorting pairs by expert, and grouped GEMMs.

A program multiplies one tile of one expert's pairs; unused tiles of an order, whose size does
not depend on the routing, return at once. Sorting counts first, so that results are reproducible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.codebook_weight import PackedWeight
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.sizes import cdiv, next_power_of_2
from vllm_lite.kernels.gpu.triton.elementwise import act_and_mul, activation
from vllm_lite.kernels.gpu.triton.launch import launch
from vllm_lite.kernels.gpu.triton.products.linear import tile_of
from vllm_lite.kernels.gpu.triton.products.quantized_experts import quantized_experts_linear
from vllm_lite.kernels.gpu.triton.quantize import quantize_rows
from vllm_lite.kernels.reference.experts import (
    SWIGLU,
    ExpertForm,
    ExpertOrder,
    ExpertStack,
    Routing,
    max_tiles,
)
from vllm_lite.kernels.reference.rounding import ActivationRounding, round_activations
from vllm_lite.kernels.stacked_weights import QuantizedStack, stack_weights

_SORT_BLOCK = 1024
Stack = ExpertStack | QuantizedStack


# What a choice skips, and what it takes last: NaN and experts of other groups.
_TAKEN = tl.constexpr(float("-inf"))
_LAST = tl.constexpr(-3.0e38)


@triton.jit
def route_kernel(
    weights_ptr,
    ids_ptr,
    logits_ptr,
    bias_ptr,
    factors_ptr,
    logits_stride,
    num_experts,
    top_k,
    top_groups,
    group_size,
    epsilon,
    scale,
    tolerance,
    SCORES: tl.constexpr,
    IS_RENORMALIZED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    GROUPS: tl.constexpr,
    BEST_OF_GROUP: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOICES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, EXPERTS)
    is_expert = experts < num_experts
    logits = tl.load(logits_ptr + row * logits_stride + experts, mask=is_expert, other=0.0)
    scores = tl.where(is_expert, logits.to(tl.float32), float("-inf"))
    if SCORES == "softmax":
        scores = tl.exp(scores - tl.max(scores, axis=0))
        scores = scores / tl.sum(scores, axis=0)
    elif SCORES == "sigmoid":
        scores = 1.0 / (1.0 + tl.exp(-scores))
    left = scores
    if HAS_BIAS:
        left += tl.load(bias_ptr + experts, mask=is_expert, other=0.0)
    left = tl.where(left >= _LAST, left, _LAST)
    if GROUPS > 1:
        group_of = experts // group_size
        groups = tl.arange(0, GROUPS)
        is_member = (group_of[None, :] == groups[:, None]) & is_expert[None, :]
        members = tl.where(is_member, left[None, :], _TAKEN)
        totals = tl.max(members, axis=1)
        if BEST_OF_GROUP == 2:
            first = tl.argmax(members, axis=1)
            others = tl.where(experts[None, :] == first[:, None], _TAKEN, members)
            totals += tl.max(others, axis=1)
        is_chosen = experts < 0
        for _ in range(top_groups):
            best_group = tl.argmax(totals, axis=0)
            is_chosen = is_chosen | (group_of == best_group)
            totals = tl.where(groups == best_group, _TAKEN, totals)
        left = tl.where(is_chosen, left, _LAST)
    left = tl.where(is_expert, left, _TAKEN)
    places = tl.arange(0, CHOICES)
    weights = tl.zeros([CHOICES], tl.float32)
    ids = tl.zeros([CHOICES], tl.int32)
    for choice in range(top_k):
        best = tl.max(left, axis=0)
        expert = tl.argmax(left, axis=0)
        is_best = experts == expert
        if SCORES == "sparsemixer":
            size = tl.maximum(tl.abs(left), best)
            is_far = (left == _TAKEN) | ((best - left) / size > tolerance)
            weight = 1.0 / tl.sum(tl.where(is_far, 0.0, tl.exp(left - best)), axis=0)
        else:
            weight = tl.sum(tl.where(is_best, scores, 0.0), axis=0)
        weights = tl.where(places == choice, weight, weights)
        ids = tl.where(places == choice, expert, ids)
        left = tl.where(is_best, _TAKEN, left)
    if IS_RENORMALIZED:
        weights = weights / (tl.sum(weights, axis=0) + epsilon)
    weights = weights * scale
    is_choice = places < top_k
    if HAS_FACTORS:
        weights *= tl.load(factors_ptr + ids, mask=is_choice, other=0.0)
    tl.store(weights_ptr + row * top_k + places, weights, mask=is_choice)
    tl.store(ids_ptr + row * top_k + places, ids, mask=is_choice)


@triton.jit(do_not_specialize=["num_pairs"])
def count_pairs_kernel(counts_ptr, ids_ptr, num_pairs, BLOCK: tl.constexpr):
    expert = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.int32)
    for first in range(0, num_pairs, BLOCK):
        places = first + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + places, mask=places < num_pairs, other=-1)
        total += (ids == expert).to(tl.int32)
    tl.store(counts_ptr + expert, tl.sum(total, axis=0))


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
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


@triton.jit(do_not_specialize=["num_tiles", "num_pairs"])
def experts_linear_kernel(
    out_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
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
    HAS_BIAS: tl.constexpr,
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
    if HAS_BIAS:
        acc += tl.load(bias_ptr + expert * num_outputs + outputs, mask=is_output, other=0.0)[None]
    if HAS_WEIGHTS:
        acc *= tl.load(pair_weights_ptr + pairs, mask=is_pair, other=0.0)[:, None]
    place = pairs[:, None] * num_outputs + outputs[None, :]
    tl.store(out_ptr + place, acc, mask=is_pair[:, None] & is_output[None, :])


def route_topk(
    logits: Tensor, routing: Routing, bias: Tensor | None = None, factors: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    num_rows, num_experts = logits.shape
    weights = logits.new_empty((num_rows, routing.top_k), dtype=torch.float32)
    ids = logits.new_empty((num_rows, routing.top_k), dtype=torch.int32)
    has_groups = routing.top_groups < routing.num_groups
    launch(
        route_kernel,
        (num_rows,),
        weights,
        ids,
        logits,
        logits if bias is None else bias,
        logits if factors is None else factors,
        logits.stride(0),
        num_experts,
        routing.top_k,
        routing.top_groups,
        num_experts // routing.num_groups,
        float(routing.epsilon),
        float(routing.scale),
        float(routing.tolerance),
        SCORES=routing.scores,
        IS_RENORMALIZED=routing.is_renormalized,
        HAS_BIAS=bias is not None,
        HAS_FACTORS=factors is not None,
        GROUPS=next_power_of_2(routing.num_groups) if has_groups else 1,
        BEST_OF_GROUP=routing.best_of_group,
        EXPERTS=next_power_of_2(num_experts),
        CHOICES=next_power_of_2(routing.top_k),
        num_warps=1,
    )
    return weights, ids


def order_by_expert(ids: Tensor, num_experts: int, tile_size: int) -> ExpertOrder:
    ids = ids.contiguous()
    num_pairs = ids.numel()
    tiles = max_tiles(num_pairs, num_experts, tile_size)
    counts = ids.new_empty(num_experts)
    pairs, expert_of_tile = ids.new_empty(tiles * tile_size), ids.new_empty(tiles)
    launch(count_pairs_kernel, (num_experts,), counts, ids, num_pairs, BLOCK=_SORT_BLOCK)
    launch(
        place_pairs_kernel,
        (num_experts + 1,),
        pairs,
        expert_of_tile,
        counts,
        ids,
        num_pairs,
        num_experts,
        tiles,
        TILE=tile_size,
        EXPERTS=next_power_of_2(num_experts),
        BLOCK=_SORT_BLOCK,
    )
    return ExpertOrder(pairs, expert_of_tile, tile_size)


def pack_experts(
    weights: Sequence[PackedWeight | tuple[PackedWeight, ...]],
    biases: Sequence[Tensor] | None = None,
    roundings: Sequence[ActivationRounding | None] = (),
) -> QuantizedStack:
    parts = [weight if isinstance(weight, tuple) else (weight,) for weight in weights]
    return stack_weights(parts, biases, roundings)


def experts_mlp(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Stack,
    down: Stack,
    form: ExpertForm = SWIGLU,
    first_expert: int = 0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """As in `reference`; weighted results are rounded to x's type before they are summed.

    So are rows that a stack rounds before they are multiplied: as the weights' values are.
    """
    num_tokens, top_k = ids.shape
    num_experts = gate_up.num_experts
    kind = "experts" if isinstance(gate_up, ExpertStack) else "int4_groups"
    tile = tuning.product_tile(kind, cdiv(num_tokens * top_k, num_experts), x.device)
    local = ids - first_expert
    order = order_by_expert(local, num_experts, tile.block_m)
    shares: Tensor | None = weights.contiguous()
    experts, pairs_per_row = local.flatten(), top_k
    if form.scales_inputs:
        x, shares = (x.unsqueeze(1) * weights.unsqueeze(2)).to(x.dtype).flatten(0, 1), None
        pairs_per_row = 1
    elif gate_up.rounding is not None and gate_up.rounding.scale is not None:  # each pair's own
        x, pairs_per_row = x.unsqueeze(1).expand(-1, top_k, -1).flatten(0, 1), 1
    rows = _rounded(x, gate_up, experts[::pairs_per_row])
    made = _experts_linear(rows, gate_up, order, tile, pairs_per_row, None)
    hidden = _rounded(_hidden(made, down, form), down, experts)
    results = _experts_linear(hidden, down, order, tile, 1, shares)
    return results.view(num_tokens, top_k, -1).sum(1, dtype=out_dtype)


def _rounded(x: Tensor, stack: Stack, experts: Tensor) -> Tensor:
    """Rows that experts [T] read, in x's type; those of other ranks' experts may be anything."""
    if stack.rounding is None:
        return x
    held = experts.clamp(0, stack.num_experts - 1)
    return round_activations(x, stack.rounding.of_experts(held), quantize_rows).to(x.dtype)


def _hidden(made: Tensor, down: Stack, form: ExpertForm) -> Tensor:
    size = down.num_inputs
    if made.shape[1] == size:
        return activation(made, form.act, out=made)
    if form.limit != math.inf or form.shift != 0.0:
        made[:, :size].clamp_(max=form.limit)
        made[:, size:].clamp_(-form.limit, form.limit).add_(form.shift)
    return act_and_mul(made, form.act)


def _experts_linear(
    x: Tensor,
    stack: Stack,
    order: ExpertOrder,
    tile: tuning.ProductTile,
    pairs_per_row: int,
    pair_weights: Tensor | None,
) -> Tensor:
    """Multiply each pair's row of x by its expert's weight [E, M, N] and its share: [T * K, M]."""
    num_outputs, num_inputs = stack.num_outputs, stack.num_inputs
    num_pairs = len(x) * pairs_per_row
    tiles = len(order.expert_of_tile)
    # Pairs of other ranks' experts are in no tile and stay zero.
    out = x.new_zeros((num_pairs, num_outputs))
    if isinstance(stack, QuantizedStack):
        quantized_experts_linear(out, x, stack, order, tile, pairs_per_row, pair_weights)
        return out
    weight = stack.weight
    launch(
        experts_linear_kernel,
        (tiles * cdiv(num_outputs, tile.block_n),),
        out,
        x,
        weight,
        out if stack.bias is None else stack.bias,
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
        HAS_BIAS=stack.bias is not None,
        HAS_WEIGHTS=pair_weights is not None,
        **tile.launch(),
    )
    return out
