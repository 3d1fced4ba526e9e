"""From bytes to blocks: how large the KV cache is.

Knows neither device nor model; what it returns is a value, computed once and passed down.
Invariant: the plan holds at least one request of max_model_len tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_lite.core.kv_group import CacheGroup, attention_rule, cache_groups
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.errors import UsageError

if TYPE_CHECKING:
    from vllm_lite.config.vllm import VllmConfig

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class KVCachePlan:
    """Pages of one size, each for a block's tokens in the layers of one group.

    `num_blocks` counts the null block 0 too, which holds nothing.
    """

    spec: KVCacheSpec
    num_blocks: int
    block_size: int
    total_bytes: int

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The groups of the spec's layers."""
        return cache_groups(self.spec)

    @property
    def page_bytes(self) -> int:
        """Bytes of a block."""
        return page_bytes(self.groups, self.block_size)


def page_bytes(groups: tuple[CacheGroup, ...], block_size: int) -> int:
    """Bytes of the page that a block of any of the groups takes."""
    return block_size * max(group.bytes_per_token for group in groups)


def plan_kv_cache(config: VllmConfig, spec: KVCacheSpec, available_bytes: int) -> KVCachePlan:
    """Decide the number of blocks: the user's count, the user's bytes, or what is available.

    Bytes beyond max_num_seqs requests of max_model_len are left alone. Raises UsageError
    where one request of max_model_len would not fit.
    """
    block_size = config.cache.block_size
    block_bytes = page_bytes(cache_groups(spec), block_size)
    per_request = blocks_per_request(config, spec)
    if config.cache.num_gpu_blocks_override is not None:
        num_blocks = config.cache.num_gpu_blocks_override
    else:
        memory = config.cache.kv_cache_memory_bytes
        memory = available_bytes if memory is None else memory
        most = config.scheduler.max_num_seqs * per_request + 1
        num_blocks = min(max(memory, 0) // block_bytes, most)
    if num_blocks - 1 < per_request:
        raise UsageError(_too_small(config, spec, num_blocks, available_bytes))
    return KVCachePlan(spec, num_blocks, block_size, num_blocks * block_bytes)


def describe_plan(config: VllmConfig, plan: KVCachePlan) -> str:
    """One line for the log: size, tokens, and how many requests of full length fit."""
    concurrency = (plan.num_blocks - 1) / blocks_per_request(config, plan.spec)
    chosen = config.cache.kv_cache_dtype
    numbers = plan.spec.layers[0].dtype if chosen == "auto" else chosen
    # With windows a long request holds fewer blocks than its tokens would fill.
    is_plain = len(plan.groups) == 1 and plan.groups[0].sliding_window is None
    tokens = (plan.num_blocks - 1) * plan.block_size
    fits = f"{tokens:,} tokens, " if is_plain else f"{_rules(plan.groups)}, "
    return (
        f"KV cache: {plan.total_bytes / _GIB:.2f} GiB of {numbers}, {fits}"
        f"{concurrency:.2f}x concurrency at {config.model.max_model_len:,} tokens per request"
    )


def _rules(groups: tuple[CacheGroup, ...]) -> str:
    """Layers and block tables by rule: "4 full layers, 22 of window 512 in 6 groups"."""
    found: dict[int | None, list[int]] = {}
    for group in groups:
        found.setdefault(group.sliding_window, []).append(len(group.layers))
    parts = []
    for window, sizes in found.items():
        kind = "full layers" if window is None else f"layers of window {window:,}"
        tables = f" in {len(sizes)} groups" if len(sizes) > 1 else ""
        parts.append(f"{sum(sizes)} {kind}{tables}")
    return ", ".join(parts)


def blocks_per_request(config: VllmConfig, spec: KVCacheSpec) -> int:
    """The most blocks that one request of max_model_len holds at a time."""
    size, step = config.cache.block_size, config.scheduler.max_num_batched_tokens
    return sum(
        attention_rule(group.sliding_window, size).max_blocks(config.model.max_model_len, step)
        for group in cache_groups(spec)
    )


def _too_small(config: VllmConfig, spec: KVCacheSpec, num_blocks: int, available_bytes: int) -> str:
    cache, block_size = config.cache, config.cache.block_size
    groups = cache_groups(spec)
    needed_blocks = blocks_per_request(config, spec) + 1
    needed = needed_blocks * page_bytes(groups, block_size)
    if cache.num_gpu_blocks_override is not None:
        have = f"--num-gpu-blocks-override gives {num_blocks}"
        more = f"set it to {needed_blocks} or more"
    elif cache.kv_cache_memory_bytes is not None:
        have = f"--kv-cache-memory-bytes gives {cache.kv_cache_memory_bytes:,} bytes"
        more = f"set it to {needed} or more"
    else:
        have = f"{max(available_bytes, 0) / _GIB:.3f} GiB is available"
        more = (
            f"raise --gpu-memory-utilization (now {cache.gpu_memory_utilization:g}) "
            f"until {needed / _GIB:.3f} GiB is available"
        )
    fits = (num_blocks - 1) // len(groups) * block_size
    shorter = f"set --max-model-len to {fits} or less, or " if fits > 0 else ""
    return (
        f"the KV cache of one request of {config.model.max_model_len:,} tokens takes "
        f"{needed_blocks} blocks ({needed / _GIB:.3f} GiB), but {have}; {shorter}{more}"
    )
