"""Products of few rows by plain weights of 16 bits, in Triton: for decoding.

A thread reads 16 bytes of several outputs at once, the next ones before it multiplies these, and
each byte is read once for all rows. The first ones it reads before the kernel in front has ended.
It may normalise the rows (`input_norm`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.triton.chained import wait_for_inputs
from vllm_lite.kernels.gpu.triton.elementwise import act_and_mul
from vllm_lite.kernels.gpu.triton.norm import fused_add_rms_norm, rms_norm
from vllm_lite.kernels.gpu.triton.products.few_rows import (
    CutLimits,
    by_four,
    multiply,
    no_tensors,
    output_of,
    places_of,
    store_totals,
    sum_of_products,
    totals_of,
)
from vllm_lite.kernels.gpu.triton.products.input_norm import (
    norm_operand,
    norm_weights,
    normed_inputs,
    row_factor,
)
from vllm_lite.kernels.reference.norm import InputNorm

# Most rows that are multiplied here. Measured on an H200 (`few_rows`): 4 % faster than torch's
# library for one, 2 % slower for two, which can be chained here, and 23 % slower for four.
MOST_ROWS = 2
_WARPS = 8
_BYTES = 16  # of a thread's read
_THREADS = tl.constexpr(32 * _WARPS)


@triton.jit
def _read(ptr, first, end, lane, num_outputs, stride, LANES, SPAN: tl.constexpr, IS_GATED):
    """16 bytes of SPAN outputs from input `first` on, as they are stored; zeros from `end` on."""
    EACH: tl.constexpr = 128 // ptr.dtype.element_ty.primitive_bitwidth
    found = no_tensors()
    mask = (first < end)[:, None]
    for i in tl.static_range(SPAN):
        output = tl.minimum(output_of(i, lane, num_outputs, LANES, SPAN, IS_GATED), num_outputs - 1)
        place = output.to(tl.int64) * stride + first
        places = place[:, None] + tl.arange(0, EACH)[None, :]
        found += (tl.load(ptr + places, mask=mask, other=0, eviction_policy="evict_first"),)
    return found


@triton.jit
def row_products_kernel(
    out_ptr,
    x_ptr,
    weight_ptr,
    weight_stride,
    norm,
    bias_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    steps,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
    LANES: tl.constexpr,
    NORM: tl.constexpr,
    PIECE: tl.constexpr,
    IS_CHAINED: tl.constexpr,
):
    IS_GATED: tl.constexpr = ACTIVATION != ""
    EACH: tl.constexpr = 128 // weight_ptr.dtype.element_ty.primitive_bitwidth
    SLOTS: tl.constexpr = _THREADS // LANES
    STEP: tl.constexpr = SLOTS * EACH
    threads = tl.arange(0, _THREADS)
    lane = threads // SLOTS
    first = threads % SLOTS * EACH + tl.program_id(1) * steps * STEP
    end = tl.minimum(num_inputs, (tl.program_id(1) + 1) * steps * STEP)
    sums = no_tensors()
    for _ in tl.static_range(SPAN * ROWS):
        sums += (tl.zeros([_THREADS], tl.float32),)
    where = (end, lane, num_outputs, weight_stride)
    inputs = first[:, None] + tl.arange(0, EACH)[None, :]
    stored = _read(weight_ptr, first, *where, LANES, SPAN, IS_GATED)
    weights = norm_weights(norm, inputs, end, NORM)
    wait_for_inputs(IS_CHAINED)
    factors = no_tensors()
    for j in tl.static_range(ROWS):
        row = tl.minimum(j, num_rows - 1).to(tl.int64)
        factors += (row_factor(x_ptr + row * x_stride, norm, row, num_inputs, NORM, PIECE),)
    for _ in range(steps):
        next_stored = _read(weight_ptr, first + STEP, *where, LANES, SPAN, IS_GATED)
        next_weights = norm_weights(norm, inputs + STEP, end, NORM)
        xs = no_tensors()
        for j in tl.static_range(ROWS):
            row = tl.minimum(j, num_rows - 1).to(tl.int64)
            x_row = x_ptr + row * x_stride
            told = (norm, row, inputs, num_inputs, end, weights, factors[j])
            xs += by_four(normed_inputs(x_row, *told, NORM))
        new_sums = no_tensors()
        for i in tl.static_range(SPAN):
            numbers = by_four(stored[i].to(tl.float32))
            for j in tl.static_range(ROWS):
                product = sum_of_products(numbers, xs[4 * j : 4 * j + 4])
                new_sums += (sums[i * ROWS + j] + product,)
        sums = new_sums
        stored = next_stored
        weights = next_weights
        first += STEP
        inputs += STEP
    by_rows = no_tensors()
    for j in tl.static_range(ROWS):
        for i in tl.static_range(SPAN):
            by_rows += (sums[i * ROWS + j],)
    totals = totals_of(by_rows, LANES, SLOTS)
    outputs, rows = places_of(num_outputs, LANES, SPAN, ROWS, IS_GATED)
    store_totals(
        out_ptr, totals, outputs, rows, bias_ptr, num_rows, num_outputs, HAS_BIAS, SPAN, ACTIVATION
    )


def takes(weight: Tensor, num_rows: int) -> bool:
    """Whether `plain_linear` multiplies that many rows by weight [M, N] by the kernel here."""
    each = _BYTES // weight.itemsize
    is_whole = weight.shape[1] % each == 0 and weight.stride(0) % each == 0
    return is_whole and weight.itemsize == 2 and 1 <= num_rows <= MOST_ROWS


def plain_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    activation: str = "",
) -> Tensor:
    if takes(weight, x.shape[0]):
        return _of_few(x, weight, bias, out_dtype, activation)[0]
    product = _torch_product(x, weight, bias, out_dtype)
    return act_and_mul(product, activation) if activation else product


def normed_plain_linear(
    x: Tensor,
    norm: InputNorm,
    weight: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    activation: str = "",
) -> tuple[Tensor, Tensor]:
    is_dense = norm.residual is None or norm.residual.is_contiguous()
    if is_dense and takes(weight, x.shape[0]):
        return _of_few(x, weight, bias, out_dtype, activation, norm)
    normed, total = norm.apply(x, rms_norm, fused_add_rms_norm)
    return plain_linear(normed, weight, bias, out_dtype, activation), total


def _of_few(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    activation: str,
    norm: InputNorm | None = None,
) -> tuple[Tensor, Tensor]:
    normalising, constants = norm_operand(x, norm)
    product = multiply(
        row_products_kernel,
        x,
        (weight.shape[0], weight.shape[1]),
        CutLimits(_WARPS, 16, (2, 1), (8 if x.shape[0] == 1 else 4, 2 if activation else 1)),
        (weight, weight.stride(0), normalising),
        bias,
        out_dtype,
        activation,
        **constants,
    )
    return product, normalising.total


def _torch_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    if x.device.type != "cuda" or out_dtype is weight.dtype:
        return torch.nn.functional.linear(x, weight, bias).to(out_dtype)
    # Rounding to the weight's type and back would create ties.
    product = torch.mm(x, weight.t(), out_dtype=out_dtype)
    return product if bias is None else product.add_(bias.to(out_dtype))
