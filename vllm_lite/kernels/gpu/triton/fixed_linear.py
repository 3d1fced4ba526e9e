"""Products of plain weights by Triton in one order of sums, whatever the number of rows.

One tile for all: another would be another instruction, and other bits. Sums are not cut into
parts. Slower than torch's own library, and used only where the batch must not show.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.triton.split_sums import tile_of

_TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}


@triton.jit
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
    tiles = triton.cdiv(num_rows, _TILE["BLOCK_M"]) * triton.cdiv(num_outputs, _TILE["BLOCK_N"])
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
