"""From bytes to blocks: how large the KV cache is.

Knows neither device nor model; what it returns is a value, computed once and passed down.
Invariant: the plan holds at least one request of max_model_len tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_lite.core.kv_group import attention_rule
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.errors import UsageError

if TYPE_CHECKING:
    from vllm_lite.config.vllm import VllmConfig

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class KVCachePlan:
    """`num_blocks` counts the null block 0 too, which holds nothing."""

    spec: KVCacheSpec
    num_blocks: int
    block_size: int
    total_bytes: int

    @property
    def num_tokens(self) -> int:
        """Tokens that fit at a time."""
        return (self.num_blocks - 1) * self.block_size


def plan_kv_cache(config: VllmConfig, spec: KVCacheSpec, available_bytes: int) -> KVCachePlan:
    """Decide the number of blocks: the user's count, the user's bytes, or what is available.

    Bytes beyond max_num_seqs requests of max_model_len are left alone. Raises UsageError
    where one request of max_model_len would not fit.
    """
    block_size = config.cache.block_size
    block_bytes = block_size * spec.bytes_per_token
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
    numbers = plan.spec.dtype if chosen == "auto" else chosen
    return (
        f"KV cache: {plan.total_bytes / _GIB:.2f} GiB of {numbers}, {plan.num_tokens:,} tokens, "
        f"{concurrency:.2f}x concurrency at {config.model.max_model_len:,} tokens per request"
    )


def blocks_per_request(config: VllmConfig, spec: KVCacheSpec) -> int:
    """The most blocks that one request of max_model_len holds at a time."""
    rule = attention_rule(spec, config.cache.block_size)
    return rule.max_blocks(config.model.max_model_len, config.scheduler.max_num_batched_tokens)


def _too_small(config: VllmConfig, spec: KVCacheSpec, num_blocks: int, available_bytes: int) -> str:
    cache, block_size = config.cache, config.cache.block_size
    needed_blocks = blocks_per_request(config, spec) + 1
    needed = needed_blocks * block_size * spec.bytes_per_token
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
    fits = (num_blocks - 1) * block_size
    shorter = f"set --max-model-len to {fits} or less, or " if fits > 0 else ""
    return (
        f"the KV cache of one request of {config.model.max_model_len:,} tokens takes "
        f"{needed_blocks} blocks ({needed / _GIB:.3f} GiB), but {have}; {shorter}{more}"
    )
