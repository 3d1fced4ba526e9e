"""Products of experts' pairs by packed weights in Triton, dequantised as they are read.

As in `experts`, a program multiplies one tile of one expert's pairs; the weights of all experts
are one weight, an expert's outputs after another's.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.codebook_weight import CodebookWeight
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton import codebooks
from vllm_lite.kernels.gpu.triton.codebooks import book_values
from vllm_lite.kernels.gpu.triton.grouped_linear import half_values, kind_of, planes_of
from vllm_lite.kernels.gpu.triton.linear import tile_of
from vllm_lite.kernels.grouped_weight import CHUNK
from vllm_lite.kernels.reference.experts import ExpertOrder
from vllm_lite.kernels.stacked_weights import QuantizedStack

_CHUNK = tl.constexpr(CHUNK)
_HALF = tl.constexpr(CHUNK // 2)


@triton.jit
def _store_pairs(
    out_ptr,
    acc,
    bias_ptr,
    pair_weights_ptr,
    pairs,
    is_pair,
    outputs,
    is_output,
    out_stride,
    HAS_BIAS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
):
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0)[None, :]
    if HAS_WEIGHTS:
        acc *= tl.load(pair_weights_ptr + pairs, mask=is_pair, other=0.0)[:, None]
    place = pairs[:, None] * out_stride + outputs[None, :]
    tl.store(out_ptr + place, acc, mask=is_pair[:, None] & is_output[None, :])


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
    table_ptr,
    orders_ptr,
    bias_ptr,
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
    out_stride,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    SUPER: tl.constexpr,
    HAS_ORDERS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
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
    rows = x_ptr + (pairs // pairs_per_row)[:, None] * x_stride
    inside = tl.arange(0, _HALF)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for chunk in range(tl.cdiv(num_inputs, _CHUNK)):
        for half in tl.static_range(2):
            inputs = chunk * _CHUNK + half * _HALF + inside
            is_input = inputs < num_inputs
            if HAS_ORDERS:
                inputs = tl.load(
                    orders_ptr + expert * num_inputs + inputs, mask=is_input, other=0
                ).to(tl.int32)
            mask = is_pair[:, None] & is_input[None, :]
            x = tl.load(rows + inputs[None, :], mask=mask, other=0.0)
            values = half_values(
                codes_ptr,
                high_ptr,
                scales_ptr,
                minimums_ptr,
                zeros_ptr,
                super_scales_ptr,
                super_minimums_ptr,
                table_ptr,
                chunk,
                half,
                expert * num_outputs + outputs,
                is_output,
                num_inputs,
                num_all_outputs,
                BITS,
                OFFSET,
                GROUP,
                HAS_MINIMUMS,
                HAS_ZEROS,
                HAS_TABLE,
                SUPER,
            )
            acc = tl.dot(x, values.to(x.dtype), acc, input_precision="ieee")
    _store_pairs(
        out_ptr,
        acc,
        bias_ptr + expert * out_stride,
        pair_weights_ptr,
        pairs,
        is_pair,
        outputs,
        is_output,
        out_stride,
        HAS_BIAS,
        HAS_WEIGHTS,
    )


@triton.jit
def codebook_experts_kernel(
    out_ptr,
    x_ptr,
    codes_ptr,
    high_ptr,
    signs_ptr,
    odds_ptr,
    scales_ptr,
    books_ptr,
    bias_ptr,
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
    out_stride,
    books_stride,
    VECTOR: tl.constexpr,
    BOOKS: tl.constexpr,
    HIGH: tl.constexpr,
    HAS_SIGNS: tl.constexpr,
    GROUP: tl.constexpr,
    SUPER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
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
    rows = x_ptr + (pairs // pairs_per_row)[:, None] * x_stride
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, num_inputs, _HALF):
        inputs = first + tl.arange(0, _HALF)
        mask = is_pair[:, None] & (inputs < num_inputs)[None, :]
        x = tl.load(rows + inputs[None, :], mask=mask, other=0.0)
        values = book_values(
            codes_ptr,
            high_ptr,
            signs_ptr,
            odds_ptr,
            scales_ptr,
            books_ptr + expert * books_stride,
            first,
            expert * num_outputs + outputs,
            is_output,
            num_inputs,
            num_all_outputs,
            VECTOR,
            BOOKS,
            HIGH,
            HAS_SIGNS,
            GROUP,
            SUPER,
        )
        acc = tl.dot(x, values.to(x.dtype), acc, input_precision="ieee")
    _store_pairs(
        out_ptr,
        acc,
        bias_ptr + expert * out_stride,
        pair_weights_ptr,
        pairs,
        is_pair,
        outputs,
        is_output,
        out_stride,
        HAS_BIAS,
        HAS_WEIGHTS,
    )


def quantized_experts_linear(
    out: Tensor,
    x: Tensor,
    stack: QuantizedStack,
    order: ExpertOrder,
    tile: tuning.ProductTile,
    pairs_per_row: int,
    pair_weights: Tensor | None,
) -> None:
    """Write each pair's product of its row of x and its expert's weight, times its share, to `out`
    [T * K, M]."""
    launch = tile.launch()
    del launch["BLOCK_K"]  # a chunk, or a step of a book
    first, tiles = 0, len(order.expert_of_tile)
    for part in stack.parts:
        num_outputs = part.num_outputs // stack.num_experts
        columns = out[:, first:]
        bias = columns if stack.bias is None else stack.bias[:, first:]
        shares = out if pair_weights is None else pair_weights
        sizes = (num_outputs, part.num_outputs, part.num_inputs, x.stride(0), out.stride(0))
        common = (bias, shares, order.pairs, order.expert_of_tile)
        counts = (tiles, len(out), pairs_per_row)
        flags = {"HAS_BIAS": stack.bias is not None, "HAS_WEIGHTS": pair_weights is not None}
        grid = (tiles * triton.cdiv(num_outputs, tile.block_n),)
        if isinstance(part, CodebookWeight):
            kind, planes = codebooks.kind_of(part), codebooks.planes_of(part)
            num_books = len(part.codes)
            is_one = len(part.books) == num_books
            stride = 0 if is_one else num_books * part.books.stride(0)
            codebook_experts_kernel[grid](
                columns, x, *planes, *common, *counts, *sizes, stride, **kind, **flags, **launch
            )
        else:
            orders = order.pairs if stack.orders is None else stack.orders
            flags["HAS_ORDERS"] = stack.orders is not None
            planes = planes_of(part)
            grouped_experts_kernel[grid](
                *(columns, x, *planes, orders, *common, *counts, *sizes),
                **kind_of(part),
                **flags,
                **launch,
            )
        first += num_outputs
