"""Rounding rows to int8 or fp8 by Triton, alone or fused with a norm or a gated activation.

One program a row, or a row's group. Rounds where `reference` rounds, and launches
without fused multiply-adds, so that results equal its to the bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.triton.elementwise import gated_product
from vllm_lite.kernels.gpu.triton.norm import warps_for
from vllm_lite.kernels.gpu.triton.numbers import (
    INT8,
    as_stored,
    encode,
    encode_scaled,
    format_of,
    row_scale,
)
from vllm_lite.kernels.reference.quantize import LARGEST


@triton.jit
def largest_magnitude(x):
    """The largest magnitude of a vector; NaN if it has one, which a plain maximum would drop."""
    highest = tl.max(tl.abs(x), axis=0)
    return tl.where(tl.max((x != x).to(tl.int32), axis=0) > 0, float("nan"), highest)


@triton.jit
def quantize_rows_kernel(
    codes_ptr,
    scales_ptr,
    x_ptr,
    x_stride,
    size,
    group_size,
    LARGEST_NUMBER: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    inside = tl.arange(0, BLOCK)
    columns = group * group_size + inside
    mask = inside < group_size
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    inverse, scale = row_scale(largest_magnitude(x), LARGEST_NUMBER)
    tl.store(codes_ptr + row * size + columns, encode_scaled(x, inverse, FORMAT), mask=mask)
    tl.store(scales_ptr + row * tl.num_programs(1) + group, scale)


@triton.jit
def quantize_by_scale_kernel(
    codes_ptr,
    x_ptr,
    scale_ptr,
    x_stride,
    size,
    LARGEST_NUMBER: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < size
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    codes = tl.div_rn(x, tl.load(scale_ptr))
    if FORMAT == INT8:
        codes = tl.minimum(tl.maximum(codes, -LARGEST_NUMBER), LARGEST_NUMBER)
    tl.store(codes_ptr + row * size + columns, encode(codes, FORMAT), mask=mask)


@triton.jit
def norm_quantize_kernel(
    codes_ptr,
    scales_ptr,
    x_ptr,
    residual_ptr,
    weight_ptr,
    x_stride,
    residual_stride,
    size,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    LARGEST_NUMBER: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual_ptrs = residual_ptr + row * residual_stride + columns
        x += tl.load(residual_ptrs, mask=mask, other=0.0).to(tl.float32)
        rounded = x.to(x_ptr.dtype.element_ty)
        tl.store(residual_ptrs, rounded, mask=mask)
        x = rounded.to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, axis=0) / size + eps)
    normed = normed.to(weight.dtype).to(tl.float32) * weight.to(tl.float32)
    normed = normed.to(x_ptr.dtype.element_ty).to(tl.float32)
    inverse, scale = row_scale(largest_magnitude(normed), LARGEST_NUMBER)
    tl.store(codes_ptr + row * size + columns, encode_scaled(normed, inverse, FORMAT), mask=mask)
    tl.store(scales_ptr + row, scale)


def quantize_rows(x: Tensor, dtype: torch.dtype, group_size: int = 0) -> tuple[Tensor, Tensor]:
    num_rows, size = x.shape
    group_size = group_size or size
    groups = size // group_size
    codes = x.new_empty((num_rows, size), dtype=dtype)
    scales = x.new_empty((num_rows, groups), dtype=torch.float32)
    block = triton.next_power_of_2(group_size)
    quantize_rows_kernel[(num_rows, groups)](
        as_stored(codes),
        scales,
        x,
        x.stride(0),
        size,
        group_size,
        LARGEST_NUMBER=LARGEST[dtype],
        FORMAT=format_of(dtype),
        BLOCK=block,
        num_warps=warps_for(block),
        enable_fp_fusion=False,
    )
    return codes, scales


def quantize_by_scale(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    num_rows, size = x.shape
    codes = x.new_empty((num_rows, size), dtype=dtype)
    block = min(1024, triton.next_power_of_2(size))
    quantize_by_scale_kernel[(num_rows, triton.cdiv(size, block))](
        as_stored(codes),
        x,
        scale,
        x.stride(0),
        size,
        LARGEST_NUMBER=LARGEST[dtype],
        FORMAT=format_of(dtype),
        BLOCK=block,
        enable_fp_fusion=False,
    )
    return codes


def rms_norm_quantized(
    x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return _norm_quantized(x, None, weight, eps, dtype)


def fused_add_rms_norm_quantized(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return _norm_quantized(x, residual, weight, eps, dtype)


def _norm_quantized(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    num_rows, size = x.shape
    codes = x.new_empty((num_rows, size), dtype=dtype)
    scales = x.new_empty((num_rows, 1), dtype=torch.float32)
    block = triton.next_power_of_2(size)
    norm_quantize_kernel[(num_rows,)](
        as_stored(codes),
        scales,
        x,
        x if residual is None else residual,
        weight,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        size,
        eps,
        HAS_RESIDUAL=residual is not None,
        LARGEST_NUMBER=LARGEST[dtype],
        FORMAT=format_of(dtype),
        BLOCK=block,
        num_warps=warps_for(block),
        enable_fp_fusion=False,
    )
    return codes, scales


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
