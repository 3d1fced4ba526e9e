"""Rotation and the cache's write in one, in plain torch; part of `reference`."""

from __future__ import annotations

from torch import Tensor

from vllm_lite.kernels.reference import reshape_and_cache, rotary_embedding

__all__ = ["rotary_and_cache"]


def rotary_and_cache(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin_cache: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    is_neox: bool = True,
) -> None:
    """rotary_embedding, then reshape_and_cache of the rotated key; `key` itself stays as it is."""
    rotated = key.clone()
    rotary_embedding(positions, query, rotated, cos_sin_cache, is_neox)
    reshape_and_cache(rotated, value, key_cache, value_cache, slot_mapping)
