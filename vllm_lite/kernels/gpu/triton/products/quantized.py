"""Linear layers and look-ups by GGUF weights in Triton: `grouped_linear` for each part."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.codebook_weight import PackedWeight
from vllm_lite.kernels.gpu.sizes import cdiv
from vllm_lite.kernels.gpu.triton.products.grouped_linear import grouped_linear
from vllm_lite.kernels.gpu.triton.products.packed_values import (
    INPUTS,
    kind_of,
    planes_of,
    values_of,
)
from vllm_lite.kernels.grouped_parts import GroupedParts
from vllm_lite.kernels.reference.linear import look_up_range

_ROWS = 16
_INPUTS = tl.constexpr(INPUTS)


@triton.jit(do_not_specialize=["num_rows"])
def lookup_grouped_kernel(
    out_ptr,
    ids_ptr,
    planes,
    num_rows,
    num_outputs,
    num_inputs,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    step = tl.program_id(0)
    rows = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    is_row = rows < num_rows
    outputs = tl.load(ids_ptr + rows, mask=is_row, other=0).to(tl.int32)
    HALVES: tl.constexpr = KIND.halves
    for half in tl.static_range(HALVES):
        values = values_of(planes, step, half, outputs, is_row, num_inputs, num_outputs, KIND)
        inputs = step * (HALVES * _INPUTS) + half * _INPUTS + tl.arange(0, _INPUTS)
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


def _look_up(weight: PackedWeight, ids: Tensor, dtype: torch.dtype) -> Tensor:
    out = weight.codes.new_empty((len(ids), weight.num_inputs), dtype=dtype)
    kind = kind_of(weight)
    steps = cdiv(weight.num_inputs, kind.halves * INPUTS)
    lookup_grouped_kernel[(steps, cdiv(len(ids), _ROWS))](
        out,
        ids,
        planes_of(weight),
        len(ids),
        weight.num_outputs,
        weight.num_inputs,
        KIND=kind,
        BLOCK=_ROWS,
    )
    return out
