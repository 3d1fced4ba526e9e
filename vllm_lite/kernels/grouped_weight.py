"""Weights as codes of few bits with scales of groups of inputs, in one layout for all formats.

A code is an integer, or the place of a value in a table (fp8, fp4, nf4, ...). GGUF's blocks, AWQ,
GPTQ and all others become the planes of a `GroupedWeight`, which keep every value exact and lie
as a matrix product reads them: chunks of 64 inputs, in them all outputs, in them the chunk's
codes. Knows no kernel, no file and no layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.kernels.pieces import rows_at_once

CHUNK = 64
# Inputs that share a super-scale.
SUPER_GROUP = 256
# Kernels read scales for as many inputs: other groups are padded to multiples of it.
GROUP_MULTIPLE = 16
# Smaller ones, padded, would take as much memory as bfloat16 or more: they are only expanded.
LEAST_GROUP = 8


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A weight [M, N]: scale * (number - zero) - minimum, by groups of `group_size` inputs.

    A number is code - offset, or table[code]. Codes have 2, 3, 4, 5, 6 or 8 bits. G is
    N / group_size and C is N / 64, rounded up: the last group may be shorter. With super_scales,
    scales are bytes (minimums too), multiplied by super_scales (and super_minimums).
    """

    codes: Tensor  # [C, M, 8 * bits] uint8, see `_write_plane`: all 8 bits, or the low 4 or 2
    high_codes: Tensor | None  # [C, M, 8 * bits] uint8: the bits above the fourth, or the third
    scales: Tensor  # [G, M] floats (float8_e4m3fn and float8_e8m0fnu too); or int8 or uint8
    minimums: Tensor | None  # [G, M], as scales
    zeros: Tensor | None  # [G, M] uint8, or floats
    super_scales: Tensor | None  # [N / 256, M] float16, N a multiple of 256; or [1, M] float32
    super_minimums: Tensor | None  # as super_scales
    permutation: Tensor | None  # [N] int64: which input a column of the weight multiplies
    table: Tensor | None  # [2**bits] float32
    bits: int
    offset: int
    group_size: int
    num_outputs: int
    num_inputs: int  # with num_padded
    # Columns that fill groups; they multiply nothing, and their input is one beyond the last.
    num_padded: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return sum(plane.nbytes for plane in self.planes() if plane is not None)

    def planes(self) -> tuple[Tensor | None, ...]:
        """All tensors, in the order of the fields."""
        scaling = (self.scales, self.minimums, self.zeros, self.super_scales, self.super_minimums)
        return (self.codes, self.high_codes, *scaling, self.permutation, self.table)

    @property
    def kind(self) -> str:
        """A name for the log."""
        return f"{'int' if self.table is None else 'float'}{self.bits} groups"

    @property
    def row_size(self) -> int:
        """Inputs of a row: where columns are padded, with zeros up to a multiple of 16."""
        size = self.num_inputs - self.num_padded
        return size // GROUP_MULTIPLE * GROUP_MULTIPLE + GROUP_MULTIPLE if self.num_padded else size

    @property
    def super_group(self) -> int:
        """Inputs that share a super-scale."""
        return (
            SUPER_GROUP if self.super_scales is None else self.num_inputs // len(self.super_scales)
        )


def make_grouped(
    codes: Tensor,
    scales: Tensor,
    bits: int,
    offset: int = 0,
    *,
    minimums: Tensor | None = None,
    zeros: Tensor | None = None,
    super_scales: Tensor | None = None,
    super_minimums: Tensor | None = None,
    permutation: Tensor | None = None,
    table: Tensor | None = None,
    group_size: int | None = None,
) -> GroupedWeight:
    """Make a weight of codes [M, N] uint8 below 2**bits; other planes are [M, G] or [M, S].

    A group has `group_size` inputs, by default N / G, or is a whole row; several of 8 and more are
    padded to a multiple of 16 inputs. Raises ValueError for planes that contradict each other.
    """
    num_outputs, num_inputs = codes.shape
    num_groups = scales.shape[1]
    size = num_inputs // max(1, num_groups) if group_size is None else group_size
    if size < 1 or -(-num_inputs // size) != num_groups:
        raise ValueError(f"{num_inputs} inputs in {num_groups} groups")
    if super_scales is not None and super_scales.shape[1] not in (1, num_inputs / SUPER_GROUP):
        raise ValueError(f"{num_inputs} inputs in {super_scales.shape[1]} groups of groups")
    if bits not in _LOW_BITS:
        raise ValueError(f"codes of {bits} bits")
    if table is not None and (offset or table.shape != (2**bits,)):
        raise ValueError(f"a table of {table.numel()} values for codes of {bits} bits")
    for plane in (scales, minimums, zeros):
        if plane is not None and plane.shape != (num_outputs, num_groups):
            raise ValueError(f"scales or zero points {list(plane.shape)} of {num_outputs} outputs")
    num_padded = 0
    if num_groups > 1 and size >= LEAST_GROUP and size % GROUP_MULTIPLE:
        codes, permutation = _padded(codes, permutation, size)
        num_padded = codes.shape[1] - num_inputs
        size = codes.shape[1] // num_groups
    low, high = _planes(codes, bits)
    return GroupedWeight(
        codes=low,
        high_codes=high,
        scales=scales.T.contiguous(),
        minimums=_turned(minimums),
        zeros=_turned(zeros),
        super_scales=_turned(super_scales),
        super_minimums=_turned(super_minimums),
        permutation=permutation,
        table=None if table is None else table.float().contiguous(),
        bits=bits,
        offset=offset,
        group_size=size,
        num_outputs=num_outputs,
        num_inputs=num_inputs + num_padded,
        num_padded=num_padded,
    )


def _padded(codes: Tensor, permutation: Tensor | None, size: int) -> tuple[Tensor, Tensor]:
    """Codes and their inputs' order with each group filled up to a multiple of 16."""
    num_inputs = codes.shape[1]
    if permutation is None:
        permutation = torch.arange(num_inputs, device=codes.device)

    def widened(plane: Tensor, value: int) -> Tensor:
        whole = torch.nn.functional.pad(plane, (0, -num_inputs % size), value=value)
        groups, more = whole.reshape(*whole.shape[:-1], -1, size), (0, -size % GROUP_MULTIPLE)
        padded = torch.nn.functional.pad(groups, more, value=value)
        return padded.flatten(-2)

    return widened(codes, 0), widened(permutation, num_inputs)


def expand(weight: GroupedWeight) -> Tensor:
    """All values [M, N] float32, in the original order of inputs."""
    return _expand(weight, all_codes(weight), slice(None))


def expand_rows(weight: GroupedWeight, rows: Tensor) -> Tensor:
    """Values [K, N] float32 of the outputs `rows` [K] int64."""
    return _expand(weight, all_codes(weight, rows), rows)


def _expand(weight: GroupedWeight, codes: Tensor, rows: Tensor | slice) -> Tensor:
    def by_input(plane: Tensor, group_size: int) -> Tensor:
        wide = plane[:, rows].float().T.repeat_interleave(group_size, dim=1)
        return wide[:, : weight.num_inputs]

    if weight.table is not None:
        values = weight.table[codes.long()]
    else:
        values = (codes.int() - weight.offset).float()
    if weight.zeros is not None:
        values -= by_input(weight.zeros, weight.group_size)
    scales = by_input(weight.scales, weight.group_size)
    if weight.super_scales is not None:
        scales = scales * by_input(weight.super_scales, weight.super_group)
    values = values * scales
    if weight.minimums is not None:
        minimums = by_input(weight.minimums, weight.group_size)
        if weight.super_minimums is not None:
            minimums = minimums * by_input(weight.super_minimums, weight.super_group)
        values -= minimums
    if weight.permutation is not None:
        values = values[:, weight.permutation.argsort()]
    return values[:, : weight.num_inputs - weight.num_padded]


def _turned(plane: Tensor | None) -> Tensor | None:
    return None if plane is None else plane.T.contiguous()


_CACHED_CODES = 1 << 20
# Bits in the low plane of codes.
_LOW_BITS = {2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 8: 8}


def _planes(codes: Tensor, bits: int) -> tuple[Tensor, Tensor | None]:
    """Split codes [M, N] uint8 into the planes `codes` and `high_codes`."""
    num_outputs, num_inputs = codes.shape
    chunks, low_bits = -(-num_inputs // CHUNK), _LOW_BITS[bits]
    low = codes.new_empty(chunks, num_outputs, 8 * low_bits)
    high = None if low_bits == bits else codes.new_empty(chunks, num_outputs, 8 * (bits - low_bits))
    count = rows_at_once(num_inputs, codes.device, _CACHED_CODES)
    for first in range(0, num_outputs, count):
        rows = slice(first, first + count)
        padded = codes[rows]
        if num_inputs % CHUNK:
            padded = torch.nn.functional.pad(padded, (0, -num_inputs % CHUNK))
        part = padded.reshape(-1, chunks, CHUNK).transpose(0, 1)
        if high is None:
            _write_plane(low[:, rows], part, bits)
        else:
            _write_plane(low[:, rows], part & (2**low_bits - 1), low_bits)
            _write_plane(high[:, rows], part >> low_bits, bits - low_bits)
    return low, high


def _write_plane(plane: Tensor, codes: Tensor, bits: int) -> None:
    """Pack codes [C, M, 64] of so many bits to a plane [C, M, 8 * bits].

    A byte holds inputs 32 apart side by side, then those that are 8 * bits further on.
    """
    first, *others = torch.split(codes, 8 * bits, dim=-1)
    plane.copy_(first)
    for number, piece in enumerate(others, 1):
        half, place = divmod(number, 4 // bits)
        plane.add_(piece, alpha=1 << (2 * place + half) * bits)


def _unpacked(plane: Tensor, bits: int) -> Tensor:
    """The codes [C, M, 64] that `_write_plane` packed."""
    if bits == 8:
        return plane
    shifts = [[(2 * place + half) * bits for place in range(4 // bits)] for half in range(2)]
    pieces = [(plane >> shift) & (2**bits - 1) for half in shifts for shift in half]
    return torch.cat(pieces, dim=-1)


def integers(weight: GroupedWeight, rows: slice = slice(None)) -> Tensor:
    """Codes minus offset and zeros, [M, N] int32, in the order of the planes; no table.

    Of all outputs or of `rows`.
    """
    numbers: Tensor = all_codes(weight, rows).int() - weight.offset
    if weight.zeros is not None:
        zeros = weight.zeros[:, rows].int().T.repeat_interleave(weight.group_size, dim=1)
        numbers -= zeros[:, : weight.num_inputs]
    return numbers


def all_codes(weight: GroupedWeight, rows: Tensor | slice = slice(None)) -> Tensor:
    """Codes [M, N] uint8 as passed to `make_grouped`, of all outputs or of `rows`."""
    low = _LOW_BITS[weight.bits]
    codes = _unpacked(weight.codes[:, rows], low)
    if weight.high_codes is not None:
        codes = codes | _unpacked(weight.high_codes[:, rows], weight.bits - low) << low
    return codes.transpose(0, 1).flatten(1)[:, : weight.num_inputs]
