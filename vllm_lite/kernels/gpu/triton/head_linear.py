"""Linear layers of heads by Triton: one tile for all sizes, so that a row's bits are its own."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.reference.head_linear import PackedHeads

_TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}


@triton.jit
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
        triton.cdiv(count, _TILE[name])
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
        BLOCK_C=triton.next_power_of_2(max(1, copied)),
        BLOCK_K=128 // x.itemsize,
        **_TILE,
    )
    return out
