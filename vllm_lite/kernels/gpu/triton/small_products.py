"""Products of few rows by weights in groups, in Triton: for decoding.

A program has some outputs and a part of the inputs. Its warps take a chunk each at a time, and a
thread multiplies 16 bytes of codes of several outputs by the same inputs; sums of float32 stay in
the thread until the end. The next chunk's codes are asked for before this one's are multiplied.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.codebook_weight import PackedWeight
from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton.linear import add_parts, new_parts
from vllm_lite.kernels.gpu.triton.packed_values import kind_of, planes_of
from vllm_lite.kernels.gpu.triton.packed_words import (
    WARP,
    excess_of,
    exponents_of,
    no_tensors,
    numbers_of,
    read,
    scales_of,
)
from vllm_lite.kernels.grouped_weight import CHUNK, GroupedWeight

# Most rows of a product; a program has at most half of them.
MOST_ROWS = 8
_ROWS = 4
# Chunks of a step, one for each warp, and outputs of a thread.
_WARPS = 4
_SPAN = 4
# Programs for each processor, and parts of a sum.
_PROGRAMS = 4
_MOST_PARTS = 16

_CHUNK = tl.constexpr(CHUNK)
_PIECE = tl.constexpr(16)  # bytes of a thread's load


@triton.jit
def _by_byte(x):
    """Inputs [threads, 8] of two words as four tensors [threads, 2], one for each byte."""
    even, odd = tl.split(tl.reshape(x, [x.shape[0], 2, 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _inputs(x_ptr, inputs, num_inputs):
    """Inputs [threads, 16] from `inputs` [threads, 8] on: a tuple of 8 tensors [threads, 2]."""
    low = tl.load(x_ptr + inputs, mask=inputs < num_inputs, other=0.0)
    high = tl.load(x_ptr + inputs + 8, mask=inputs + 8 < num_inputs, other=0.0)
    return _by_byte(low.to(tl.float32)) + _by_byte(high.to(tl.float32))


@triton.jit
def _added(xs):
    """The sums [threads] of tensors [threads, 2]."""
    total = xs[0]
    for i in tl.static_range(1, 8):
        total += xs[i]
    return tl.sum(total, axis=1)


@triton.jit
def _product(numbers, xs):
    """The sums [threads] of products of eight tensors each."""
    total = numbers[0] * xs[0]
    for i in tl.static_range(1, 8):
        total += numbers[i] * xs[i]
    return tl.sum(total, axis=1)


@triton.jit
def small_products_kernel(
    out_ptr,
    x_ptr,
    planes,
    bias_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    steps,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
    WARPS: tl.constexpr,
):
    IS_EXACT: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    HALVES: tl.constexpr = 8 // KIND.bits
    # A warp has a chunk of LANES outputs; their codes lie side by side, in PIECES.
    PIECES: tl.constexpr = KIND.bits // 2
    LANES: tl.constexpr = WARP // PIECES
    THREADS: tl.constexpr = WARP * WARPS
    part = tl.program_id(1)
    row = tl.program_id(2) * ROWS
    first_output = tl.program_id(0) * (LANES * SPAN)
    threads = tl.arange(0, THREADS)
    piece = threads % PIECES * _PIECE
    lane = first_output + threads // PIECES % LANES
    exponents = exponents_of(num_outputs)
    sums = no_tensors()
    for _ in tl.static_range(ROWS * SPAN):
        sums += (tl.zeros([THREADS], tl.float32),)
    FACTORS: tl.constexpr = (1 if KIND.has_zeros else 0) + (
        (2 if KIND.super > 0 else 1) * (2 if KIND.has_minimums else 1)
    )
    where = (piece, lane, num_inputs, num_outputs)
    step = part * steps
    last_step = step + steps - 1
    stored = read(planes, step * WARPS + threads // WARP, *where, KIND, SPAN)
    for _ in range(steps):
        chunk = step * WARPS + threads // WARP
        step = tl.minimum(step + 1, last_step)
        next_stored = read(planes, step * WARPS + threads // WARP, *where, KIND, SPAN)
        for half in tl.static_range(HALVES):
            first = chunk * _CHUNK + half * (_CHUNK // 2) + piece
            xs = no_tensors()
            x_sums = no_tensors()
            for j in tl.static_range(ROWS):
                x_row = x_ptr + tl.minimum(row + j, num_rows - 1).to(tl.int64) * x_stride
                x = _inputs(x_row, first[:, None] + tl.arange(0, 8)[None, :], num_inputs)
                xs += (x,)
                x_sums += (_added(x),)
            new_sums = no_tensors()
            for i in tl.static_range(SPAN):
                numbers = numbers_of(stored[i], planes, exponents, half, KIND, IS_EXACT)
                factors = stored[
                    SPAN + (half * SPAN + i) * FACTORS : SPAN + (half * SPAN + i + 1) * FACTORS
                ]
                scales, less = scales_of(factors, excess_of(half, KIND, IS_EXACT), KIND)
                for j in tl.static_range(ROWS):
                    product = _product(numbers, xs[j])
                    new_sums += (sums[i * ROWS + j] + scales * product - less * x_sums[j],)
            sums = new_sums
        stored = next_stored
    out_ptr += part.to(tl.int64) * num_rows * num_outputs
    for i in tl.static_range(SPAN):
        outputs = first_output + i * LANES + tl.arange(0, LANES)
        is_output = outputs < num_outputs
        for j in tl.static_range(ROWS):
            by_lane = tl.reshape(sums[i * ROWS + j], [WARPS, LANES, PIECES])
            total = tl.sum(tl.sum(by_lane, axis=2), axis=0)
            if HAS_BIAS:
                total += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)
            if row + j < num_rows:
                place = (row + j).to(tl.int64) * num_outputs + outputs
                tl.store(out_ptr + place, total, mask=is_output)


def takes(weight: PackedWeight, num_rows: int) -> TypeGuard[GroupedWeight]:
    """Whether `small_product` multiplies that many rows by the weight."""
    return (
        isinstance(weight, GroupedWeight) and weight.bits in (4, 8) and 1 <= num_rows <= MOST_ROWS
    )


def small_product(
    x: Tensor, weight: GroupedWeight, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    """x [T, N] @ weight [M, N].T + bias [M]: [T, M]; T up to MOST_ROWS.

    Columns of x are in the order of the weight's planes.
    """
    num_rows, num_outputs, num_inputs = len(x), weight.num_outputs, weight.num_inputs
    rows = min(triton.next_power_of_2(num_rows), _ROWS)
    row_tiles = triton.cdiv(num_rows, rows)
    tiles = triton.cdiv(num_outputs, 64 // weight.bits * _SPAN)
    steps = triton.cdiv(num_inputs, CHUNK * _WARPS)
    wanted = _PROGRAMS * tuning.processor_count(x.device) // (tiles * row_tiles)
    parts = max(1, min(wanted, steps, _MOST_PARTS))
    part_steps = triton.cdiv(steps, parts)
    parts = triton.cdiv(steps, part_steps)
    out = x.new_empty((num_rows, num_outputs), dtype=out_dtype)
    to = new_parts(out, parts)
    small_products_kernel[(tiles, parts, row_tiles)](
        to,
        x,
        planes_of(weight),
        out if bias is None else bias,
        num_rows,
        num_outputs,
        num_inputs,
        x.stride(0),
        part_steps,
        KIND=kind_of(weight),
        HAS_BIAS=bias is not None and parts == 1,
        ROWS=rows,
        SPAN=_SPAN,
        WARPS=_WARPS,
        num_warps=_WARPS,
    )
    if parts > 1:
        add_parts(out, to, bias)
    return out
