"""The KV cache's tensors: one pair a layer, [B, K, S, row], all zeros, in memory touched late.

On a CPU a block's keys and values of all layers lie side by side, so that a huge page holds blocks
whole: memory is taken, and cleared by the system, little by little as blocks come into use. What
was never written reads as zero, so that masked positions and the null block, where padding points,
are always finite.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.errors import UsageError
from vllm_lite.kernels.mapped_memory import map_zeros


def allocate_kv_cache(plan: KVCachePlan, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """(key, value) tensors of each layer for `plan`; UsageError where memory does not reach."""
    spec = plan.spec
    shape = (plan.num_blocks, spec.num_kv_heads, plan.block_size, spec.row_size)
    dtype: torch.dtype = getattr(torch, spec.dtype)
    try:
        if device.type == "cpu":
            return _untouched_zeros(spec.num_layers, shape, dtype)
        return [
            (
                torch.zeros(shape, dtype=dtype, device=device),
                torch.zeros(shape, dtype=dtype, device=device),
            )
            for _ in range(spec.num_layers)
        ]
    except (MemoryError, OSError, OverflowError, RuntimeError) as error:
        numbers = "--gpu-memory-utilization or --kv-cache-memory-bytes"
        if device.type == "cpu":
            numbers = "--gpu-memory-utilization, --kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE"
        raise UsageError(
            f"the KV cache of {plan.total_bytes:,} bytes cannot be allocated; lower {numbers}"
        ) from error


def _untouched_zeros(
    num_layers: int, shape: tuple[int, ...], dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """Zeros that the system provides page by page; torch.zeros would write them all.

    Mapped here rather than asked of an allocator, which may hand out memory used before and
    then write it whole. Huge pages, where the system grants them, are read faster.
    """
    whole = (shape[0], num_layers, 2, *shape[1:])
    mapped = map_zeros(math.prod(whole) * dtype.itemsize).view(dtype).view(whole)
    return [(mapped[:, layer, 0], mapped[:, layer, 1]) for layer in range(num_layers)]
