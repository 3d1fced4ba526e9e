"""Linear layers by plain weights in Triton, and what all linear kernels share.

`fixed_linear` adds in one order for any number of rows: one tile for all sizes, since another
might use another instruction and round differently, and no split sums. It is slower than torch's
library and used only in deterministic mode. Split sums are added in a fixed order, so that the
same launch always gives the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.sizes import cdiv, next_power_of_2
from vllm_lite.kernels.gpu.triton.chained import chained, wait_for_inputs
from vllm_lite.kernels.gpu.triton.elementwise import act_and_mul, gated_product
from vllm_lite.kernels.gpu.triton.launch import launch
from vllm_lite.kernels.reference.linear import PackedHeads, PackedLinear, linear

_SUM_BLOCK = 1024
_TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}


@triton.jit
def tile_of(program, num_row_tiles, num_column_tiles, ROWS: tl.constexpr):
    """A program's (row tile, column tile); ROWS row tiles in turn share a cached weight tile."""
    per_group = ROWS * num_column_tiles
    first_row = program // per_group * ROWS
    rows = tl.minimum(num_row_tiles - first_row, ROWS)
    inside = program % per_group
    return first_row + inside % rows, inside // rows


@triton.jit
def _sum_of_parts(parts_ptr, bias_ptr, places, mask, num_parts, size, num_columns, HAS_BIAS):
    total = tl.zeros([places.shape[0]], tl.float32)
    # Four loads at a time: each would wait for the one in front. The order stays.
    for part in tl.range(num_parts, loop_unroll_factor=4):
        total += tl.load(parts_ptr + part * size + places, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + places % num_columns, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["num_parts"])
def add_parts_kernel(
    out_ptr,
    parts_ptr,
    bias_ptr,
    num_parts,
    size,
    num_columns,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    wait_for_inputs(IS_CHAINED)
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if ACTIVATION == "":
        mask = places < size
        total = _sum_of_parts(
            parts_ptr, bias_ptr, places, mask, num_parts, size, num_columns, HAS_BIAS
        )
    else:
        mask = places < size // 2
        half = num_columns // 2
        gates = places + places // half * half
        sums = _sum_of_parts(
            parts_ptr, bias_ptr, gates, mask, num_parts, size, num_columns, HAS_BIAS
        )
        ups = _sum_of_parts(
            parts_ptr, bias_ptr, gates + half, mask, num_parts, size, num_columns, HAS_BIAS
        )
        stored = out_ptr.dtype.element_ty
        total = gated_product(sums.to(stored), ups.to(stored), ACTIVATION)
    tl.store(out_ptr + places, total, mask=mask)


def new_parts(out: Tensor, num_parts: int) -> Tensor:
    """Allocate [num_parts, T, M] float32 for split sums of out [T, M]; one part is out itself."""
    if num_parts == 1:
        return out
    return out.new_empty((num_parts, *out.shape), dtype=torch.float32)


def add_parts(out: Tensor, parts: Tensor, bias: Tensor | None, activation: str = "") -> None:
    """out [T, M] = the sum of parts [S, T, M] plus bias [M].

    With an activation out is [T, M / 2], and the first half of the sums are gates.
    """
    launch(
        add_parts_kernel,
        (cdiv(out.numel(), _SUM_BLOCK),),
        out,
        parts,
        out if bias is None else bias,
        parts.shape[0],
        parts[0].numel(),
        parts.shape[2],
        HAS_BIAS=bias is not None,
        ACTIVATION=activation,
        BLOCK=_SUM_BLOCK,
        **chained(out.device),
    )


@triton.jit(do_not_specialize=["num_rows"])
def fixed_linear_kernel(
    out_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    weight_stride,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row_tile, column_tile = tile_of(
        tl.program_id(0), tl.cdiv(num_rows, BLOCK_M), tl.cdiv(num_outputs, BLOCK_N), 8
    )
    rows = (row_tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    outputs = (column_tile * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_row = rows < num_rows
    is_output = outputs < num_outputs
    inside = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + rows[:, None] * x_stride + inside[None, :]
    weight_ptrs = weight_ptr + outputs[None, :] * weight_stride + inside[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, num_inputs, BLOCK_K):
        is_input = first + inside < num_inputs
        x = tl.load(x_ptrs + first, mask=is_row[:, None] & is_input[None, :], other=0.0)
        weight = tl.load(
            weight_ptrs + first, mask=is_input[:, None] & is_output[None, :], other=0.0
        )
        acc = tl.dot(x, weight, acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    place = rows[:, None] * num_outputs + outputs[None, :]
    tl.store(out_ptr + place, acc, mask=is_row[:, None] & is_output[None, :])


def fixed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    num_rows, num_inputs = x.shape
    num_outputs = len(weight)
    out = x.new_empty((num_rows, num_outputs), dtype=out_dtype)
    tiles = cdiv(num_rows, _TILE["BLOCK_M"]) * cdiv(num_outputs, _TILE["BLOCK_N"])
    fixed_linear_kernel[(tiles,)](
        out,
        x,
        weight,
        out if bias is None else bias,
        num_rows,
        num_outputs,
        num_inputs,
        x.stride(0),
        weight.stride(0),
        HAS_BIAS=bias is not None,
        BLOCK_K=128 // x.itemsize,
        **_TILE,
    )
    return out


def gated_linear(
    x: Tensor, weight: PackedLinear, bias: Tensor | None = None, name: str = "silu"
) -> Tensor:
    return act_and_mul(linear(x, weight, bias), name)


@triton.jit(do_not_specialize=["num_rows"])
def head_linear_kernel(
    out_ptr,
    x_ptr,
    weight_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    x_token_stride,
    x_head_stride,
    out_token_stride,
    COPIED: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    head = tl.program_id(2).to(tl.int64)
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    outputs = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = rows < num_rows
    is_output = outputs < num_outputs
    inside = tl.arange(0, BLOCK_K)
    x_rows = x_ptr + head * x_head_stride + rows[:, None] * x_token_stride
    weight_ptr += head * num_outputs * num_inputs
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, num_inputs, BLOCK_K):
        inputs = first + inside
        is_input = inputs < num_inputs
        x = tl.load(x_rows + inputs[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
        weight = tl.load(
            weight_ptr + outputs[None, :] * num_inputs + inputs[:, None],
            mask=is_input[:, None] & is_output[None, :],
            other=0.0,
        )
        acc = tl.dot(x, weight, acc, input_precision="ieee")
    out_rows = out_ptr + head * (num_outputs + COPIED) + rows[:, None] * out_token_stride
    tl.store(out_rows + outputs[None, :], acc, mask=is_row[:, None] & is_output[None, :])
    if COPIED > 0:
        columns = tl.arange(0, BLOCK_C)
        is_copied = (columns < COPIED) & (columns * 0 + tl.program_id(1) == 0)
        mask = is_row[:, None] & is_copied[None, :]
        rest = tl.load(x_rows + num_inputs + columns[None, :], mask=mask)
        tl.store(out_rows + num_outputs + columns[None, :], rest, mask=mask)


def head_linear(x: Tensor, weights: PackedHeads) -> Tensor:
    num_tokens, num_heads, size = x.shape
    num_outputs, num_inputs = weights.num_outputs, weights.num_inputs
    copied = size - num_inputs
    out = x.new_empty((num_tokens, num_heads, num_outputs + copied))
    tiles = [
        cdiv(count, _TILE[name])
        for count, name in ((num_tokens, "BLOCK_M"), (num_outputs, "BLOCK_N"))
    ]
    head_linear_kernel[(*tiles, num_heads)](
        out,
        x,
        weights.data,
        num_tokens,
        num_outputs,
        num_inputs,
        *x.stride()[:2],
        out.stride(0),
        COPIED=copied,
        BLOCK_C=next_power_of_2(max(1, copied)),
        BLOCK_K=128 // x.itemsize,
        **_TILE,
    )
    return out
