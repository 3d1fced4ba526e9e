"""Linear layers by int8 or fp8 in Triton, with scales for rows, outputs, or their groups.

If matrix instructions take the type it is multiplied as it is; otherwise fp8 becomes float16,
which holds it exactly.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.sizes import cdiv
from vllm_lite.kernels.gpu.triton.chained import chained, wait_for_inputs
from vllm_lite.kernels.gpu.triton.launch import launch
from vllm_lite.kernels.gpu.triton.products.linear import add_parts, new_parts, tile_of
from vllm_lite.kernels.gpu.triton.quantize import E4M3, INT8, as_stored, decode, format_of
from vllm_lite.kernels.reference.scaled_linear import outputs_per_scale


@triton.jit
def _as_operand(codes, FORMAT: tl.constexpr, IS_NATIVE: tl.constexpr):
    """Codes as what instructions take; fp8 that none takes becomes float16, exactly."""
    if FORMAT == 0 or FORMAT == INT8:
        return codes
    elif not IS_NATIVE:
        return decode(codes, FORMAT)
    elif FORMAT == E4M3:
        return codes.to(tl.float8e4nv, bitcast=True)
    else:
        return codes.to(tl.float8e5, bitcast=True)


@triton.jit(do_not_specialize=["num_rows", "num_parts"])
def scaled_linear_kernel(
    out_ptr,
    x_ptr,
    x_scales_ptr,
    weight_ptr,
    weight_scales_ptr,
    bias_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    weight_stride,
    x_scale_row_stride,
    num_groups,
    outputs_per_scale,
    num_parts,
    GROUP: tl.constexpr,
    FORMAT: tl.constexpr,
    IS_NATIVE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    wait_for_inputs(IS_CHAINED)
    row_tile, column_tile = tile_of(
        tl.program_id(0), tl.cdiv(num_rows, BLOCK_M), tl.cdiv(num_outputs, BLOCK_N), 8
    )
    part = tl.program_id(1)
    rows = (row_tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    outputs = (column_tile * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_row = rows < num_rows
    is_output = outputs < num_outputs
    inside = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + rows[:, None] * x_stride + inside[None, :]
    weight_ptrs = weight_ptr + outputs[None, :] * weight_stride + inside[:, None]
    x_scale_ptrs = x_scales_ptr + rows * x_scale_row_stride
    weight_scale_ptrs = weight_scales_ptr + outputs // outputs_per_scale * num_groups

    steps = tl.cdiv(tl.cdiv(num_inputs, BLOCK_K), num_parts)
    begin = part * steps * BLOCK_K
    end = tl.minimum(num_inputs, begin + steps * BLOCK_K)
    # Sums within a group have the codes' accumulator type, sums of scaled groups float32.
    if FORMAT == INT8 and GROUP == 0:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    else:
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(begin, end, BLOCK_K):
        is_input = first + inside < end
        x = tl.load(x_ptrs + first, mask=is_row[:, None] & is_input[None, :], other=0)
        weight = tl.load(weight_ptrs + first, mask=is_input[:, None] & is_output[None, :], other=0)
        x = _as_operand(x, FORMAT, IS_NATIVE)
        weight = _as_operand(weight, FORMAT, IS_NATIVE)
        if GROUP > 0:
            group = first // GROUP
            x_scale = tl.load(x_scale_ptrs + group, mask=is_row, other=0.0)
            weight_scale = tl.load(weight_scale_ptrs + group, mask=is_output, other=0.0)
            if FORMAT == INT8:
                product = tl.dot(x, weight, out_dtype=tl.int32).to(tl.float32)
            else:
                product = tl.dot(x, weight)
            acc += product * x_scale[:, None] * weight_scale[None, :]
        elif FORMAT == INT8:
            acc = tl.dot(x, weight, acc, out_dtype=tl.int32)
        else:
            # Hopper accumulates fp8 with few bits, so each step is added to acc separately.
            acc = tl.dot(x, weight, acc, max_num_imprecise_acc=BLOCK_K)

    total = acc.to(tl.float32)
    if GROUP == 0:
        x_scale = tl.load(x_scale_ptrs, mask=is_row, other=0.0)
        weight_scale = tl.load(weight_scale_ptrs, mask=is_output, other=0.0)
        total = total * x_scale[:, None] * weight_scale[None, :]
    if HAS_BIAS:
        total += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    place = (part.to(tl.int64) * num_rows + rows[:, None]) * num_outputs + outputs[None, :]
    tl.store(out_ptr + place, total, mask=is_row[:, None] & is_output[None, :])


def scaled_linear(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    num_rows, num_inputs = x.shape
    num_outputs, num_groups = weight.shape[0], weight_scales.shape[1]
    kind = "int8" if x.dtype is torch.int8 else "fp8"
    group = num_inputs // num_groups if num_groups > 1 else 0
    tile = tuning.product_tile(f"{kind}_blocks" if group else kind, num_rows, x.device)
    tiling = tile.launch()
    if group:  # a step is within a group
        tiling["BLOCK_K"] = min(group, tile.block_k)
    tiles = cdiv(num_rows, tile.block_m) * cdiv(num_outputs, tile.block_n)
    processors = tuning.processor_count(x.device)
    parts = tuning.num_splits(
        tiles, tile.num_warps, num_rows, num_inputs, tiling["BLOCK_K"], processors
    )
    out = x.new_empty((num_rows, num_outputs), dtype=out_dtype)
    to = new_parts(out, parts)
    launch(
        scaled_linear_kernel,
        (tiles, parts),
        to,
        as_stored(x),
        x_scales,
        as_stored(weight),
        weight_scales,
        out if bias is None else bias,
        num_rows,
        num_outputs,
        num_inputs,
        x.stride(0),
        weight.stride(0),
        x_scales.stride(0) if x_scales.shape[0] > 1 else 0,
        num_groups,
        outputs_per_scale(num_outputs, weight_scales),
        parts,
        GROUP=group,
        FORMAT=format_of(x.dtype),
        IS_NATIVE=tuning.has_float8(x.device),
        HAS_BIAS=bias is not None and parts == 1,
        **tiling,
        **chained(x.device),
    )
    if parts > 1:
        add_parts(out, to, bias)
    return out
