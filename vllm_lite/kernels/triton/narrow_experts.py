"""A mixture of experts by Triton whose weights are narrow: codes of one byte, or grouped integers.

As in `experts`, a program multiplies one tile of one expert's pairs.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.grouped_weight import CHUNK, GroupedWeight
from vllm_lite.kernels.reference_experts import ExpertOrder
from vllm_lite.kernels.triton import device, tuning
from vllm_lite.kernels.triton.activation import act_and_mul
from vllm_lite.kernels.triton.experts import order_by_expert
from vllm_lite.kernels.triton.grouped_linear import half_values, kind_of, planes_of
from vllm_lite.kernels.triton.numbers import INT8, as_stored, format_of
from vllm_lite.kernels.triton.quantize import quantize_rows
from vllm_lite.kernels.triton.quantized_activation import act_and_mul_quantized
from vllm_lite.kernels.triton.scaled_linear import as_operand
from vllm_lite.kernels.triton.split_sums import tile_of

_CHUNK = tl.constexpr(CHUNK)
_HALF = tl.constexpr(CHUNK // 2)


@triton.jit
def _store_pairs(
    out_ptr, acc, pair_weights_ptr, pairs, is_pair, outputs, num_outputs, HAS_WEIGHTS: tl.constexpr
):
    if HAS_WEIGHTS:
        acc *= tl.load(pair_weights_ptr + pairs, mask=is_pair, other=0.0)[:, None]
    place = pairs[:, None] * num_outputs + outputs[None, :]
    tl.store(out_ptr + place, acc, mask=is_pair[:, None] & (outputs < num_outputs)[None, :])


@triton.jit
def scaled_experts_kernel(
    out_ptr,
    x_ptr,
    x_scales_ptr,
    weight_ptr,
    weight_scales_ptr,
    pair_weights_ptr,
    pairs_ptr,
    expert_of_tile_ptr,
    num_tiles,
    num_pairs,
    pairs_per_row,
    num_outputs,
    num_inputs,
    FORMAT: tl.constexpr,
    IS_NATIVE: tl.constexpr,
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
    rows = pairs // pairs_per_row
    columns = expert * num_outputs + outputs
    x_ptrs = x_ptr + rows[:, None] * num_inputs + inside[None, :]
    weight_ptrs = weight_ptr + columns[None, :] * num_inputs + inside[:, None]
    if FORMAT == INT8:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, num_inputs, BLOCK_K):
        is_input = first + inside < num_inputs
        x = tl.load(x_ptrs + first, mask=is_pair[:, None] & is_input[None, :], other=0)
        weight = tl.load(weight_ptrs + first, mask=is_input[:, None] & is_output[None, :], other=0)
        x = as_operand(x, FORMAT, IS_NATIVE)
        weight = as_operand(weight, FORMAT, IS_NATIVE)
        if FORMAT == INT8:
            acc = tl.dot(x, weight, acc, out_dtype=tl.int32)
        else:
            acc = tl.dot(x, weight, acc, max_num_imprecise_acc=BLOCK_K)
    x_scale = tl.load(x_scales_ptr + rows, mask=is_pair, other=0.0)
    weight_scale = tl.load(weight_scales_ptr + columns, mask=is_output, other=0.0)
    total = acc.to(tl.float32) * x_scale[:, None] * weight_scale[None, :]
    _store_pairs(
        out_ptr, total, pair_weights_ptr, pairs, is_pair, outputs, num_outputs, HAS_WEIGHTS
    )


@triton.jit
def grouped_experts_kernel(
    out_ptr,
    x_ptr,
    codes_ptr,
    high_ptr,
    scales_ptr,
    minimums_ptr,
    zeros_ptr,
    super_scales_ptr,
    super_minimums_ptr,
    pair_weights_ptr,
    pairs_ptr,
    expert_of_tile_ptr,
    num_tiles,
    num_pairs,
    pairs_per_row,
    num_outputs,
    num_all_outputs,
    num_inputs,
    x_stride,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    IS_SUPER: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row_tile, column_tile = tile_of(tl.program_id(0), num_tiles, tl.cdiv(num_outputs, BLOCK_N), 8)
    expert = tl.load(expert_of_tile_ptr + row_tile).to(tl.int64)
    if expert < 0:
        return
    pairs = tl.load(pairs_ptr + row_tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_pair = pairs < num_pairs
    outputs = (column_tile * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_output = outputs < num_outputs
    columns = expert * num_outputs + outputs
    x_rows = x_ptr + (pairs // pairs_per_row)[:, None] * x_stride
    inside = tl.arange(0, _HALF)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for chunk in range(tl.cdiv(num_inputs, _CHUNK)):
        for half in tl.static_range(2):
            inputs = chunk * _CHUNK + half * _HALF + inside
            mask = is_pair[:, None] & (inputs < num_inputs)[None, :]
            x = tl.load(x_rows + inputs[None, :], mask=mask, other=0.0)
            values = half_values(
                codes_ptr,
                high_ptr,
                scales_ptr,
                minimums_ptr,
                zeros_ptr,
                super_scales_ptr,
                super_minimums_ptr,
                chunk,
                half,
                columns,
                is_output,
                num_inputs,
                num_all_outputs,
                BITS,
                OFFSET,
                GROUP,
                HAS_MINIMUMS,
                HAS_ZEROS,
                IS_SUPER,
            )
            acc = tl.dot(x, values.to(x.dtype), acc, input_precision="ieee")
    _store_pairs(out_ptr, acc, pair_weights_ptr, pairs, is_pair, outputs, num_outputs, HAS_WEIGHTS)


def scaled_experts_mlp(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_scales: Tensor,
    down: Tensor,
    down_scales: Tensor,
) -> Tensor:
    num_tokens, top_k = ids.shape
    number = gate_up.dtype
    tile = _tile("experts", ids, len(gate_up))
    order = order_by_expert(ids, len(gate_up), tile.block_m)
    rows = quantize_rows(x, number)
    hidden = x.new_empty((ids.numel(), gate_up.shape[1]))
    _scaled_products(hidden, rows, (gate_up, gate_up_scales), order, tile, top_k, None)
    results = x.new_empty((ids.numel(), down.shape[1]))
    rows = act_and_mul_quantized(hidden, "silu", number)
    _scaled_products(results, rows, (down, down_scales), order, tile, 1, weights.contiguous())
    return results.view(num_tokens, top_k, -1).sum(1)


def _scaled_products(
    out: Tensor,
    rows: tuple[Tensor, Tensor],
    weight: tuple[Tensor, Tensor],
    order: ExpertOrder,
    tile: tuning.ProductTile,
    pairs_per_row: int,
    pair_weights: Tensor | None,
) -> None:
    """out [T * K, M] = each pair's product of a row of codes and its expert's, times its weight."""
    tiles, (num_pairs, num_outputs) = len(order.expert_of_tile), out.shape
    scaled_experts_kernel[(tiles * triton.cdiv(num_outputs, tile.block_n),)](
        out,
        as_stored(rows[0]),
        rows[1],
        as_stored(weight[0]),
        weight[1],
        out if pair_weights is None else pair_weights,
        order.pairs,
        order.expert_of_tile,
        tiles,
        num_pairs,
        pairs_per_row,
        num_outputs,
        rows[0].shape[1],
        FORMAT=format_of(rows[0].dtype),
        IS_NATIVE=device.has_float8(out.device),
        HAS_WEIGHTS=pair_weights is not None,
        **tile.launch(),
    )


def grouped_experts_mlp(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: GroupedWeight, down: GroupedWeight
) -> Tensor:
    num_tokens, top_k = ids.shape
    num_experts = gate_up.num_outputs // (2 * down.num_inputs)
    tile = _tile(f"int{gate_up.bits}_groups", ids, num_experts)
    order = order_by_expert(ids, num_experts, tile.block_m)
    hidden = x.new_empty((ids.numel(), 2 * down.num_inputs))
    _grouped_products(hidden, x, gate_up, order, tile, top_k, None)
    results = x.new_empty((ids.numel(), down.num_outputs // num_experts))
    inner = act_and_mul(hidden, "silu")
    _grouped_products(results, inner, down, order, tile, 1, weights.contiguous())
    return results.view(num_tokens, top_k, -1).sum(1)


def _grouped_products(
    out: Tensor,
    x: Tensor,
    weight: GroupedWeight,
    order: ExpertOrder,
    tile: tuning.ProductTile,
    pairs_per_row: int,
    pair_weights: Tensor | None,
) -> None:
    """out [T * K, M] = each pair's product of a row of x and its expert's, times its weight."""
    tiles, (num_pairs, num_outputs) = len(order.expert_of_tile), out.shape
    launch: dict[str, Any] = tile.launch()
    del launch["BLOCK_K"]  # a chunk
    grouped_experts_kernel[(tiles * triton.cdiv(num_outputs, tile.block_n),)](
        out,
        x,
        *planes_of(weight),
        out if pair_weights is None else pair_weights,
        order.pairs,
        order.expert_of_tile,
        tiles,
        num_pairs,
        pairs_per_row,
        num_outputs,
        weight.num_outputs,
        weight.num_inputs,
        x.stride(0),
        **kind_of(weight),
        HAS_WEIGHTS=pair_weights is not None,
        **launch,
    )


def _tile(kind: str, ids: Tensor, num_experts: int) -> tuning.ProductTile:
    return tuning.product_tile(kind, triton.cdiv(ids.numel(), num_experts), ids.device)
