"""What products share: the order of their tiles, and adding up sums that were cut into parts.

Parts are added in their order, so that the same launch always gives the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def tile_of(program, num_row_tiles, num_column_tiles, ROWS: tl.constexpr):
    """A program's (row tile, column tile); ROWS row tiles in turn share a cached weight tile."""
    per_group = ROWS * num_column_tiles
    first_row = program // per_group * ROWS
    rows = tl.minimum(num_row_tiles - first_row, ROWS)
    inside = program % per_group
    return first_row + inside % rows, inside // rows


@triton.jit
def add_parts_kernel(
    out_ptr,
    parts_ptr,
    bias_ptr,
    num_parts,
    size,
    num_columns,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = places < size
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(num_parts):
        total += tl.load(parts_ptr + part * size + places, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + places % num_columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, total, mask=mask)


def new_parts(out: Tensor, num_parts: int) -> Tensor:
    """Room for parts of out [T, M], [num_parts, T, M] float32; a single part is out itself."""
    if num_parts == 1:
        return out
    return out.new_empty((num_parts, *out.shape), dtype=torch.float32)


def add_parts(out: Tensor, parts: Tensor, bias: Tensor | None) -> None:
    """out [T, M] = the sum of parts [S, T, M] plus bias [M]."""
    size = out.numel()
    add_parts_kernel[(triton.cdiv(size, _BLOCK),)](
        out,
        parts,
        out if bias is None else bias,
        len(parts),
        size,
        out.shape[1],
        HAS_BIAS=bias is not None,
        BLOCK=_BLOCK,
    )
