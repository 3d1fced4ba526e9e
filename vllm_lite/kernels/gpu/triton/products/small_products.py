"""Products of few rows by weights in groups, in Triton: for decoding.

A thread multiplies 16 bytes of codes of several outputs by the same inputs, and asks for the next
ones before.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.codebook_weight import PackedWeight
from vllm_lite.kernels.gpu.triton.chained import wait_for_inputs
from vllm_lite.kernels.gpu.triton.products.few_rows import (
    CutLimits,
    by_four,
    multiply,
    no_tensors,
    places_of,
    store_totals,
    sum_of_products,
    totals_of,
)
from vllm_lite.kernels.gpu.triton.products.packed_values import kind_of, planes_of
from vllm_lite.kernels.gpu.triton.products.packed_words import (
    excess_of,
    exponents_of,
    numbers_of,
    read,
    scales_of,
)
from vllm_lite.kernels.grouped_weight import CHUNK, GroupedWeight

# Most rows of a product. Measured on an H200 (`few_rows`): tiles have 0.6 times its speed at four
# rows, and 1.05 times at eight.
MOST_ROWS = 4
_CHUNK = tl.constexpr(CHUNK)
_PIECE = tl.constexpr(16)  # bytes of a thread's load
_WARPS = 4
_THREADS = tl.constexpr(32 * _WARPS)


@triton.jit
def _inputs(x_ptr, inputs, num_inputs):
    """Inputs [threads, 16] from `inputs` [threads, 8] on: a tuple of 8 tensors [threads, 2]."""
    low = tl.load(x_ptr + inputs, mask=inputs < num_inputs, other=0.0)
    high = tl.load(x_ptr + inputs + 8, mask=inputs + 8 < num_inputs, other=0.0)
    return by_four(low.to(tl.float32)) + by_four(high.to(tl.float32))


@triton.jit
def _added(xs):
    """The sums [threads] of tensors [threads, 2]."""
    total = xs[0]
    for i in tl.static_range(1, 8):
        total += xs[i]
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
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
    LANES: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    IS_EXACT: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    IS_GATED: tl.constexpr = ACTIVATION != ""
    HALVES: tl.constexpr = 8 // KIND.bits
    # An output's codes of a chunk lie side by side, in PIECES, and those of the next output follow.
    PIECES: tl.constexpr = KIND.bits // 2
    CHUNKS: tl.constexpr = _THREADS // (PIECES * LANES)
    threads = tl.arange(0, _THREADS)
    piece = threads % PIECES * _PIECE
    lane = threads // PIECES % LANES
    chunks = threads // (PIECES * LANES)
    exponents = exponents_of(num_outputs)
    sums = no_tensors()
    for _ in tl.static_range(ROWS * SPAN):
        sums += (tl.zeros([_THREADS], tl.float32),)
    FACTORS: tl.constexpr = (1 if KIND.has_zeros else 0) + (
        (2 if KIND.super > 0 else 1) * (2 if KIND.has_minimums else 1)
    )
    where = (piece, lane, num_inputs, num_outputs)
    step = tl.program_id(1) * steps
    last_step = step + steps - 1
    stored = read(planes, step * CHUNKS + chunks, *where, KIND, LANES, SPAN, IS_GATED)
    wait_for_inputs(IS_CHAINED)
    for _ in range(steps):
        chunk = step * CHUNKS + chunks
        step = tl.minimum(step + 1, last_step)
        next_stored = read(planes, step * CHUNKS + chunks, *where, KIND, LANES, SPAN, IS_GATED)
        for half in tl.static_range(HALVES):
            first = chunk * _CHUNK + half * (_CHUNK // 2) + piece
            numbers = no_tensors()
            scales = no_tensors()
            for i in tl.static_range(SPAN):
                numbers += (numbers_of(stored[i], planes, exponents, half, KIND, IS_EXACT),)
                factors = stored[
                    SPAN + (half * SPAN + i) * FACTORS : SPAN + (half * SPAN + i + 1) * FACTORS
                ]
                scales += (scales_of(factors, excess_of(half, KIND, IS_EXACT), KIND),)
            new_sums = no_tensors()
            for j in tl.static_range(ROWS):
                x_row = x_ptr + tl.minimum(j, num_rows - 1).to(tl.int64) * x_stride
                xs = _inputs(x_row, first[:, None] + tl.arange(0, 8)[None, :], num_inputs)
                x_sum = _added(xs)
                for i in tl.static_range(SPAN):
                    scale, less = scales[i]
                    product = sum_of_products(numbers[i], xs)
                    new_sums += (sums[j * SPAN + i] + scale * product - less * x_sum,)
            sums = new_sums
        stored = next_stored
    totals = totals_of(sums, LANES, PIECES)
    outputs, rows = places_of(num_outputs, LANES, SPAN, ROWS, IS_GATED)
    store_totals(
        out_ptr, totals, outputs, rows, bias_ptr, num_rows, num_outputs, HAS_BIAS, SPAN, ACTIVATION
    )


def takes(weight: PackedWeight, num_rows: int) -> TypeGuard[GroupedWeight]:
    """Whether `small_product` multiplies that many rows by the weight."""
    return (
        isinstance(weight, GroupedWeight) and weight.bits in (4, 8) and 1 <= num_rows <= MOST_ROWS
    )


def small_product(
    x: Tensor,
    weight: GroupedWeight,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    activation: str = "",
) -> Tensor:
    """x [T, N] @ weight [M, N].T + bias [M]: [T, M]; T up to MOST_ROWS.

    Columns of x are in the order of the weight's planes. With an activation, the result is
    act_and_mul's, [T, M / 2].
    """
    bits = weight.bits
    # Inputs are converted once for a span.
    spans = (4, 2 if activation or x.shape[0] > 2 else 1)
    return multiply(
        small_products_kernel,
        x,
        (weight.num_outputs, weight.num_inputs),
        CutLimits(_WARPS, bits, (64 // bits, 8 // bits), spans),
        (planes_of(weight),),
        bias,
        out_dtype,
        activation,
        KIND=kind_of(weight),
    )
