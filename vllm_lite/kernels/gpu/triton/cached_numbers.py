"""Rows of a cache of one byte a number, as Triton reads and writes them; see `cached_rows`.

The numbers are those of `numbers`. Scales are read and written byte by byte, since rows that end in
one need not lie at whole words.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.triton.numbers import (
    INT8,
    as_stored,
    encode_scaled,
    format_of,
    row_scale,
)
from vllm_lite.kernels.reference.cached_rows import has_row_scales


def stored_numbers(
    key_cache: Tensor, value_cache: Tensor, head_size: int
) -> tuple[Tensor, Tensor, int]:
    """What a kernel takes for two caches of one type: their storage, and its format or 0.

    Raises ValueError where their rows do not fit heads of this size.
    """
    has_row_scales(key_cache, head_size)
    return as_stored(key_cache), as_stored(value_cache), format_of(key_cache.dtype)


@triton.jit
def load_scales(rows_ptr, mask, HEAD_SIZE: tl.constexpr):
    """The scales of the rows at `rows_ptr`."""
    bits = tl.load(rows_ptr + HEAD_SIZE, mask=mask, other=0).to(tl.int32) & 0xFF
    bits |= (tl.load(rows_ptr + HEAD_SIZE + 1, mask=mask, other=0).to(tl.int32) & 0xFF) << 8
    bits |= (tl.load(rows_ptr + HEAD_SIZE + 2, mask=mask, other=0).to(tl.int32) & 0xFF) << 16
    bits |= (tl.load(rows_ptr + HEAD_SIZE + 3, mask=mask, other=0).to(tl.int32) & 0xFF) << 24
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def store_scaled_row(row_ptr, numbers, columns, FORMAT: tl.constexpr, HEAD_SIZE: tl.constexpr):
    """One row of numbers (float32, zeros beyond HEAD_SIZE), and its scale."""
    # As integers, NaN are above infinity and that above all numbers.
    magnitudes = numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    highest = tl.max(magnitudes, axis=0).to(tl.float32, bitcast=True)
    inverse, scale = row_scale(highest, 127.0 if FORMAT == INT8 else 448.0)
    codes = encode_scaled(numbers, inverse, FORMAT)
    tl.store(row_ptr + columns, codes, mask=columns < HEAD_SIZE)
    bytes = tl.arange(0, 4)
    bits = scale.to(tl.int32, bitcast=True) >> (8 * bytes)
    tl.store(row_ptr + HEAD_SIZE + bytes, (bits & 0xFF).to(codes.dtype))
