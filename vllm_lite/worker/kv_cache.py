"""The KV cache's memory: pages of one size, and slots for states; layers have views of both.

A page holds a block's keys and values of all layers of one group. On a CPU the system maps and
clears memory as blocks come into use. Unwritten memory reads as zero, so that masked positions and
the null block, which padding points to, are always finite.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.errors import UsageError
from vllm_lite.kernels import dispatch
from vllm_lite.kernels.cpu.mapped_memory import map_zeros
from vllm_lite.layers.attention import LayerCache
from vllm_lite.layers.state import StateCache


def allocate_kv_cache(plan: KVCachePlan, device: torch.device) -> list[LayerCache]:
    """Each layer's cache for `plan`; raises UsageError where memory is short."""
    pages = _zeros(plan, plan.num_blocks * plan.page_bytes, device)
    pages = pages.view(plan.num_blocks, plan.page_bytes)
    caches: dict[int, LayerCache] = {}
    for number, group in enumerate(plan.groups):
        start = 0
        for layer in group.layers:
            key, value = _views(plan, pages, layer, start)
            caches[layer] = LayerCache(key, value, number)
            start += plan.block_size * plan.spec.layers[layer].bytes_per_token
    return [caches[layer] for layer in range(len(caches))]


def allocate_states(plan: KVCachePlan, device: torch.device) -> list[StateCache]:
    """Each state-space layer's states for `plan`; raises UsageError where memory is short."""
    if not plan.num_states:
        return []
    slots = _zeros(plan, plan.num_states * plan.spec.bytes_per_state, device)
    slots = slots.view(torch.float32).view(plan.num_states, -1)
    states, start = [], 0
    for spec in plan.spec.states:
        parts = []
        for shape in spec.shapes:
            end = start + prod(shape)
            parts.append(slots[:, start:end].view(plan.num_states, *shape))
            start = end
        states.append(tuple(parts))
    return states


def _zeros(plan: KVCachePlan, num_bytes: int, device: torch.device) -> Tensor:
    try:
        # Mapped here: an allocator may return memory that was used before and
        # then write it whole. Huge pages, where the system grants them, are read faster.
        if device.type == "cpu":
            return map_zeros(num_bytes)
        return torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    except (MemoryError, OSError, OverflowError, RuntimeError) as error:
        numbers = "--gpu-memory-utilization or --kv-cache-memory-bytes"
        if device.type == "cpu":
            numbers = "--gpu-memory-utilization, --kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE"
        raise UsageError(
            f"the KV cache of {plan.total_bytes:,} bytes cannot be allocated; lower {numbers}"
        ) from error


def _views(plan: KVCachePlan, pages: Tensor, layer: int, start: int) -> tuple[Tensor, Tensor]:
    """Keys and values, [B, K, S, row] each, that begin at byte `start` of each page.

    For a CPU's kernels each head's values follow its keys: memory gives longer pieces faster. Other
    kernels expect all heads' keys before all values.
    """
    spec = plan.spec.layers[layer]
    dtype: torch.dtype = getattr(torch, spec.dtype)
    num_parts = spec.num_kv_heads if dispatch.is_compiled() else 1
    rows = spec.num_kv_heads // num_parts * plan.block_size
    size = plan.block_size * spec.bytes_per_token
    parts = pages[:, start : start + size].view(dtype).view(plan.num_blocks, num_parts, -1)
    keys, values = (
        part.view(plan.num_blocks, spec.num_kv_heads, plan.block_size, -1)
        for part in parts.split_with_sizes([rows * width for width in spec.row_sizes], 2)
    )
    return keys, values if spec.latent_size is None else keys[..., : spec.latent_size]
