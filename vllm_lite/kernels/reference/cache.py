"""Formats of cached keys and values, and writes to the paged cache, in plain torch.

A cached row is D numbers of the cache's type. Rows of int8 or fp8 may be longer by the four
bytes of a float32, the row's scale; only the row's length tells the two formats apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.reference.elementwise import rotary_embedding
from vllm_lite.kernels.reference.norm import rms_norm
from vllm_lite.kernels.reference.quantize import LARGEST, quantize_rows

SCALE_BYTES = 4


def has_row_scales(cache: Tensor, head_size: int) -> bool:
    """Whether rows of `cache` [..., row] end in a scale; ValueError if their size fits neither."""
    extra = cache.shape[-1] - head_size
    if extra == 0 and cache.dtype != torch.int8:
        return False
    if extra == SCALE_BYTES and cache.dtype in LARGEST:
        return True
    raise ValueError(f"cached rows of {cache.shape[-1]} {cache.dtype} do not hold {head_size}")


def value_size_of(key_cache: Tensor, value_cache: Tensor, key_size: int) -> int:
    """The head size of cached values, whose rows have the keys' format.

    ValueError if the two caches, or heads of key_size, do not fit together.
    """
    has_row_scales(key_cache, key_size)
    size = value_cache.shape[-1] - (key_cache.shape[-1] - key_size)
    if size < 1 or key_cache.dtype != value_cache.dtype:
        raise ValueError(f"keys {key_cache.dtype} and values {value_cache.dtype} are not alike")
    if key_cache.shape[:-1] != value_cache.shape[:-1]:
        raise ValueError(f"keys {list(key_cache.shape)} and values {list(value_cache.shape)}")
    return size


def are_latents(key_cache: Tensor, value_cache: Tensor) -> bool:
    """Whether values are the first numbers of the only head's keys, in the same memory."""
    return (
        key_cache.shape[1] == 1
        and key_cache.data_ptr() == value_cache.data_ptr()
        and key_cache.stride() == value_cache.stride()
        and value_cache.shape[3] < key_cache.shape[3]
    )


def encode(rows: Tensor, cache: Tensor) -> Tensor:
    """Convert rows [..., D] to rows of `cache`, to nearest even, clamped to the type's range.

    Rows without a scale are only converted (an fp8 NaN stays NaN); rows with one are
    `quantize_rows`'s.
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
    """Convert cached rows [..., row] to float32 [..., D]."""
    if not has_row_scales(rows, head_size):
        return rows.float()
    scales = rows[..., head_size:].contiguous().view(torch.float32)
    return rows[..., :head_size].float() * scales


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Write key and value [T, K, D] into caches [B, K, S, row] at slots [T] = block * S + offset.

    Values may have another D, and their cache may be part of the keys' rows. A row may end in
    a scale, see `has_row_scales`. A negative slot is skipped; a slot beyond the cache
    raises IndexError.
    """
    block_size = key_cache.shape[2]
    if slot_mapping.numel() and int(slot_mapping.max()) >= key_cache.shape[0] * block_size:
        raise IndexError(f"slot_mapping holds {int(slot_mapping.max())}, beyond the cache")
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    if not slots.numel():
        return
    blocks, offsets = slots // block_size, slots % block_size
    for rows, cache in ((key, key_cache), (value, value_cache)):
        encoded = encode(rows[kept], cache)
        # torch cannot index 8-bit floats, so they are moved as bytes.
        if cache.dtype.itemsize == 1:
            encoded, cache = encoded.view(torch.uint8), cache.view(torch.uint8)
        cache[blocks, :, offsets] = encoded


def rotate_and_cache(
    heads: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    is_neox: bool,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    weights: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> None:
    """Rotate queries in place, and write rotated keys, and values, to caches [B, K, S, D].

    `heads` [T, H + 2K, D] are queries, keys and values, of the caches' type. With weights [D] of
    queries and of keys, heads of both are first those of `rms_norm`. Otherwise as
    `rotary_embedding` and `reshape_and_cache`; keys in `heads` become unspecified.
    """
    num_kv_heads = key_cache.shape[1]
    counts = [heads.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads]
    query, key, value = heads.split_with_sizes(counts, 1)
    if weights is not None:
        rms_norm(query, weights[0], eps, out=query)
        rms_norm(key, weights[1], eps, out=key)
    rotary_embedding(positions, query, key, cos_sin_cache, is_neox)
    reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)
