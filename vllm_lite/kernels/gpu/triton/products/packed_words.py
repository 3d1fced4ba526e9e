"""Weights in groups as kernels for few rows read them: 16 bytes of codes for a thread at once.

Bits of codes become floats without a conversion: placed in a float's mantissa, a code reads as
itself plus 16 or 256. That excess, the offset, zeros and minimums multiply the sum of a thread's
inputs, so that only codes and inputs meet one by one. A thread's 16 inputs have one factor.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vllm_lite.kernels.gpu.triton.products.few_rows import no_tensors, output_of
from vllm_lite.kernels.grouped_weight import CHUNK

_CHUNK = tl.constexpr(CHUNK)


@triton.jit
def _factor(
    ptr,
    super_ptr,
    inputs,
    chunk_inputs,
    outputs,
    num_outputs,
    GROUP: tl.constexpr,
    SUPER: tl.constexpr,
):
    """A plane's factors [threads] of groups of inputs, as stored: one tensor, or two."""
    factor = no_tensors()
    factor += (tl.load(ptr + inputs // GROUP * num_outputs + outputs),)
    if SUPER > 0:
        # One load for both halves of a chunk.
        factor += (tl.load(super_ptr + chunk_inputs // SUPER * num_outputs + outputs),)
    return factor


@triton.jit
def _value(factor):
    """A factor as float32."""
    value = factor[0].to(tl.float32)
    if len(factor) == 2:
        value *= factor[1].to(tl.float32)
    return value


@triton.jit
def read(
    planes,
    chunk,
    piece,
    lane,
    num_inputs,
    num_outputs,
    KIND: tl.constexpr,
    LANES: tl.constexpr,
    SPAN: tl.constexpr,
    IS_GATED: tl.constexpr,
):
    """Words [threads, 4] of SPAN outputs, and then their factors by halves, as stored.

    A thread has the chunk's bytes from `piece` on. Beyond the last chunk and input are those of
    the last: inputs are zeros there.
    """
    HALVES: tl.constexpr = 8 // KIND.bits
    PIECES: tl.constexpr = KIND.bits // 2
    words_ptr = planes.codes.to(tl.pointer_type(tl.int32))
    last_chunk = tl.cdiv(num_inputs, _CHUNK) - 1
    inside = tl.arange(0, 4)[None, :]
    found = no_tensors()
    for i in tl.static_range(SPAN):
        output = tl.minimum(output_of(i, lane, num_outputs, LANES, SPAN, IS_GATED), num_outputs - 1)
        row = (tl.minimum(chunk, last_chunk) * num_outputs + output).to(tl.int64)
        found += (tl.load(words_ptr + (row * (PIECES * 4) + piece // 4)[:, None] + inside),)
    chunk_first = tl.minimum(chunk, last_chunk) * _CHUNK
    for half in tl.static_range(HALVES):
        first = chunk * _CHUNK + half * (_CHUNK // 2) + piece
        first = tl.minimum(first, num_inputs - 1)
        for i in tl.static_range(SPAN):
            output = output_of(i, lane, num_outputs, LANES, SPAN, IS_GATED)
            output = tl.minimum(output, num_outputs - 1)
            where = (first, chunk_first, output, num_outputs, KIND.group)
            found += _factor(planes.scales, planes.super_scales, *where, KIND.super)
            if KIND.has_zeros:
                found += _factor(planes.zeros, planes.zeros, *where, 0)
            if KIND.has_minimums:
                found += _factor(planes.minimums, planes.super_minimums, *where, KIND.super)
    return found


@triton.jit
def scales_of(factors, excess, KIND: tl.constexpr):
    """Scales [threads], and what a sum of inputs takes from a scaled product by numbers."""
    EACH: tl.constexpr = 2 if KIND.super > 0 else 1
    ZEROS: tl.constexpr = EACH + (1 if KIND.has_zeros else 0)
    scales = _value(factors[:EACH])
    less = scales * (excess + KIND.offset)
    if KIND.has_zeros:
        less += scales * _value(factors[EACH:ZEROS])
    if KIND.has_minimums:
        less += _value(factors[ZEROS:])
    return scales, less


@triton.jit
def _pairs(words):
    """The first two of [threads, 4] words, and the others."""
    return tl.split(tl.permute(tl.reshape(words, [words.shape[0], 2, 2]), [0, 2, 1]))


@triton.jit
def exponents_of(num_outputs):
    """256 and 16 as a float's bits. To the compiler they are not constants.

    So one instruction masks a code and joins them: it can name no two constants.
    """
    is_any = num_outputs > 0
    return tl.where(is_any, 0x43800000, 0), tl.where(is_any, 0x41800000, 0)


@triton.jit
def excess_of(half: tl.constexpr, KIND: tl.constexpr, IS_EXACT: tl.constexpr):
    """The number that is added to each of `numbers_of` a half."""
    if KIND.has_table:
        return 0.0
    else:
        return 16.0 if KIND.bits == 4 and (IS_EXACT or half == 1) else 256.0


@triton.jit
def _number(
    words,
    planes,
    exponents,
    byte: tl.constexpr,
    half: tl.constexpr,
    KIND: tl.constexpr,
    IS_EXACT: tl.constexpr,
):
    """float32 numbers of a byte of int32 words, or of its lower or upper four bits."""
    MASK: tl.constexpr = 2**KIND.bits - 1
    if KIND.has_table:
        # One a thread at a time, so that threads keep what they hold.
        first, second = tl.split((words >> 8 * byte + 4 * half) & MASK)
        return tl.join(tl.load(planes.table + first), tl.load(planes.table + second))
    else:
        # Units are bit 15 of the mantissa of floats from 256 on, and bit 19 of those from 16 on:
        # in these places both halves of a byte take the same shift.
        is_high: tl.constexpr = KIND.bits == 4 and (IS_EXACT or half == 1)
        TO: tl.constexpr = 19 if is_high else 15
        FROM: tl.constexpr = 8 * byte + 4 * half
        bits = words >> FROM - TO if FROM > TO else words << TO - FROM
        bits = (bits & (MASK << TO)) | exponents[1 if is_high else 0]
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def numbers_of(
    words, planes, exponents, half: tl.constexpr, KIND: tl.constexpr, IS_EXACT: tl.constexpr
):
    """float32 numbers of words [threads, 4] or a half of them, plus `excess_of`.

    A tuple of 8 tensors [threads, 2]: bytes 0 to 3 of the first two words, and of the others.
    With IS_EXACT the excess is small, for inputs of float32.
    """
    pairs = _pairs(words)
    numbers = no_tensors()
    for i in tl.static_range(8):
        numbers += (_number(pairs[i // 4], planes, exponents, i % 4, half, KIND, IS_EXACT),)
    return numbers
