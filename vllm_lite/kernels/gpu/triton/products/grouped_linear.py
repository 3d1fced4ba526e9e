"""Linear layers by packed weights in Triton, dequantised as they are read.

For many rows a weight is dequantised once for all of them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.codebook_weight import CodebookWeight, PackedWeight
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.sizes import cdiv
from vllm_lite.kernels.gpu.triton.chained import chained, wait_for_inputs
from vllm_lite.kernels.gpu.triton.elementwise import act_and_mul
from vllm_lite.kernels.gpu.triton.launch import launch
from vllm_lite.kernels.gpu.triton.products.linear import add_parts, new_parts, tile_of
from vllm_lite.kernels.gpu.triton.products.packed_values import (
    INPUTS,
    kind_of,
    planes_of,
    values_of,
)
from vllm_lite.kernels.gpu.triton.products.small_products import small_product, takes
from vllm_lite.kernels.reference.rounding import ActivationRounding, round_activations

# From this many rows on, two tiles or more, dequantising for each costs more than once for all: an
# H200 read int4 weights at 0.61 and 0.46 TB/s for 64 rows, and at 0.20 and 0.39 for 256.
MANY_ROWS = 128
_EXPANDED_OUTPUTS = 64

_INPUTS = tl.constexpr(INPUTS)


@triton.jit
def grouped_linear_kernel(
    out_ptr,
    x_ptr,
    planes,
    bias_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    num_parts,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    wait_for_inputs(IS_CHAINED)
    row_tile, column_tile = tile_of(
        tl.program_id(0), tl.cdiv(num_rows, BLOCK_M), tl.cdiv(num_outputs, BLOCK_N), 8
    )
    part = tl.program_id(1)
    rows = (row_tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    outputs = column_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = rows < num_rows
    is_output = outputs < num_outputs
    HALVES: tl.constexpr = KIND.halves
    num_steps = tl.cdiv(num_inputs, HALVES * _INPUTS)
    steps = tl.cdiv(num_steps, num_parts)
    inside = tl.arange(0, _INPUTS)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(part * steps, tl.minimum(num_steps, (part + 1) * steps)):
        for half in tl.static_range(HALVES):
            inputs = step * (HALVES * _INPUTS) + half * _INPUTS + inside
            x = tl.load(
                x_ptr + rows[:, None] * x_stride + inputs[None, :],
                mask=is_row[:, None] & (inputs < num_inputs)[None, :],
                other=0.0,
            )
            values = values_of(
                planes, step, half, outputs, is_output, num_inputs, num_outputs, KIND
            )
            acc = tl.dot(x, values.to(x.dtype), acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    place = (part.to(tl.int64) * num_rows + rows[:, None]) * num_outputs + outputs[None, :]
    tl.store(out_ptr + place, acc, mask=is_row[:, None] & is_output[None, :])


@triton.jit
def expand_grouped_kernel(
    out_ptr,
    planes,
    permutation_ptr,
    num_outputs,
    num_inputs,
    KIND: tl.constexpr,
    IS_PERMUTED: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    step = tl.program_id(0)
    outputs = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_output = outputs < num_outputs
    HALVES: tl.constexpr = KIND.halves
    for half in tl.static_range(HALVES):
        values = values_of(planes, step, half, outputs, is_output, num_inputs, num_outputs, KIND)
        inputs = step * (HALVES * _INPUTS) + half * _INPUTS + tl.arange(0, _INPUTS)
        is_input = inputs < num_inputs
        if IS_PERMUTED:
            inputs = tl.load(permutation_ptr + inputs, mask=is_input, other=0)
        place = outputs[None, :].to(tl.int64) * num_inputs + inputs[:, None]
        tl.store(out_ptr + place, values, mask=is_input[:, None] & is_output[None, :])


def pack_grouped(weight: PackedWeight) -> PackedWeight:
    scales = weight.scales
    if isinstance(weight, CodebookWeight) or scales.dtype not in (
        torch.float8_e4m3fn,
        torch.float8_e8m0fnu,
    ):
        return weight
    # Exact, and loaded by every GPU.
    return replace(weight, scales=scales.to(torch.bfloat16))


def grouped_linear(
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    rounding: ActivationRounding | None = None,
) -> Tensor:
    rounded = x if rounding is None else round_activations(x, rounding)
    product = _product(rounded, weight, bias, out_dtype or x.dtype)
    return product if out is None else out.copy_(product)


def gated_grouped_linear(
    x: Tensor, weight: PackedWeight, bias: Tensor | None, activation: str
) -> Tensor:
    if takes(weight, x.shape[0]):
        return small_product(_in_order(x, weight), weight, bias, x.dtype, activation)
    return act_and_mul(_product(x, weight, bias, x.dtype), activation)


def _in_order(x: Tensor, weight: PackedWeight) -> Tensor:
    return x if weight.permutation is None else x.index_select(1, weight.permutation)


def _product(
    x: Tensor, weight: PackedWeight, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    num_rows, num_outputs = x.shape[0], weight.num_outputs
    if num_rows >= MANY_ROWS and out_dtype is x.dtype:
        rounded = None if bias is None else bias.to(x.dtype)
        return torch.nn.functional.linear(x, expand_grouped(weight, x.dtype), rounded)
    x = _in_order(x, weight)
    if takes(weight, num_rows):
        return small_product(x, weight, bias, out_dtype)
    kind = kind_of(weight)
    tile = tuning.product_tile(kind.tile, num_rows, x.device)
    tiles = cdiv(num_rows, tile.block_m) * cdiv(num_outputs, tile.block_n)
    processors = tuning.processor_count(x.device)
    parts = tuning.num_splits(
        tiles, tile.num_warps, num_rows, weight.num_inputs, kind.halves * INPUTS, processors
    )
    out = x.new_empty((num_rows, num_outputs), dtype=out_dtype)
    to = new_parts(out, parts)
    tiling = tile.launch()
    del tiling["BLOCK_K"]  # a step
    launch(
        grouped_linear_kernel,
        (tiles, parts),
        to,
        x,
        planes_of(weight),
        out if bias is None else bias,
        num_rows,
        num_outputs,
        weight.num_inputs,
        x.stride(0),
        parts,
        KIND=kind,
        HAS_BIAS=bias is not None and parts == 1,
        **tiling,
        **chained(x.device),
    )
    if parts > 1:
        add_parts(out, to, bias)
    return out


def expand_grouped(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    shape = (weight.num_outputs, weight.num_inputs)
    out = weight.codes.new_empty(shape, dtype=dtype)
    permutation, kind = weight.permutation, kind_of(weight)
    steps = cdiv(weight.num_inputs, kind.halves * INPUTS)
    launch(
        expand_grouped_kernel,
        (steps, cdiv(weight.num_outputs, _EXPANDED_OUTPUTS)),
        out,
        planes_of(weight),
        weight.codes if permutation is None else permutation,
        *shape,
        KIND=kind,
        IS_PERMUTED=permutation is not None,
        BLOCK_N=_EXPANDED_OUTPUTS,
    )
    return out
