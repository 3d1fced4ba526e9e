"""How keys and values are written as the numbers of a cache, in plain torch.

A cached row is D numbers of the cache's type. Rows of a type of one byte may be longer by the four
bytes of a float32, the scale that their numbers are multiplied by; the row's length alone says so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.reference.quantize import LARGEST, quantize_rows

SCALE_BYTES = 4


def has_row_scales(cache: Tensor, head_size: int) -> bool:
    """Whether rows of `cache` [..., row] end in a scale; ValueError where they fit no way."""
    extra = cache.shape[-1] - head_size
    if extra == 0 and cache.dtype != torch.int8:
        return False
    if extra == SCALE_BYTES and cache.dtype in LARGEST:
        return True
    raise ValueError(f"cached rows of {cache.shape[-1]} {cache.dtype} do not hold {head_size}")


def value_size_of(key_cache: Tensor, value_cache: Tensor, key_size: int) -> int:
    """Numbers of a cached value, whose rows end as those of keys do.

    ValueError where the two caches, or heads of key_size, do not fit together.
    """
    has_row_scales(key_cache, key_size)
    size = value_cache.shape[-1] - (key_cache.shape[-1] - key_size)
    if size < 1 or key_cache.dtype != value_cache.dtype:
        raise ValueError(f"keys {key_cache.dtype} and values {value_cache.dtype} are not alike")
    if key_cache.shape[:-1] != value_cache.shape[:-1]:
        raise ValueError(f"keys {list(key_cache.shape)} and values {list(value_cache.shape)}")
    return size


def encode(rows: Tensor, cache: Tensor) -> Tensor:
    """Rows [..., D] as rows of `cache`: to nearest even, what is too large to the largest number.

    Numbers without a scale are stored as they are (fp8: a NaN stays one); rows with one are those
    of `quantize_rows`.
    """
    is_scaled = has_row_scales(cache, rows.shape[-1])
    wide, largest = rows.float(), LARGEST.get(cache.dtype)
    if largest is None:
        return rows.to(cache.dtype)
    if not is_scaled:
        return wide.clamp(-largest, largest).to(cache.dtype)
    codes, scales = quantize_rows(wide.flatten(0, -2), cache.dtype)
    parts = (codes.view(torch.uint8), scales.view(torch.uint8))
    return torch.cat(parts, -1).view(cache.dtype).reshape(*rows.shape[:-1], -1)


def decode(rows: Tensor, head_size: int) -> Tensor:
    """Cached rows [..., row] as float32 [..., D]."""
    if not has_row_scales(rows, head_size):
        return rows.float()
    scales = rows[..., head_size:].contiguous().view(torch.float32)
    return rows[..., :head_size].float() * scales
