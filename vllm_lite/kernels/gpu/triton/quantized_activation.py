"""Gated activations that end in codes of one byte, by Triton: a program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.triton.activation import gated_product
from vllm_lite.kernels.gpu.triton.norm import warps_for
from vllm_lite.kernels.gpu.triton.numbers import as_stored, encode_scaled, format_of, row_scale
from vllm_lite.kernels.gpu.triton.quantize import largest_magnitude
from vllm_lite.kernels.reference.quantize import LARGEST


@triton.jit
def gated_quantize_kernel(
    codes_ptr,
    scales_ptr,
    x_ptr,
    x_stride,
    size,
    ACTIVATION: tl.constexpr,
    LARGEST_NUMBER: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    gate_ptrs = x_ptr + row * x_stride + columns
    gate = tl.load(gate_ptrs, mask=mask, other=0.0)
    up = tl.load(gate_ptrs + size, mask=mask, other=0.0)
    product = gated_product(gate, up, ACTIVATION).to(gate.dtype).to(tl.float32)
    inverse, scale = row_scale(largest_magnitude(product), LARGEST_NUMBER)
    tl.store(codes_ptr + row * size + columns, encode_scaled(product, inverse, FORMAT), mask=mask)
    tl.store(scales_ptr + row, scale)


def act_and_mul_quantized(x: Tensor, name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    num_rows, doubled = x.shape
    size = doubled // 2
    codes = x.new_empty((num_rows, size), dtype=dtype)
    scales = x.new_empty((num_rows, 1), dtype=torch.float32)
    block = triton.next_power_of_2(size)
    gated_quantize_kernel[(num_rows,)](
        as_stored(codes),
        scales,
        x,
        x.stride(0),
        size,
        ACTIVATION=name,
        LARGEST_NUMBER=LARGEST[dtype],
        FORMAT=format_of(dtype),
        BLOCK=block,
        num_warps=warps_for(block),
        enable_fp_fusion=False,
    )
    return codes, scales
