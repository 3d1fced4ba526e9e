"""Linear layers and look-ups by GGUF weights in Triton: `grouped_linear` for each part."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.codebook_weight import CodebookWeight, PackedWeight
from vllm_lite.kernels.gpu.triton.grouped_linear import (
    expand_grouped,
    grouped_linear,
    half_values,
    kind_of,
    planes_of,
)
from vllm_lite.kernels.grouped_parts import GroupedParts
from vllm_lite.kernels.grouped_weight import CHUNK
from vllm_lite.kernels.reference.linear import look_up_range

_ROWS = 16
_CHUNK = tl.constexpr(CHUNK)
_HALF = tl.constexpr(CHUNK // 2)


@triton.jit
def lookup_grouped_kernel(
    out_ptr,
    ids_ptr,
    codes_ptr,
    high_ptr,
    scales_ptr,
    minimums_ptr,
    zeros_ptr,
    super_scales_ptr,
    super_minimums_ptr,
    table_ptr,
    num_rows,
    num_outputs,
    num_inputs,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    SUPER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    chunk = tl.program_id(0)
    rows = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    is_row = rows < num_rows
    outputs = tl.load(ids_ptr + rows, mask=is_row, other=0)
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
            is_row,
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
        place = rows[None, :] * num_inputs + inputs[:, None]
        mask = (inputs < num_inputs)[:, None] & is_row[None, :]
        tl.store(out_ptr + place, values, mask=mask)


def quantized_linear(
    x: Tensor,
    weight: GroupedParts,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    columns = []
    first = 0
    for part in weight.parts:
        end = first + part.weight.num_outputs
        of_part = None if bias is None else bias[first:end]
        columns.append(grouped_linear(x, part.weight, of_part, out_dtype))
        first = end
    if out is None and len(columns) == 1:
        return columns[0]
    return torch.cat(columns, 1, out=out)


def quantized_lookup(
    weight: GroupedParts, ids: Tensor, dtype: torch.dtype, first_row: int | None = None
) -> Tensor:
    (part,) = weight.parts
    return grouped_lookup(part.weight, ids, dtype, first_row)


def grouped_lookup(
    weight: PackedWeight, ids: Tensor, dtype: torch.dtype, first_row: int | None = None
) -> Tensor:
    def look_up(rows: Tensor) -> Tensor:
        return _look_up(weight, rows, dtype)

    return look_up_range(look_up, ids, first_row, weight.num_outputs)


def _look_up(rows: PackedWeight, ids: Tensor, dtype: torch.dtype) -> Tensor:
    if isinstance(rows, CodebookWeight):
        return expand_grouped(rows.of_outputs(ids), dtype)
    out = rows.codes.new_empty((len(ids), rows.num_inputs), dtype=dtype)
    lookup_grouped_kernel[(len(rows.codes), triton.cdiv(len(ids), _ROWS))](
        out,
        ids,
        *planes_of(rows),
        len(ids),
        rows.num_outputs,
        rows.num_inputs,
        **kind_of(rows),
        BLOCK=_ROWS,
    )
    return out
