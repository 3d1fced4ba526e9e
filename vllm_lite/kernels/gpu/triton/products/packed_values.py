"""Packed weights as Triton kernels read them: planes, constants and values.

A kernel takes the weights of either class by `planes_of` and `kind_of`, and 32 inputs at a time.
In groups, a byte's lower or upper bits hold half a chunk, 32 inputs, which one or two groups scale,
so codes need no shuffling. By codebooks, the places of vectors in a book, signs and scales lie side
by side by outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.codebook_weight import CodebookWeight, PackedWeight
from vllm_lite.kernels.grouped_weight import CHUNK

# Inputs of whose values a kernel makes one dot product.
INPUTS = CHUNK // 2
_INPUTS = tl.constexpr(INPUTS)
# Inputs of a group of groups that is a whole row.
ROW = 2**30
_ROW = tl.constexpr(ROW)
_CHUNK = tl.constexpr(CHUNK)


class GroupedPlanes(NamedTuple):
    """The planes of a GroupedWeight; others stand for absent ones, as in BookPlanes."""

    codes: Tensor
    high: Tensor
    scales: Tensor
    minimums: Tensor
    zeros: Tensor
    super_scales: Tensor
    super_minimums: Tensor
    table: Tensor


class BookPlanes(NamedTuple):
    """The planes of a CodebookWeight."""

    codes: Tensor
    high: Tensor
    signs: Tensor
    odds: Tensor
    scales: Tensor
    books: Tensor


@dataclass(frozen=True, slots=True)
class GroupedKind:
    """The constants that kernels of a GroupedWeight are compiled for."""

    bits: int
    offset: int
    group: int
    has_minimums: bool
    has_zeros: bool
    has_table: bool
    super: int
    # Dot products of a step.
    halves: ClassVar[int] = 2
    is_book: ClassVar[bool] = False

    @property
    def tile(self) -> str:
        """The kind of tile that a product takes."""
        return f"int{max(self.bits, 4)}_groups"


@dataclass(frozen=True, slots=True)
class BookKind:
    """The constants that kernels of a CodebookWeight are compiled for."""

    vector: int
    books: int
    high: int
    has_signs: bool
    group: int
    super: int
    halves: ClassVar[int] = 1
    is_book: ClassVar[bool] = True

    @property
    def tile(self) -> str:
        """The kind of tile that a product takes."""
        return "int8_groups" if self.books > 1 else "int4_groups"


def planes_of(weight: PackedWeight) -> GroupedPlanes | BookPlanes:
    """The planes as a kernel's argument."""
    codes, scales = weight.codes, weight.scales

    def plane(given: Tensor | None, stand_in: Tensor = codes) -> Tensor:
        return stand_in if given is None else given

    high = plane(weight.high_codes)
    if isinstance(weight, CodebookWeight):
        signs, odds = plane(weight.signs), plane(weight.odds)
        return BookPlanes(codes, high, signs, odds, scales, weight.books)
    return GroupedPlanes(
        codes,
        high,
        scales,
        plane(weight.minimums, scales),
        plane(weight.zeros),
        plane(weight.super_scales, scales),
        plane(weight.super_minimums, scales),
        plane(weight.table, scales),
    )


def kind_of(weight: PackedWeight) -> GroupedKind | BookKind:
    """The weight's KIND in a kernel."""
    if isinstance(weight, CodebookWeight):
        return BookKind(
            weight.vector,
            len(weight.codes),
            weight.high_bits,
            weight.signs is not None,
            0 if weight.odds is None else weight.group_size,
            weight.num_inputs // len(weight.scales),
        )
    supers = weight.super_scales
    return GroupedKind(
        weight.bits,
        weight.offset,
        weight.group_size,
        weight.minimums is not None,
        weight.zeros is not None,
        weight.table is not None,
        0 if supers is None else weight.super_group if len(supers) > 1 else ROW,
    )


@triton.jit
def _plane_codes(ptr, first, outputs, mask, half: tl.constexpr, BITS: tl.constexpr):
    """The bits of a plane in the codes [32, outputs] of half a chunk."""
    BYTES: tl.constexpr = 8 * BITS
    inside = tl.arange(0, _INPUTS)
    places = outputs[None, :] * BYTES + (inside % BYTES)[:, None]
    packed = tl.load(ptr + first * BYTES + places, mask=mask, other=0).to(tl.int32)
    if BYTES == _INPUTS:
        packed >>= half * BITS
    else:
        packed >>= (((inside // BYTES) * 2 + half) * BITS)[:, None]
    return packed & (2**BITS - 1)


@triton.jit
def _half_codes(
    planes, chunk, half: tl.constexpr, outputs, is_output, num_outputs, BITS: tl.constexpr
):
    """The codes [32, outputs] of half a chunk, as int32."""
    inside = tl.arange(0, _INPUTS)
    # A chunk's bytes fit 32 bits, those of all chunks do not.
    first = (chunk * num_outputs).to(tl.int64)
    mask = is_output[None, :]
    if BITS == 8:
        places = outputs[None, :] * _CHUNK + half * _INPUTS + inside[:, None]
        return tl.load(planes.codes + first * _CHUNK + places, mask=mask, other=0).to(tl.int32)
    else:
        LOW: tl.constexpr = 4 if BITS >= 4 else 2
        codes = _plane_codes(planes.codes, first, outputs, mask, half, LOW)
        if BITS > LOW:
            codes |= _plane_codes(planes.high, first, outputs, mask, half, BITS - LOW) << LOW
        return codes


@triton.jit
def _groups_of(first, GROUP: tl.constexpr, SAME: tl.constexpr):
    """The groups of the 32 inputs from `first` on: one if they share it, else one for each SAME."""
    if GROUP % 32 == 0:
        return first // GROUP + tl.zeros([1], tl.int32)
    else:
        return (first + SAME * tl.arange(0, 32 // SAME)) // GROUP


@triton.jit
def _by_input(x, SAME: tl.constexpr):
    """Each row of x [R, outputs] SAME times: [R * SAME, outputs]."""
    each = tl.broadcast_to(x[:, None, :], [x.shape[0], SAME, x.shape[1]])
    return tl.reshape(each, [x.shape[0] * SAME, x.shape[1]])


@triton.jit
def _by_group(
    ptr,
    super_ptr,
    chunk,
    first,
    outputs,
    is_output,
    num_inputs,
    num_outputs,
    GROUP: tl.constexpr,
    SUPER: tl.constexpr,
):
    """A plane's factors [32 or 1, outputs] float32 for the 32 inputs from `first` on."""
    # Inputs side by side that always have the same factor.
    SAME: tl.constexpr = GROUP if 32 % GROUP == 0 else 1
    groups = _groups_of(first, GROUP, SAME)
    ptrs = ptr + groups[:, None] * num_outputs + outputs[None, :]
    mask = (groups * GROUP < num_inputs)[:, None] & is_output[None, :]
    factors = tl.load(ptrs, mask=mask, other=0).to(tl.float32)
    if SUPER > 0:
        super_ptrs = super_ptr + outputs
        if SUPER < _ROW:
            # One load for both halves of a chunk.
            super_ptrs += chunk * _CHUNK // SUPER * num_outputs
        factors *= tl.load(super_ptrs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    return _by_input(factors, SAME) if SAME > 1 and GROUP % 32 > 0 else factors


@triton.jit
def _grouped_values(
    planes,
    chunk,
    half: tl.constexpr,
    outputs,
    is_output,
    num_inputs,
    num_outputs,
    KIND: tl.constexpr,
):
    first = chunk * _CHUNK + half * _INPUTS
    codes = _half_codes(planes, chunk, half, outputs, is_output, num_outputs, KIND.bits)
    if KIND.has_table:
        values = tl.load(planes.table + codes, mask=is_output[None, :], other=0.0)
    else:
        # In the mantissa of a float from 2**23 on, a code needs no conversion.
        values = (codes | 0x4B000000).to(tl.float32, bitcast=True) - (2.0**23 + KIND.offset)
    where = (chunk, first, outputs, is_output, num_inputs, num_outputs)
    if KIND.has_zeros:
        values -= _by_group(planes.zeros, planes.zeros, *where, KIND.group, 0)
    values *= _by_group(planes.scales, planes.super_scales, *where, KIND.group, KIND.super)
    if KIND.has_minimums:
        values -= _by_group(planes.minimums, planes.super_minimums, *where, KIND.group, KIND.super)
    return values


@triton.jit
def _by_output(ptr, row, outputs, mask, num_outputs):
    """Numbers of rows [32] for outputs [N]: [32, N]."""
    return tl.load(ptr + row[:, None] * num_outputs + outputs[None, :], mask=mask, other=0)


@triton.jit
def _book_values(
    planes, book_place, first, outputs, is_output, num_inputs, num_outputs, KIND: tl.constexpr
):
    inputs = first + tl.arange(0, _INPUTS)
    mask = (inputs < num_inputs)[:, None] & is_output[None, :]
    vectors = inputs // KIND.vector
    count = num_inputs // KIND.vector
    values = tl.zeros([_INPUTS, outputs.shape[0]], tl.float32)
    BOOKS: tl.constexpr = KIND.books
    for book in tl.static_range(BOOKS):
        rows = book * count + vectors
        index = _by_output(planes.codes, rows, outputs, mask, num_outputs).to(tl.int32)
        if KIND.high > 0:
            places = rows * KIND.high // 8
            bits = _by_output(planes.high, places, outputs, mask, num_outputs).to(tl.int32)
            shifts = vectors * KIND.high % 8
            index |= ((bits >> shifts[:, None]) & (2**KIND.high - 1)) << 8
        place = (book * 2 ** (8 + KIND.high) + index) * KIND.vector
        place += (inputs % KIND.vector)[:, None]
        values += tl.load(planes.books + book_place + place, mask=mask, other=0).to(tl.float32)
    if KIND.has_signs:
        eights = first // 8 + tl.arange(0, 4)
        is_eight = (eights * 8 < num_inputs)[:, None] & is_output[None, :]
        signs = _by_output(planes.signs, eights, outputs, is_eight, num_outputs)
        signs = _by_input(signs, 8).to(tl.int32)
        is_negative = (signs >> (inputs % 8)[:, None]) & 1
        values = tl.where(is_negative == 1, -values, values)
    rows = _groups_of(first, KIND.super, 1)
    is_row = (rows * KIND.super < num_inputs)[:, None] & is_output[None, :]
    scales = _by_output(planes.scales, rows, outputs, is_row, num_outputs).to(tl.float32)
    if KIND.group > 0:
        groups = _groups_of(first, KIND.group, 1)
        is_group = (groups * KIND.group < num_inputs)[:, None] & is_output[None, :]
        odds = _by_output(planes.odds, groups // 2, outputs, is_group, num_outputs).to(tl.int32)
        odds = (odds >> (groups % 2 * 4)[:, None]) & 15
        scales *= (2 * odds + 1).to(tl.float32)
    return values * scales


@triton.jit
def values_of(
    planes,
    step,
    half: tl.constexpr,
    outputs,
    is_output,
    num_inputs,
    num_outputs,
    KIND: tl.constexpr,
    book_place=0,
):
    """The values [32, outputs] float32 of a half of a step; undefined beyond the last input.

    `book_place` is the number in `books` at which those of the weight begin.
    """
    if KIND.is_book:
        first = step * _INPUTS
        return _book_values(
            planes, book_place, first, outputs, is_output, num_inputs, num_outputs, KIND
        )
    else:
        return _grouped_values(
            planes, step, half, outputs, is_output, num_inputs, num_outputs, KIND
        )
