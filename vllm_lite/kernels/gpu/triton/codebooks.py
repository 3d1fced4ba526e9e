"""Linear layers by codebooks in Triton: indices are looked up as they are read.

A step is 32 inputs: their vectors' places in a book, signs and scales lie side by side by outputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.codebook_weight import CodebookWeight
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton.linear import add_parts, new_parts, tile_of

_STEP = 32
_INPUTS = tl.constexpr(_STEP)
_EXPANDED_OUTPUTS = 64


@triton.jit
def _by_output(ptr, row, outputs, mask, num_outputs):
    """Numbers of rows [32] for outputs [N]: [32, N]."""
    return tl.load(ptr + row[:, None] * num_outputs + outputs[None, :], mask=mask, other=0)


@triton.jit
def book_values(
    codes_ptr,
    high_ptr,
    signs_ptr,
    odds_ptr,
    scales_ptr,
    books_ptr,
    first,
    outputs,
    is_output,
    num_inputs,
    num_outputs,
    VECTOR: tl.constexpr,
    BOOKS: tl.constexpr,
    HIGH: tl.constexpr,
    HAS_SIGNS: tl.constexpr,
    GROUP: tl.constexpr,
    SUPER: tl.constexpr,
):
    """The values [32, outputs] float32 of the inputs from `first` on."""
    inputs = first + tl.arange(0, _INPUTS)
    mask = (inputs < num_inputs)[:, None] & is_output[None, :]
    vectors = inputs // VECTOR
    count = num_inputs // VECTOR
    values = tl.zeros([_INPUTS, outputs.shape[0]], tl.float32)
    for book in tl.static_range(BOOKS):
        rows = book * count + vectors
        index = _by_output(codes_ptr, rows, outputs, mask, num_outputs).to(tl.int32)
        if HIGH > 0:
            bits = _by_output(high_ptr, rows * HIGH // 8, outputs, mask, num_outputs).to(tl.int32)
            shifts = vectors * HIGH % 8
            index |= ((bits >> shifts[:, None]) & (2**HIGH - 1)) << 8
        place = (book * 2 ** (8 + HIGH) + index) * VECTOR + (inputs % VECTOR)[:, None]
        values += tl.load(books_ptr + place, mask=mask, other=0).to(tl.float32)
    if HAS_SIGNS:
        signs = _by_output(signs_ptr, inputs // 8, outputs, mask, num_outputs).to(tl.int32)
        is_negative = (signs >> (inputs % 8)[:, None]) & 1
        values = tl.where(is_negative == 1, -values, values)
    scales = _by_output(scales_ptr, inputs // SUPER, outputs, mask, num_outputs).to(tl.float32)
    if GROUP > 0:
        groups = inputs // GROUP
        odds = _by_output(odds_ptr, groups // 2, outputs, mask, num_outputs).to(tl.int32)
        odds = (odds >> (groups % 2 * 4)[:, None]) & 15
        scales *= (2 * odds + 1).to(tl.float32)
    return values * scales


@triton.jit
def codebook_linear_kernel(
    out_ptr,
    x_ptr,
    codes_ptr,
    high_ptr,
    signs_ptr,
    odds_ptr,
    scales_ptr,
    books_ptr,
    bias_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    num_parts,
    VECTOR: tl.constexpr,
    BOOKS: tl.constexpr,
    HIGH: tl.constexpr,
    HAS_SIGNS: tl.constexpr,
    GROUP: tl.constexpr,
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
    num_steps = tl.cdiv(num_inputs, _INPUTS)
    steps = tl.cdiv(num_steps, num_parts)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(part * steps, tl.minimum(num_steps, (part + 1) * steps)):
        first = step * _INPUTS
        inputs = first + tl.arange(0, _INPUTS)
        x = tl.load(
            x_ptr + rows[:, None] * x_stride + inputs[None, :],
            mask=is_row[:, None] & (inputs < num_inputs)[None, :],
            other=0.0,
        )
        values = book_values(
            codes_ptr,
            high_ptr,
            signs_ptr,
            odds_ptr,
            scales_ptr,
            books_ptr,
            first,
            outputs,
            is_output,
            num_inputs,
            num_outputs,
            VECTOR,
            BOOKS,
            HIGH,
            HAS_SIGNS,
            GROUP,
            SUPER,
        )
        acc = tl.dot(x, values.to(x.dtype), acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    place = (part.to(tl.int64) * num_rows + rows[:, None]) * num_outputs + outputs[None, :]
    tl.store(out_ptr + place, acc, mask=is_row[:, None] & is_output[None, :])


@triton.jit
def expand_codebook_kernel(
    out_ptr,
    codes_ptr,
    high_ptr,
    signs_ptr,
    odds_ptr,
    scales_ptr,
    books_ptr,
    num_outputs,
    num_inputs,
    VECTOR: tl.constexpr,
    BOOKS: tl.constexpr,
    HIGH: tl.constexpr,
    HAS_SIGNS: tl.constexpr,
    GROUP: tl.constexpr,
    SUPER: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    first = tl.program_id(0) * _INPUTS
    outputs = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_output = outputs < num_outputs
    values = book_values(
        codes_ptr,
        high_ptr,
        signs_ptr,
        odds_ptr,
        scales_ptr,
        books_ptr,
        first,
        outputs,
        is_output,
        num_inputs,
        num_outputs,
        VECTOR,
        BOOKS,
        HIGH,
        HAS_SIGNS,
        GROUP,
        SUPER,
    )
    inputs = first + tl.arange(0, _INPUTS)
    place = outputs[None, :] * num_inputs + inputs[:, None]
    tl.store(out_ptr + place, values, mask=(inputs < num_inputs)[:, None] & is_output[None, :])


def codebook_linear(
    x: Tensor, weight: CodebookWeight, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    """`grouped_linear` of a weight by codebooks."""
    num_rows, num_outputs = len(x), weight.num_outputs
    tile = tuning.product_tile("int4_groups", num_rows, x.device)
    tiles = triton.cdiv(num_rows, tile.block_m) * triton.cdiv(num_outputs, tile.block_n)
    processors = tuning.processor_count(x.device)
    parts = tuning.num_splits(tiles, weight.num_inputs, _STEP, processors)
    out = x.new_empty((num_rows, num_outputs), dtype=out_dtype)
    to = new_parts(out, parts)
    launch = tile.launch()
    del launch["BLOCK_K"]  # a step
    codebook_linear_kernel[(tiles, parts)](
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


def expand_codebook(weight: CodebookWeight, dtype: torch.dtype) -> Tensor:
    """All values [M, N] of a weight by codebooks, rounded once to dtype."""
    shape = (weight.num_outputs, weight.num_inputs)
    out = weight.codes.new_empty(shape, dtype=dtype)
    grid = (triton.cdiv(shape[1], _STEP), triton.cdiv(shape[0], _EXPANDED_OUTPUTS))
    expand_codebook_kernel[grid](
        out, *planes_of(weight), *shape, **kind_of(weight), BLOCK_N=_EXPANDED_OUTPUTS
    )
    return out


def planes_of(weight: CodebookWeight) -> list[Tensor]:
    """The planes as kernel arguments, with a placeholder for absent ones."""
    codes = weight.codes
    planes = (weight.high_codes, weight.signs, weight.odds)
    stored = [codes if plane is None else plane for plane in planes]
    return [codes, *stored, weight.scales, weight.books]


def kind_of(weight: CodebookWeight) -> dict[str, int | bool]:
    return {
        "VECTOR": weight.vector,
        "BOOKS": len(weight.codes),
        "HIGH": weight.high_bits,
        "HAS_SIGNS": weight.signs is not None,
        "GROUP": 0 if weight.odds is None else weight.group_size,
        "SUPER": weight.num_inputs // len(weight.scales),
    }
