"""Linear layers and look-ups by grouped weights, by the compiled CPU kernels.

Codes are packed in panels of outputs (csrc/cpu/kernels/grouped_codes.h), scales beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import vllm_lite._cpu as _cpu
from vllm_lite.kernels.codebook_weight import CodebookWeight, PackedWeight
from vllm_lite.kernels.cpu.arguments import (
    DTYPES,
    check_dense,
    check_floats,
    check_product,
    dtype_number,
    refuse,
    result_of,
    row_stride,
)
from vllm_lite.kernels.cpu.calls import calls
from vllm_lite.kernels.cpu.mapped_memory import packed_weights
from vllm_lite.kernels.grouped_weight import GroupedWeight
from vllm_lite.kernels.reference.rounding import ActivationRounding

# Inputs of a unit of codes.
_UNIT = 32
_TABLE, _INT8, _E4M3, _E5M2, _BOOK, _TWO_BOOKS, _BRIEF_BOOK, _TWO_BRIEF_BOOKS = range(8)
# In the order of ScaleKind in csrc/cpu/kernel_table.h.
_SCALES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e8m0fnu,
)
# In the order of RowScales in csrc/cpu/kernel_table.h.
_ROW_SCALES = ("float32", "e8m0", "ue8m0", "float8_e4m3fn", "spread")
# DType of csrc/cpu/kernel_table.h.
_NUMBERS = {torch.float8_e4m3fn: 2, torch.float8_e5m2: 3, torch.int8: 4}


@dataclass(frozen=True, slots=True)
class PackedGrouped:
    """A weight [M, N] of codes in panels."""

    codes: Tensor
    planes: tuple[Tensor, ...]  # all but the codes
    fields: Tensor  # int64: GroupedWeight (csrc/cpu/kernel_table.h)
    kind: str
    group_size: int
    num_outputs: int  # M
    num_inputs: int  # N, or of a row whose zeros the columns of padding multiply

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        return self.codes.nbytes + sum(plane.nbytes for plane in self.planes)


def pack_grouped(weight: PackedWeight) -> PackedGrouped:
    if isinstance(weight, CodebookWeight):
        return _pack_books(weight)
    kind, zero = _code_kind(weight)
    scales, minimums, zeros = _scaling(weight)
    super_scales = None if weight.super_scales is None else weight.super_scales.float()
    if super_scales is not None and (len(super_scales) > 1 or scales.dtype is torch.float32):
        super_scales = None  # multiplied into the scales
    num_groups = len(scales)
    size = weight.group_size if num_groups > 1 else -(-weight.num_inputs // 16) * 16
    data = _pack_codes(weight, kind)
    planes = (
        _in_panels(scales),
        _in_panels(super_scales),
        _in_panels(zeros),
        _in_panels(minimums),
        _table(weight, kind),
        weight.permutation,
    )
    addresses = [0 if plane is None else plane.data_ptr() for plane in (data, *planes)]
    numbers = (kind, weight.bits, _SCALES.index(scales.dtype), zero, size)
    sizes = (weight.num_outputs, weight.num_inputs)
    kept = tuple(plane for plane in planes if plane is not None)
    fields = torch.tensor([*addresses, *numbers, *sizes])
    return PackedGrouped(data, kept, fields, weight.kind, size, weight.num_outputs, weight.row_size)


def _pack_books(weight: CodebookWeight) -> PackedGrouped:
    """Lay out indices of 16 bits, or two of 8, as [panels, N / 8, PANEL]."""
    second = weight.codes[1:] if weight.high_codes is None else weight.high_codes
    if weight.books.shape[1:] not in ((1 << 16, 8), (1 << 8, 8)) or len(second) != 1:
        raise refuse("pack_grouped", "takes one book of 65,536 vectors of 8, or two of 256")
    indices = torch.stack((weight.codes[0], second[0]), -1).contiguous().view(torch.int16)[..., 0]
    units = -(-weight.num_inputs // _UNIT)
    padded = torch.nn.functional.pad(indices, (0, 0, 0, units * _UNIT // 8 - len(indices)))
    lines = _in_panels(padded)
    assert lines is not None
    data = packed_weights.take(lines.nbytes)
    data.copy_(lines.flatten().view(torch.uint8))
    is_brief = weight.books.dtype is torch.bfloat16
    books = (weight.books if is_brief else weight.books.half()).contiguous()
    scales = _in_panels(weight.scales)
    assert scales is not None
    kinds = (_TWO_BOOKS, _TWO_BRIEF_BOOKS) if weight.high_codes is None else (_BOOK, _BRIEF_BOOK)
    kind = kinds[is_brief]
    addresses = (data.data_ptr(), scales.data_ptr(), 0, 0, 0, books.data_ptr(), 0)
    size = -(-weight.num_inputs // 16) * 16
    sizes = (weight.num_outputs, weight.num_inputs)
    # Two bits for each input.
    fields = torch.tensor([*addresses, kind, 2, _SCALES.index(scales.dtype), 0, size, *sizes])
    return PackedGrouped(data, (scales, books), fields, weight.kind, size, *sizes)


def _code_kind(weight: GroupedWeight) -> tuple[int, int]:
    """The CodeKind and what zeros are added to."""
    if weight.bits < 8:
        return _TABLE, 0
    if weight.table is None:
        return _INT8, weight.offset - 128
    for kind, dtype in ((_E4M3, torch.float8_e4m3fn), (_E5M2, torch.float8_e5m2)):
        numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
        if torch.equal(weight.table.nan_to_num(), numbers.nan_to_num()):
            # The kernels have no NaN of e4m3, 127 without its sign; one pass finds the largest.
            has_nan = kind == _E4M3 and int((weight.codes << 1).amax()) == 254
            return (_TABLE if has_nan else kind), 0
    return _TABLE, 0


def _table(weight: GroupedWeight, kind: int) -> Tensor | None:
    if kind != _TABLE:
        return None
    table = weight.table
    if table is None:
        table = torch.arange(2**weight.bits, dtype=torch.float32) - weight.offset
    return table.repeat(max(1, 64 // len(table)))


def _scaling(weight: GroupedWeight) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Scales as the kernels take them, minimums float32, and zeros uint8, [G, M] each."""
    scales, minimums, zeros = weight.scales, weight.minimums, weight.zeros
    whole = scales.float()
    if weight.super_scales is not None:
        whole = _times(whole, weight.super_scales, weight)
    is_wide = scales.dtype is torch.float32
    has_rows = weight.super_scales is not None and (len(weight.super_scales) > 1 or is_wide)
    if has_rows or scales.dtype not in _SCALES or whole.isnan().any():
        scales = whole
    if minimums is not None:
        minimums = minimums.float()
        if weight.super_minimums is not None:
            minimums = _times(minimums, weight.super_minimums, weight)
    if zeros is not None and zeros.dtype is not torch.uint8:
        taken = zeros.float() * whole
        minimums = taken if minimums is None else minimums + taken
        zeros = None
    return scales, minimums, zeros


def _times(plane: Tensor, supers: Tensor, weight: GroupedWeight) -> Tensor:
    groups = -(-weight.super_group // weight.group_size)
    return plane * supers.float().repeat_interleave(groups, dim=0)[: len(plane)]


def _in_panels(plane: Tensor | None) -> Tensor | None:
    """Lay out a plane [G, M] as [panels, G, PANEL]."""
    if plane is None:
        return None
    dtype = plane.dtype
    if dtype.itemsize == 1:
        plane = plane.view(torch.uint8)
    padded = torch.nn.functional.pad(plane, (0, -plane.shape[1] % _cpu.PANEL))
    panels = padded.view(len(plane), -1, _cpu.PANEL).transpose(0, 1)
    return panels.contiguous().view(dtype)


def _pack_codes(weight: GroupedWeight, kind: int) -> Tensor:
    units = -(-weight.num_inputs // _UNIT)
    panels = -(-weight.num_outputs // _cpu.PANEL)
    num_bytes = panels * units * weight.bits * _cpu.PANEL * _UNIT // 8
    # Kernels read the last word from each of its bytes on.
    data = packed_weights.take(num_bytes + 4)[:num_bytes]
    low, high = (None if plane is None else plane.contiguous() for plane in weight.planes()[:2])
    _cpu.pack_grouped(low, high, weight.num_outputs, weight.num_inputs, weight.bits, kind, data)
    return data


def grouped_linear(
    x: Tensor,
    weight: PackedGrouped,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    rounding: ActivationRounding | None = None,
) -> Tensor:
    check_product("grouped_linear", x, bias, weight.num_outputs, weight.num_inputs)
    out_dtype = out_dtype or x.dtype
    scale = None if rounding is None else rounding.scale
    zero = None if rounding is None else rounding.zero
    check_floats("grouped_linear", "scale", scale, 1)
    check_floats("grouped_linear", "zero", zero, 1)
    out = result_of("grouped_linear", out, (len(x), weight.num_outputs), out_dtype)
    calls.get().grouped_linear(
        *(len(x), dtype_number("grouped_linear", x), x, row_stride("grouped_linear", x)),
        *(weight.fields, bias, DTYPES[out.dtype], out, row_stride("grouped_linear", out)),
        *rounding_fields(rounding, weight.num_inputs),
    )
    return out


def rounding_fields(rounding: ActivationRounding | None, row_size: int) -> tuple[Any, ...]:
    """The fields of RowRounding (csrc/cpu/kernel_table.h)."""
    if rounding is None:
        return (row_size, 0, 0, 0, None, False, None, None, 0, 0.0)
    size = rounding.group_size
    # Groups' own scales take no other but as a factor of theirs.
    has_scale = not size or rounding.scales == "float8_e4m3fn"
    if rounding.is_shifted:
        has_scale = rounding.zero is not None
    values = rounding.values if size else None
    number = torch.float8_e4m3fn if values is not None else rounding.number
    if values is not None:
        check_floats("rounding", "values", values, len(values))
    return (
        *(row_size, size or row_size, _NUMBERS[number], _ROW_SCALES.index(rounding.scales)),
        *(rounding.scale if has_scale else None, rounding.is_shifted, rounding.zero),
        *(values, 0 if values is None else len(values), rounding.largest),
    )


def grouped_lookup(
    weight: PackedGrouped, ids: Tensor, dtype: torch.dtype, first_row: int | None = None
) -> Tensor:
    check_dense("grouped_lookup", ids, torch.int64, len(ids))
    out = torch.empty(len(ids), weight.num_inputs, dtype=dtype)
    first = -1 if first_row is None else first_row
    calls.get().grouped_lookup(
        *(len(ids), weight.fields, ids, first),
        *(dtype_number("grouped_lookup", out), out, weight.num_inputs),
    )
    return out
