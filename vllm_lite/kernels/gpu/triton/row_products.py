"""Products of few rows by weights stored row by row, in Triton: for decoding.

Weights and inputs are of one type of 8, 16 or 32 bits; of 8 bits both have scales, for each row
and output or for their groups. A thread reads 16 bytes of several outputs at once, the next ones
before it multiplies these, and each byte is read once for all rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton.elementwise import act_and_mul
from vllm_lite.kernels.gpu.triton.few_rows import (
    THREADS,
    by_four,
    multiply,
    no_tensors,
    output_of,
    places_of,
    store_totals,
    totals_of,
)
from vllm_lite.kernels.gpu.triton.quantize import E4M3, INT8, as_stored, decode, format_of
from vllm_lite.kernels.reference.scaled_linear import outputs_per_scale

# Most rows that are multiplied here by weights of a type, none by others. Not measured yet: torch's
# library has 16-bit weights until then, and of bytes more rows take longer to convert than weights
# to read.
MOST_ROWS_OF = {torch.int8: 4, torch.float8_e4m3fn: 4, torch.float8_e5m2: 4}
# A warp's threads are in one lane, so that it reads what lies side by side.
_LANES = (4, 1)
_BYTES = 16  # of a thread's read
_THREADS = tl.constexpr(THREADS)


@triton.jit
def as_operand(codes, FORMAT: tl.constexpr, IS_NATIVE: tl.constexpr):
    """Codes as what instructions take; fp8 that none takes becomes float16, exactly."""
    if FORMAT == 0 or FORMAT == INT8:
        return codes
    elif not IS_NATIVE:
        return decode(codes, FORMAT)
    elif FORMAT == E4M3:
        return codes.to(tl.float8e4nv, bitcast=True)
    else:
        return codes.to(tl.float8e5, bitcast=True)


@triton.jit
def _of_words(words, byte: tl.constexpr, FORMAT: tl.constexpr):
    """A byte of int32 words as float32: int8 itself, fp8 with its exponent's bits in place.

    The bias is float32's then, so that E4M3 is 2**120 times too small, E5M2 2**112 times. What is
    not finite in fp8 is finite here: weights are.
    """
    top = words << 24 - 8 * byte
    if FORMAT == INT8:
        return (top >> 24).to(tl.float32)
    else:
        # The sign's bit is kept, and its copies are not.
        bits = (top >> 4) & -0x78100000 if FORMAT == E4M3 else (top >> 3) & -0x70200000
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def _weights(stored, FORMAT: tl.constexpr):
    """Stored numbers of a thread as four tensors of float32, as `by_four` has them."""
    if FORMAT == 0:
        return by_four(stored.to(tl.float32))
    else:
        numbers = no_tensors()
        for byte in tl.static_range(4):
            numbers += (_of_words(stored, byte, FORMAT),)
        return numbers


@triton.jit
def _inputs(stored, FORMAT: tl.constexpr, IS_NATIVE: tl.constexpr):
    """Inputs as four tensors of float32; fp8 2**119 or 2**112 times as large, to fit weights."""
    x = as_operand(stored, FORMAT, IS_NATIVE).to(tl.float32)
    if FORMAT > INT8:
        x *= 2.0**119 if FORMAT == E4M3 else 2.0**112
    return by_four(x)


@triton.jit
def _read(ptr, first, end, lane, num_outputs, stride, LANES, SPAN: tl.constexpr, IS_GATED):
    """16 bytes of SPAN outputs from input `first` on, as they are stored; zeros from `end` on.

    Bytes come in words of four.
    """
    IS_BYTES: tl.constexpr = ptr.dtype.element_ty.primitive_bitwidth == 8
    EACH: tl.constexpr = 4 if IS_BYTES else 128 // ptr.dtype.element_ty.primitive_bitwidth
    words_ptr = ptr.to(tl.pointer_type(tl.int32)) if IS_BYTES else ptr
    size: tl.constexpr = 4 if IS_BYTES else 1
    found = no_tensors()
    mask = (first < end)[:, None]
    for i in tl.static_range(SPAN):
        output = tl.minimum(output_of(i, lane, num_outputs, LANES, SPAN, IS_GATED), num_outputs - 1)
        place = (output.to(tl.int64) * stride + first) // size
        places = place[:, None] + tl.arange(0, EACH)[None, :]
        found += (tl.load(words_ptr + places, mask=mask, other=0),)
    return found


@triton.jit
def _product(numbers, xs):
    total = numbers[0] * xs[0]
    for i in tl.static_range(1, 4):
        total += numbers[i] * xs[i]
    return tl.sum(total, axis=1)


@triton.jit
def row_products_kernel(
    out_ptr,
    x_ptr,
    x_scales_ptr,
    weight_ptr,
    weight_scales_ptr,
    weight_stride,
    x_scale_row_stride,
    num_groups,
    outputs_per_scale,
    bias_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    steps,
    GROUP: tl.constexpr,
    FORMAT: tl.constexpr,
    IS_NATIVE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
    LANES: tl.constexpr,
):
    IS_GATED: tl.constexpr = ACTIVATION != ""
    EACH: tl.constexpr = 128 // weight_ptr.dtype.element_ty.primitive_bitwidth
    SLOTS: tl.constexpr = _THREADS // LANES
    STEP: tl.constexpr = SLOTS * EACH
    LEFT: tl.constexpr = 2.0 if FORMAT == E4M3 else 1.0  # see `_inputs`
    threads = tl.arange(0, _THREADS)
    lane = threads // SLOTS
    first = threads % SLOTS * EACH + tl.program_id(1) * steps * STEP
    end = tl.minimum(num_inputs, (tl.program_id(1) + 1) * steps * STEP)
    sums = no_tensors()
    for _ in tl.static_range(SPAN * ROWS):
        sums += (tl.zeros([_THREADS], tl.float32),)
    where = (end, lane, num_outputs, weight_stride)
    stored = _read(weight_ptr, first, *where, LANES, SPAN, IS_GATED)
    for _ in range(steps):
        next_stored = _read(weight_ptr, first + STEP, *where, LANES, SPAN, IS_GATED)
        numbers = no_tensors()
        scales = no_tensors()
        for i in tl.static_range(SPAN):
            numbers += (_weights(stored[i], FORMAT),)
            if GROUP > 0:
                output = output_of(i, lane, num_outputs, LANES, SPAN, IS_GATED)
                place = output // outputs_per_scale * num_groups + first // GROUP
                is_there = (output < num_outputs) & (first < end)
                scales += (tl.load(weight_scales_ptr + place, mask=is_there, other=0.0),)
        new_sums = no_tensors()
        for j in tl.static_range(ROWS):
            row = tl.minimum(j, num_rows - 1).to(tl.int64)
            inputs = first[:, None] + tl.arange(0, EACH)[None, :]
            x = tl.load(x_ptr + row * x_stride + inputs, mask=(first < end)[:, None], other=0)
            xs = _inputs(x, FORMAT, IS_NATIVE)
            if GROUP > 0:
                place = row * x_scale_row_stride + first // GROUP
                x_scale = LEFT * tl.load(x_scales_ptr + place, mask=first < end, other=0.0)
            for i in tl.static_range(SPAN):
                product = _product(numbers[i], xs)
                if GROUP > 0:
                    product *= x_scale * scales[i]
                new_sums += (sums[j * SPAN + i] + product,)
        sums = new_sums
        stored = next_stored
        first += STEP
    if FORMAT == INT8 and GROUP == 0:
        # Exact so far: up to 33,000 inputs a thread's sum is below 2**24.
        whole = no_tensors()
        for i in tl.static_range(SPAN * ROWS):
            whole += (sums[i].to(tl.int32),)
        sums = whole
    totals = totals_of(sums, LANES, SLOTS).to(tl.float32)
    outputs, rows = places_of(num_outputs, LANES, SPAN, ROWS, IS_GATED)
    if FORMAT > 0 and GROUP == 0:
        is_row = rows < num_rows
        totals *= LEFT * tl.load(x_scales_ptr + rows * x_scale_row_stride, mask=is_row, other=0.0)
        place = outputs // outputs_per_scale
        totals *= tl.load(weight_scales_ptr + place, mask=outputs < num_outputs, other=0.0)
    store_totals(
        out_ptr, totals, outputs, rows, bias_ptr, num_rows, num_outputs, HAS_BIAS, SPAN, ACTIVATION
    )


def takes(weight: Tensor, num_rows: int, num_groups: int = 1) -> bool:
    """Whether `row_product` multiplies that many rows by weight [M, N], with groups of inputs."""
    num_inputs, each = weight.shape[1], _BYTES // weight.itemsize
    is_whole = num_inputs % (num_groups * each) == 0 and weight.stride(0) % each == 0
    return is_whole and 1 <= num_rows <= MOST_ROWS_OF.get(weight.dtype, 0)


def row_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    activation: str,
    x_scales: Tensor | None = None,
    weight_scales: Tensor | None = None,
) -> Tensor:
    """As `scaled_linear` with scales, else as `plain_linear`, of rows that it `takes`."""
    stored, group = as_stored(weight), 0
    operands = (x, stored, x, stored.stride(0), 0, 1, 1)
    if x_scales is not None and weight_scales is not None:
        num_groups = weight_scales.shape[1]
        group = weight.shape[1] // num_groups if num_groups > 1 else 0
        stride = x_scales.stride(0) if len(x_scales) > 1 else 0
        shared = outputs_per_scale(len(weight), weight_scales)
        scales = (x_scales, stored, weight_scales)
        operands = (*scales, stored.stride(0), stride, num_groups, shared)
    return multiply(
        row_products_kernel,
        as_stored(x),
        (len(weight), weight.shape[1]),
        8 * weight.itemsize,
        _LANES,
        operands,
        bias,
        out_dtype,
        activation,
        GROUP=group,
        FORMAT=format_of(weight.dtype),
        IS_NATIVE=tuning.has_float8(x.device),
    )


def plain_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    activation: str = "",
) -> Tensor:
    if takes(weight, len(x)):
        return row_product(x, weight, bias, out_dtype, activation)
    product = _torch_product(x, weight, bias, out_dtype)
    return act_and_mul(product, activation) if activation else product


def _torch_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    if x.device.type != "cuda" or out_dtype is weight.dtype:
        return torch.nn.functional.linear(x, weight, bias).to(out_dtype)
    # Rounding to the weight's type and back would create ties.
    product = torch.mm(x, weight.t(), out_dtype=out_dtype)
    return product if bias is None else product.add_(bias.to(out_dtype))
