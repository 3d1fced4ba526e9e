"""The budget of a GPU's memory, as arithmetic on a few readings.

`--gpu-memory-utilization` is this engine's share of the device's whole memory; the KV cache gets
what weights, the largest step and graphs leave of it. A budget that is too small is a UsageError
that names the option and a value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_lite.core.kv_group import cache_groups
from vllm_lite.core.kv_plan import min_bytes, page_bytes
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.errors import UsageError

if TYPE_CHECKING:
    from vllm_lite.config.vllm import VllmConfig

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One reading, in bytes."""

    total: int
    # Free bytes of the whole device.
    free: int
    # Held for this process by torch's allocator, now and at most since its peak was reset.
    reserved: int
    peak: int

    @property
    def elsewhere(self) -> int:
        """Held by other processes, and in this one by the driver and libraries."""
        return self.total - self.free - self.reserved


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes in use before the cache is allocated."""

    weights: int
    # The largest step, beside the weights: its tensors and the tables of all requests.
    activations: int
    graphs: int
    # Allocated by libraries meanwhile.
    libraries: int

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.graphs + self.libraries


def measured_use(
    start: DeviceMemory, loaded: DeviceMemory, stepped: DeviceMemory, graphs: int
) -> MemoryUse:
    """The memory use from readings before the weights, after them, and after the largest step.

    Reset the peak between the last two.
    """
    return MemoryUse(
        weights=loaded.reserved - start.reserved,
        activations=max(0, stepped.peak - loaded.reserved),
        graphs=graphs,
        libraries=max(0, stepped.elsewhere - start.elsewhere),
    )


def graph_bytes(frees: Sequence[int], num_graphs: int) -> int:
    """An estimate for `num_graphs` graphs from the first one or two of them.

    `frees` are the free bytes before the largest, after it, and after the next: the others use
    the memory of the largest and add about as much as the second.
    """
    first, second = [max(0, frees[i] - frees[i + 1]) if i + 1 < len(frees) else 0 for i in range(2)]
    return first + second * max(0, num_graphs - 1)


def granted_bytes(config: VllmConfig, start: DeviceMemory) -> int:
    """The engine's memory share in bytes; raises UsageError where so much is not free.

    With --kv-cache-memory-bytes that is all that is free.
    """
    if config.cache.kv_cache_memory_bytes is not None:
        return start.free
    share = config.cache.gpu_memory_utilization
    granted = int(share * start.total)
    if granted > start.free:
        most = _floor(start.free / start.total)
        fix = f"set it to {most:g} or less" if most > 0 else "use --device cpu"
        raise UsageError(
            f"--gpu-memory-utilization {share:g} asks for {_gib(granted)} of the GPU's "
            f"{_gib(start.total)}, of which others leave {_gib(start.free)} free; "
            f"{fix}, or end what else runs there"
        )
    return granted


def cache_bytes(config: VllmConfig, spec: KVCacheSpec, use: MemoryUse, start: DeviceMemory) -> int:
    """The bytes left for the KV cache; raises UsageError where one request would not fit."""
    left = granted_bytes(config, start) - use.total
    block_bytes = page_bytes(cache_groups(spec), config.cache.block_size) or spec.bytes_per_state
    if config.cache.num_gpu_blocks_override is not None:
        wanted = config.cache.num_gpu_blocks_override * block_bytes
        if left < wanted:
            fits = max(0, left // block_bytes)
            raise UsageError(
                f"--num-gpu-blocks-override {config.cache.num_gpu_blocks_override} takes "
                f"{_gib(wanted)}, but {_taken(use)}, and {_gib(left)} are left; set it "
                f"to {fits} or less"
            )
        return left
    given = config.cache.kv_cache_memory_bytes
    if given is not None:
        if left < given:
            raise UsageError(
                f"--kv-cache-memory-bytes {given} is more than is left: {_taken(use)}, and of the "
                f"{_gib(start.free)} that were free {_gib(left)} remain; set it to "
                f"{max(0, left)} or less"
            )
        return left
    needed = min_bytes(config, spec)
    if left < needed:
        raise UsageError(_too_little(config, spec, use, start, needed))
    return left


def _too_little(
    config: VllmConfig, spec: KVCacheSpec, use: MemoryUse, start: DeviceMemory, needed: int
) -> str:
    share, length = config.cache.gpu_memory_utilization, config.model.max_model_len
    left = int(share * start.total) - use.total
    fixes = []
    # In hundredths: enough, and no more than is free.
    enough = _ceil((use.total + needed) / start.total)
    if enough <= _floor(start.free / start.total):
        fixes.append(f"set --gpu-memory-utilization to {enough:g}")
    block_bytes = page_bytes(cache_groups(spec), config.cache.block_size)
    fitting = (left // block_bytes - 1) * config.cache.block_size if block_bytes else 0
    if fitting > 0:
        fixes.append(f"set --max-model-len to {min(fitting, length - 1)}")
    tokens, seqs = config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs
    if tokens > seqs and use.activations > needed - left:
        fixes.append(f"set --max-num-batched-tokens to {max(seqs, tokens // 2)}")
    fixes.append("use a smaller or a quantised model")
    return (
        f"--gpu-memory-utilization {share:g} grants {_gib(int(share * start.total))} of the GPU's "
        f"{_gib(start.total)}; {_taken(use)}, so that {_gib(left)} are left, but the KV cache of "
        f"one request of {length:,} tokens takes {_gib(needed)}; {', or '.join(fixes)}"
    )


def describe_memory(use: MemoryUse, cache: int, now: DeviceMemory) -> str:
    """The table for the log, once everything is in place."""
    free = max(0, now.free - use.activations)
    taken = use.weights + use.activations + use.graphs + cache
    rows = {
        "weights": use.weights,
        "largest step": use.activations,
        "graphs": use.graphs,
        "KV cache": cache,
        "driver, libraries and other processes": max(0, now.total - taken - free),
        "free": free,
        "in all": now.total,
    }
    lines = [f"  {name:<38}{size / _GIB:>8.2f}" for name, size in rows.items()]
    return "\n".join(["GPU memory in GiB:", *lines])


def _taken(use: MemoryUse) -> str:
    parts = f"weights take {_gib(use.weights)}, a step up to {_gib(use.activations)}"
    return f"{parts}, graphs and libraries {_gib(use.graphs + use.libraries)}"


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"


def _floor(share: float) -> float:
    return math.floor(share * 100) / 100


def _ceil(share: float) -> float:
    return math.ceil(share * 100) / 100
