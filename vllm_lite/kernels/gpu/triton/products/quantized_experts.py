"""Products of experts' pairs by packed weights in Triton, dequantised as they are read.

As in `experts`, a program multiplies one tile of one expert's pairs; the weights of all experts
are one weight, an expert's outputs after another's.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.codebook_weight import CodebookWeight, PackedWeight
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.sizes import cdiv
from vllm_lite.kernels.gpu.triton.launch import launch
from vllm_lite.kernels.gpu.triton.products.linear import tile_of
from vllm_lite.kernels.gpu.triton.products.packed_values import (
    INPUTS,
    kind_of,
    planes_of,
    values_of,
)
from vllm_lite.kernels.reference.experts import ExpertOrder
from vllm_lite.kernels.stacked_weights import QuantizedStack

_INPUTS = tl.constexpr(INPUTS)


@triton.jit(do_not_specialize=["num_tiles", "num_pairs"])
def grouped_experts_kernel(
    out_ptr,
    x_ptr,
    planes,
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
    books_stride,
    KIND: tl.constexpr,
    HAS_ORDERS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row_tile, column_tile = tile_of(tl.program_id(0), num_tiles, tl.cdiv(num_outputs, BLOCK_N), 8)
    expert = tl.load(expert_of_tile_ptr + row_tile)
    if expert < 0:
        return
    pairs = tl.load(pairs_ptr + row_tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_pair = pairs < num_pairs
    outputs = column_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    is_output = outputs < num_outputs
    rows = x_ptr + (pairs // pairs_per_row)[:, None] * x_stride
    HALVES: tl.constexpr = KIND.halves
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(tl.cdiv(num_inputs, HALVES * _INPUTS)):
        for half in tl.static_range(HALVES):
            inputs = step * (HALVES * _INPUTS) + half * _INPUTS + tl.arange(0, _INPUTS)
            is_input = inputs < num_inputs
            if HAS_ORDERS:
                inputs = tl.load(
                    orders_ptr + expert * num_inputs + inputs, mask=is_input, other=0
                ).to(tl.int32)
            mask = is_pair[:, None] & is_input[None, :]
            x = tl.load(rows + inputs[None, :], mask=mask, other=0.0)
            values = values_of(
                planes,
                step,
                half,
                expert * num_outputs + outputs,
                is_output,
                num_inputs,
                num_all_outputs,
                KIND,
                expert * books_stride,
            )
            acc = tl.dot(x, values.to(x.dtype), acc, input_precision="ieee")
    if HAS_BIAS:
        bias = tl.load(bias_ptr + expert * out_stride + outputs, mask=is_output, other=0.0)
        acc += bias[None, :]
    if HAS_WEIGHTS:
        acc *= tl.load(pair_weights_ptr + pairs, mask=is_pair, other=0.0)[:, None]
    place = pairs[:, None] * out_stride + outputs[None, :]
    tl.store(out_ptr + place, acc, mask=is_pair[:, None] & is_output[None, :])


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
    tiling = tile.launch()
    del tiling["BLOCK_K"]  # a step
    first, tiles = 0, len(order.expert_of_tile)
    for part in stack.parts:
        num_outputs = part.num_outputs // stack.num_experts
        columns = out[:, first:]
        launch(
            grouped_experts_kernel,
            (tiles * cdiv(num_outputs, tile.block_n),),
            columns,
            x,
            planes_of(part),
            order.pairs if stack.orders is None else stack.orders,
            columns if stack.bias is None else stack.bias[:, first:],
            out if pair_weights is None else pair_weights,
            order.pairs,
            order.expert_of_tile,
            tiles,
            len(out),
            pairs_per_row,
            num_outputs,
            part.num_outputs,
            part.num_inputs,
            x.stride(0),
            out.stride(0),
            _books_stride(part),
            KIND=kind_of(part),
            HAS_ORDERS=stack.orders is not None,
            HAS_BIAS=stack.bias is not None,
            HAS_WEIGHTS=pair_weights is not None,
            **tiling,
        )
        first += num_outputs


def _books_stride(part: PackedWeight) -> int:
    """Numbers from an expert's books to the next one's; 0 where all have the same."""
    if not isinstance(part, CodebookWeight) or len(part.books) == len(part.codes):
        return 0
    return len(part.codes) * part.books.stride(0)
