"""Linear layers by grouped weights in Triton, dequantised as they are read.

A byte's lower or upper bits hold half a chunk, 32 inputs, which one or two groups
scale, so codes need no shuffling: each half is a dot of its own. For many rows a weight
is dequantised once for all of them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.codebook_weight import CodebookWeight, PackedWeight
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton.codebooks import codebook_linear, expand_codebook
from vllm_lite.kernels.gpu.triton.linear import add_parts, new_parts, tile_of
from vllm_lite.kernels.grouped_weight import CHUNK, GroupedWeight
from vllm_lite.kernels.reference.rounding import ActivationRounding, round_activations

# From this many rows on, dequantising for every tile costs more than once for all.
MANY_ROWS = 1024
_EXPANDED_OUTPUTS = 64

_CHUNK = tl.constexpr(CHUNK)
_HALF = tl.constexpr(CHUNK // 2)


@triton.jit
def _plane_codes(ptr, row, mask, half: tl.constexpr, BITS: tl.constexpr):
    """The bits of a plane in the codes [32, outputs] of half a chunk."""
    BYTES: tl.constexpr = 8 * BITS
    inside = tl.arange(0, _HALF)
    ptrs = ptr + row[None, :] * BYTES + (inside % BYTES)[:, None]
    packed = tl.load(ptrs, mask=mask, other=0).to(tl.int32)
    shifts = ((inside // BYTES) * 2 + half) * BITS
    return (packed >> shifts[:, None]) & (2**BITS - 1)


@triton.jit
def _half_codes(
    codes_ptr, high_ptr, chunk, half: tl.constexpr, outputs, is_output, num_outputs, BITS
):
    """The codes [32, outputs] of half a chunk, as int32."""
    inside = tl.arange(0, _HALF)
    # Chunks times outputs fit 32 bits; bytes do not, so `outputs` are 64-bit.
    row = chunk * num_outputs + outputs
    mask = is_output[None, :]
    if BITS == 8:
        ptrs = codes_ptr + row[None, :] * _CHUNK + half * _HALF + inside[:, None]
        return tl.load(ptrs, mask=mask, other=0).to(tl.int32)
    else:
        LOW: tl.constexpr = 4 if BITS >= 4 else 2
        codes = _plane_codes(codes_ptr, row, mask, half, LOW)
        if BITS > LOW:
            codes |= _plane_codes(high_ptr, row, mask, half, BITS - LOW) << LOW
        return codes


@triton.jit
def _by_group(ptr, super_ptr, first, outputs, is_output, num_inputs, num_outputs, GROUP, SUPER):
    """A plane's factors [32 or 1, outputs] float32 for the 32 inputs from `first` on."""
    if GROUP % 32 == 0:
        groups = first // GROUP + tl.zeros([1], tl.int32)
    else:
        groups = (first + tl.arange(0, _HALF)) // GROUP
    ptrs = ptr + groups[:, None] * num_outputs + outputs[None, :]
    mask = (groups * GROUP < num_inputs)[:, None] & is_output[None, :]
    factors = tl.load(ptrs, mask=mask, other=0).to(tl.float32)
    if SUPER > 0:
        # Half a chunk may lie beyond the last input.
        group = tl.minimum(first, num_inputs - 1) // SUPER
        super_ptrs = super_ptr + group * num_outputs + outputs
        factors *= tl.load(super_ptrs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    return factors


@triton.jit
def half_values(
    codes_ptr,
    high_ptr,
    scales_ptr,
    minimums_ptr,
    zeros_ptr,
    super_scales_ptr,
    super_minimums_ptr,
    table_ptr,
    chunk,
    half: tl.constexpr,
    outputs,
    is_output,
    num_inputs,
    num_outputs,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    SUPER: tl.constexpr,
):
    """The values [32, outputs] float32 of half a chunk; undefined beyond the last input."""
    first = chunk * _CHUNK + half * _HALF
    codes = _half_codes(codes_ptr, high_ptr, chunk, half, outputs, is_output, num_outputs, BITS)
    if HAS_TABLE:
        values = tl.load(table_ptr + codes, mask=is_output[None, :], other=0.0)
    else:
        values = (codes - OFFSET).to(tl.float32)
    if HAS_ZEROS:
        values -= _by_group(
            zeros_ptr, zeros_ptr, first, outputs, is_output, num_inputs, num_outputs, GROUP, 0
        )
    values *= _by_group(
        scales_ptr,
        super_scales_ptr,
        first,
        outputs,
        is_output,
        num_inputs,
        num_outputs,
        GROUP,
        SUPER,
    )
    if HAS_MINIMUMS:
        values -= _by_group(
            minimums_ptr,
            super_minimums_ptr,
            first,
            outputs,
            is_output,
            num_inputs,
            num_outputs,
            GROUP,
            SUPER,
        )
    return values


@triton.jit
def grouped_linear_kernel(
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
    bias_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    num_parts,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    SUPER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row_tile, column_tile = tile_of(
        tl.program_id(0), tl.cdiv(num_rows, BLOCK_M), tl.cdiv(num_outputs, BLOCK_N), 8
    )
    part = tl.program_id(1)
    rows = (row_tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    outputs = (column_tile * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_row = rows < num_rows
    is_output = outputs < num_outputs
    num_chunks = tl.cdiv(num_inputs, _CHUNK)
    steps = tl.cdiv(num_chunks, num_parts)
    inside = tl.arange(0, _HALF)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for chunk in range(part * steps, tl.minimum(num_chunks, (part + 1) * steps)):
        for half in tl.static_range(2):
            inputs = chunk * _CHUNK + half * _HALF + inside
            x = tl.load(
                x_ptr + rows[:, None] * x_stride + inputs[None, :],
                mask=is_row[:, None] & (inputs < num_inputs)[None, :],
                other=0.0,
            )
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
                outputs,
                is_output,
                num_inputs,
                num_outputs,
                BITS,
                OFFSET,
                GROUP,
                HAS_MINIMUMS,
                HAS_ZEROS,
                HAS_TABLE,
                SUPER,
            )
            acc = tl.dot(x, values.to(x.dtype), acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    place = (part.to(tl.int64) * num_rows + rows[:, None]) * num_outputs + outputs[None, :]
    tl.store(out_ptr + place, acc, mask=is_row[:, None] & is_output[None, :])


@triton.jit
def expand_grouped_kernel(
    out_ptr,
    codes_ptr,
    high_ptr,
    scales_ptr,
    minimums_ptr,
    zeros_ptr,
    super_scales_ptr,
    super_minimums_ptr,
    table_ptr,
    permutation_ptr,
    num_outputs,
    num_inputs,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    SUPER: tl.constexpr,
    IS_PERMUTED: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    chunk = tl.program_id(0)
    outputs = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_output = outputs < num_outputs
    for half in tl.static_range(2):
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
            outputs,
            is_output,
            num_inputs,
            num_outputs,
            BITS,
            OFFSET,
            GROUP,
            HAS_MINIMUMS,
            HAS_ZEROS,
            HAS_TABLE,
            SUPER,
        )
        inputs = chunk * _CHUNK + half * _HALF + tl.arange(0, _HALF)
        is_input = inputs < num_inputs
        if IS_PERMUTED:
            inputs = tl.load(permutation_ptr + inputs, mask=is_input, other=0)
        place = outputs[None, :] * num_inputs + inputs[:, None]
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


def _product(
    x: Tensor, weight: PackedWeight, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    num_rows, num_outputs = len(x), weight.num_outputs
    if num_rows >= MANY_ROWS and out_dtype is x.dtype:
        rounded = None if bias is None else bias.to(x.dtype)
        return torch.nn.functional.linear(x, expand_grouped(weight, x.dtype), rounded)
    if isinstance(weight, CodebookWeight):
        return codebook_linear(x, weight, bias, out_dtype)
    if weight.permutation is not None:
        x = x.index_select(1, weight.permutation)
    tile = tuning.product_tile(f"int{max(weight.bits, 4)}_groups", num_rows, x.device)
    tiles = triton.cdiv(num_rows, tile.block_m) * triton.cdiv(num_outputs, tile.block_n)
    processors = tuning.processor_count(x.device)
    parts = tuning.num_splits(tiles, weight.num_inputs, CHUNK, processors)
    out = x.new_empty((num_rows, num_outputs), dtype=out_dtype)
    to = new_parts(out, parts)
    launch = tile.launch()
    del launch["BLOCK_K"]  # a chunk
    grouped_linear_kernel[(tiles, parts)](
        to,
        x,
        *planes_of(weight),
        out if bias is None else bias,
        num_rows,
        num_outputs,
        weight.num_inputs,
        x.stride(0),
        parts,
        **kind_of(weight),
        HAS_BIAS=bias is not None and parts == 1,
        **launch,
    )
    if parts > 1:
        add_parts(out, to, bias)
    return out


def expand_grouped(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    if isinstance(weight, CodebookWeight):
        return expand_codebook(weight, dtype)
    shape = (weight.num_outputs, weight.num_inputs)
    out = weight.codes.new_empty(shape, dtype=dtype)
    permutation = weight.permutation
    grid = (len(weight.codes), triton.cdiv(weight.num_outputs, _EXPANDED_OUTPUTS))
    expand_grouped_kernel[grid](
        out,
        *planes_of(weight),
        weight.codes if permutation is None else permutation,
        *shape,
        **kind_of(weight),
        IS_PERMUTED=permutation is not None,
        BLOCK_N=_EXPANDED_OUTPUTS,
    )
    return out


def planes_of(weight: GroupedWeight) -> list[Tensor]:
    """The planes as kernel arguments, with a placeholder for absent ones."""
    codes, scales = weight.codes, weight.scales
    planes = [(weight.high_codes, codes), (scales, scales), (weight.minimums, scales)]
    planes += [(weight.zeros, codes), (weight.super_scales, scales)]
    planes += [(weight.super_minimums, scales), (weight.table, scales)]
    return [codes, *(stand_in if plane is None else plane for plane, stand_in in planes)]


def kind_of(weight: GroupedWeight) -> dict[str, int | bool]:
    return {
        "BITS": weight.bits,
        "OFFSET": weight.offset,
        "GROUP": weight.group_size,
        "HAS_MINIMUMS": weight.minimums is not None,
        "HAS_ZEROS": weight.zeros is not None,
        "HAS_TABLE": weight.table is not None,
        "SUPER": 0 if weight.super_scales is None else weight.super_group,
    }
