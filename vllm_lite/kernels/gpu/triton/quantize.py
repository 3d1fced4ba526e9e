"""int8 and fp8 by Triton: conversion within kernels, and rows rounded, alone or after other work.

Conversion is integer arithmetic on bytes: older GPUs lack 8-bit floats, so their bits are taken
apart here. Only a cache of e4m3 is read by an instruction where there is one, which gives the same.
Scales of cached rows are read and written byte by byte, since rows that end in one need not be
aligned.

Rounding has one program a row, or a row's group. It rounds where `reference` does, and launches
without fused multiply-adds, so that results equal its to the bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.sizes import cdiv, next_power_of_2
from vllm_lite.kernels.gpu.triton.chained import chained, wait_for_inputs
from vllm_lite.kernels.gpu.triton.elementwise import gated_product
from vllm_lite.kernels.gpu.triton.launch import launch
from vllm_lite.kernels.gpu.triton.norm import warps_for
from vllm_lite.kernels.reference.cache import has_row_scales
from vllm_lite.kernels.reference.quantize import LARGEST

# Formats in kernels, as compile-time constants.
INT8 = tl.constexpr(1)
E4M3 = tl.constexpr(2)
_E4M3_BY_INSTRUCTION = tl.constexpr(4)
_FORMATS = {torch.int8: 1, torch.float8_e4m3fn: 2, torch.float8_e5m2: 3}


def format_of(dtype: torch.dtype) -> int:
    """The format of a dtype in kernels; 0 unless it is an 8-bit type."""
    return _FORMATS.get(dtype, 0)


def as_stored(numbers: Tensor) -> Tensor:
    """The tensor as a kernel argument: 8-bit floats viewed as bytes."""
    return numbers.view(torch.uint8) if format_of(numbers.dtype) > 1 else numbers


@triton.jit
def round_half_even(x):
    """Round float32 below 2**22 to integers, half to even; the launch must not fuse additions."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _encode_float(x, MANTISSA: tl.constexpr, BIAS: tl.constexpr, LARGEST: tl.constexpr):
    """Convert float32 to the bits of an 8-bit float, clamped to its range."""
    SHIFT: tl.constexpr = 23 - MANTISSA
    MAGIC_EXPONENT: tl.constexpr = 24 - BIAS - MANTISSA
    sign = (x.to(tl.uint32, bitcast=True) >> 24) & 0x80
    magnitude = tl.minimum(tl.abs(x), LARGEST)
    bits = magnitude.to(tl.uint32, bitcast=True)
    rounded = (bits + (2 ** (SHIFT - 1) - 1) + ((bits >> SHIFT) & 1)) >> SHIFT
    normal = rounded - (127 - BIAS) * 2**MANTISSA
    # Adding a number whose last bit is the smallest subnormal rounds to that.
    small = (magnitude + 2.0**MAGIC_EXPONENT).to(tl.uint32, bitcast=True)
    small -= (127 + MAGIC_EXPONENT) * 2**23
    code = tl.where(magnitude < 2.0 ** (1 - BIAS), small, normal)
    return (tl.where(x != x, 0x7F, code) | sign).to(tl.uint8)


@triton.jit
def encode(x, FORMAT: tl.constexpr):
    """Convert float32 to FORMAT, to nearest even."""
    tl.static_assert(FORMAT < _E4M3_BY_INSTRUCTION)
    if FORMAT == INT8:
        return round_half_even(x).to(tl.int8)
    elif FORMAT == E4M3:
        return _encode_float(x, 3, 7, 448.0)
    else:
        return _encode_float(x, 2, 15, 57344.0)


@triton.jit
def decode(codes, FORMAT: tl.constexpr):
    """Convert FORMAT to float16, exactly."""
    if FORMAT == INT8:
        return codes.to(tl.float16)
    elif FORMAT == _E4M3_BY_INSTRUCTION:
        return codes.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    elif FORMAT == E4M3:
        bits = codes.to(tl.uint16)
        magnitude = bits & 0x7F
        half = ((bits & 0x80) << 8) | (magnitude << 7)
        # The exponents' biases differ by 8, for zero and subnormals too.
        value = half.to(tl.float16, bitcast=True) * 256.0
        return tl.where(magnitude == 0x7F, float("nan"), value).to(tl.float16)
    else:
        return (codes.to(tl.uint16) << 8).to(tl.float16, bitcast=True)


@triton.jit
def row_scale(highest, LARGEST: tl.constexpr):
    """Return (factor to quantise by, scale to dequantise by) for rows' largest magnitudes."""
    usable = (highest > 1e-30) & (highest < float("inf"))
    inverse = tl.where(usable, tl.div_rn(LARGEST, tl.where(usable, highest, 1.0)), 0.0)
    return inverse, tl.div_rn(highest, LARGEST)


@triton.jit
def encode_scaled(x, inverse, FORMAT: tl.constexpr):
    """Convert x * `inverse` to FORMAT; zeros if the inverse is zero."""
    return encode(tl.where(inverse == 0.0, 0.0, x * inverse), FORMAT)


def stored_numbers(
    key_cache: Tensor, value_cache: Tensor, head_size: int
) -> tuple[Tensor, Tensor, int]:
    """Two caches of one type as kernel arguments: their storage and its format for `decode`.

    Raises ValueError if their rows do not fit heads of this size.
    """
    has_row_scales(key_cache, head_size)
    number_format = format_of(key_cache.dtype)
    # With rows of 256 numbers or more prompts' tiles spill registers by the instruction.
    has_instruction = tuning.has_float8(key_cache.device) and head_size < 256
    if number_format == E4M3.value and has_instruction:
        number_format = _E4M3_BY_INSTRUCTION.value
    return as_stored(key_cache), as_stored(value_cache), number_format


@triton.jit
def load_scales(rows_ptr, mask, HEAD_SIZE: tl.constexpr):
    """The scales of the rows at `rows_ptr`."""
    bits = tl.load(rows_ptr + HEAD_SIZE, mask=mask, other=0).to(tl.int32) & 0xFF
    bits |= (tl.load(rows_ptr + HEAD_SIZE + 1, mask=mask, other=0).to(tl.int32) & 0xFF) << 8
    bits |= (tl.load(rows_ptr + HEAD_SIZE + 2, mask=mask, other=0).to(tl.int32) & 0xFF) << 16
    bits |= (tl.load(rows_ptr + HEAD_SIZE + 3, mask=mask, other=0).to(tl.int32) & 0xFF) << 24
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def store_scaled_row(row_ptr, numbers, columns, FORMAT: tl.constexpr, HEAD_SIZE: tl.constexpr):
    """Store a row of float32 numbers, zero beyond HEAD_SIZE, quantised with its scale."""
    # As integers, NaN is above infinity, and infinity above all numbers.
    magnitudes = numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    highest = tl.max(magnitudes, axis=0).to(tl.float32, bitcast=True)
    inverse, scale = row_scale(highest, 127.0 if FORMAT == INT8 else 448.0)
    codes = encode_scaled(numbers, inverse, FORMAT)
    tl.store(row_ptr + columns, codes, mask=columns < HEAD_SIZE)
    bytes = tl.arange(0, 4)
    bits = scale.to(tl.int32, bitcast=True) >> (8 * bytes)
    tl.store(row_ptr + HEAD_SIZE + bytes, (bits & 0xFF).to(codes.dtype))


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
    IS_CHAINED: tl.constexpr,
):
    wait_for_inputs(IS_CHAINED)
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
    IS_CHAINED: tl.constexpr,
):
    wait_for_inputs(IS_CHAINED)
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
    IS_CHAINED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < size
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    wait_for_inputs(IS_CHAINED)
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
    block = next_power_of_2(group_size)
    launch(
        quantize_rows_kernel,
        (num_rows, groups),
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
        **chained(x.device),
    )
    return codes, scales


def quantize_by_scale(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    num_rows, size = x.shape
    codes = x.new_empty((num_rows, size), dtype=dtype)
    block = min(1024, next_power_of_2(size))
    launch(
        quantize_by_scale_kernel,
        (num_rows, cdiv(size, block)),
        as_stored(codes),
        x,
        scale,
        x.stride(0),
        size,
        LARGEST_NUMBER=LARGEST[dtype],
        FORMAT=format_of(dtype),
        BLOCK=block,
        enable_fp_fusion=False,
        **chained(x.device),
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
    block = next_power_of_2(size)
    launch(
        norm_quantize_kernel,
        (num_rows,),
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
        **chained(x.device),
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
    IS_CHAINED: tl.constexpr,
):
    wait_for_inputs(IS_CHAINED)
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
    block = next_power_of_2(size)
    launch(
        gated_quantize_kernel,
        (num_rows,),
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
        **chained(x.device),
    )
    return codes, scales
