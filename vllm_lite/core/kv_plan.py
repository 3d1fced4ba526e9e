"""The size of the KV cache: from bytes to blocks.

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

_GIB, _MIB = 1 << 30, 1 << 20


@dataclass(frozen=True, slots=True)
class KVCachePlan:
    """Pages of one size, each for a block's tokens in the layers of one group; slots for states.

    `num_blocks` counts the null block 0 too, which holds nothing.
    """

    spec: KVCacheSpec
    num_blocks: int
    block_size: int
    total_bytes: int
    num_states: int = 0
    # Tokens between two states of a prompt that are kept for later requests; None: at its end only.
    state_interval: int | None = None

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        return cache_groups(self.spec)

    @property
    def page_bytes(self) -> int:
        return page_bytes(self.groups, self.block_size)


def page_bytes(groups: tuple[CacheGroup, ...], block_size: int) -> int:
    """Bytes of the page that a block of any of the groups takes; 0 without attention."""
    return block_size * max((group.bytes_per_token for group in groups), default=0)


def plan_kv_cache(config: VllmConfig, spec: KVCacheSpec, available_bytes: int) -> KVCachePlan:
    """Decide the number of blocks: the user's count, the user's bytes, or what is available.

    Bytes beyond max_num_seqs requests of max_model_len are left alone. Raises UsageError
    where one request of max_model_len would not fit.
    """
    cache, block_size = config.cache, config.cache.block_size
    block_bytes = page_bytes(cache_groups(spec), block_size)
    per_request = blocks_per_request(config, spec)
    memory = cache.kv_cache_memory_bytes
    memory = max(0, available_bytes if memory is None else memory)
    num_states = _num_states(config, spec, memory)
    if cache.num_gpu_blocks_override is not None and block_bytes:
        num_blocks = cache.num_gpu_blocks_override
    else:
        most = config.scheduler.max_num_seqs * per_request + 1
        memory -= num_states * spec.bytes_per_state
        num_blocks = min(memory // block_bytes, most) if block_bytes else 1
    if num_blocks - 1 < per_request or (spec.states and num_states < min_states(config)):
        raise UsageError(_too_small(config, spec, max(num_blocks, num_states), available_bytes))
    total = num_blocks * block_bytes + num_states * spec.bytes_per_state
    return KVCachePlan(spec, num_blocks, block_size, total, num_states, cache.mamba_block_size)


def _num_states(config: VllmConfig, spec: KVCacheSpec, memory: int) -> int:
    """The number of state slots, in all memory, or in half of it where there are pages too."""
    if not spec.states:
        return 0
    cache = config.cache
    if not spec.layers and cache.num_gpu_blocks_override is not None:
        return cache.num_gpu_blocks_override
    pages = (blocks_per_request(config, spec) + 1) * page_bytes(
        cache_groups(spec), cache.block_size
    )
    share = max(0, min(memory // 2, memory - pages)) if pages else memory
    per_request = 1 + _snapshots_per_request(config)
    return min(share // spec.bytes_per_state, config.scheduler.max_num_seqs * per_request)


def _snapshots_per_request(config: VllmConfig) -> int:
    """The most that are kept: at the prompt's end, the text's end, and each interval."""
    cache = config.cache
    if not cache.enable_prefix_caching:
        return 0
    interval = cache.mamba_block_size
    return 2 + (0 if interval is None else config.model.max_model_len // interval)


def min_states(config: VllmConfig) -> int:
    """The fewest slots for states that a request runs with: its own, and one that was hit."""
    return 2 if config.cache.enable_prefix_caching else 1


def min_bytes(config: VllmConfig, spec: KVCacheSpec) -> int:
    """Bytes of the smallest cache, which holds one request of max_model_len."""
    pages = blocks_per_request(config, spec) + 1
    states = min_states(config) * spec.bytes_per_state
    size = pages * page_bytes(cache_groups(spec), config.cache.block_size)
    # States get no more than half of the memory where there are pages.
    return max(size + states, 2 * states) if size else states


def describe_plan(config: VllmConfig, plan: KVCachePlan) -> str:
    """One line for the log: size, tokens or what each rule's layers take, states, and concurrency.

    Concurrency is the number of requests of full length that fit, snapshots of states included.
    """
    if not (plan.groups or plan.num_states):
        return "No KV cache: each prompt is computed in one step"
    parts = [f"KV cache: {plan.total_bytes / _GIB:.2f} GiB"]
    concurrency = float("inf")
    if plan.groups:
        concurrency = (plan.num_blocks - 1) / blocks_per_request(config, plan.spec)
        chosen = config.cache.kv_cache_dtype
        parts[0] += f" of {plan.spec.layers[0].dtype if chosen == 'auto' else chosen}"
        # With windows a long request holds fewer blocks than its tokens would fill.
        is_plain = len(plan.groups) == 1 and plan.groups[0].sliding_window is None
        tokens = (plan.num_blocks - 1) * plan.block_size
        parts.append(f"{tokens:,} tokens" if is_plain else _rules(config, plan))
    if plan.num_states:
        size, snapshots = plan.spec.bytes_per_state, _snapshots_per_request(config)
        concurrency = min(concurrency, plan.num_states / (1 + snapshots))
        kept = f" with its {snapshots:,} snapshots" if snapshots else ""
        parts.append(f"{plan.num_states:,} states of {size / _MIB:,.2f} MiB")
        parts.append(f"{(1 + snapshots) * size / _MIB:,.2f} MiB a request{kept}")
    return (
        f"{', '.join(parts)}, "
        f"{concurrency:.2f}x concurrency at {config.model.max_model_len:,} tokens per request"
    )


def _rules(config: VllmConfig, plan: KVCachePlan) -> str:
    """Layers by rule, e.g. "22 layers of window 512 in 6 groups (9.00 MiB a request)"."""
    rules: dict[int | None, list[CacheGroup]] = {}
    for group in plan.groups:
        rules.setdefault(group.sliding_window, []).append(group)
    parts = []
    for window, groups in rules.items():
        kind = "full layers" if window is None else f"layers of window {window:,}"
        tables = f" in {len(groups)} groups" if len(groups) > 1 else ""
        size = sum(_max_blocks(config, group) for group in groups) * plan.page_bytes / _MIB
        layers = sum(len(group.layers) for group in groups)
        parts.append(f"{layers} {kind}{tables} ({size:,.2f} MiB a request)")
    return ", ".join(parts)


def blocks_per_request(config: VllmConfig, spec: KVCacheSpec) -> int:
    """The most blocks that one request of max_model_len holds at a time."""
    return sum(_max_blocks(config, group) for group in cache_groups(spec))


def _max_blocks(config: VllmConfig, group: CacheGroup) -> int:
    rule = attention_rule(group.sliding_window, config.cache.block_size)
    return rule.max_blocks(config.model.max_model_len, config.scheduler.max_num_batched_tokens)


def _too_small(config: VllmConfig, spec: KVCacheSpec, have: int, available_bytes: int) -> str:
    """`have`: blocks, or states where there are no blocks."""
    cache, block_size = config.cache, config.cache.block_size
    groups = cache_groups(spec)
    needed_blocks = blocks_per_request(config, spec) + 1 if groups else min_states(config)
    needed = min_bytes(config, spec)
    if cache.num_gpu_blocks_override is not None:
        given = f"--num-gpu-blocks-override gives {have}"
        more = f"set it to {needed_blocks} or more"
    elif cache.kv_cache_memory_bytes is not None:
        given = f"--kv-cache-memory-bytes gives {cache.kv_cache_memory_bytes:,} bytes"
        more = f"set it to {needed} or more"
    else:
        given = f"{max(available_bytes, 0) / _GIB:.3f} GiB is available"
        more = (
            f"raise --gpu-memory-utilization (now {cache.gpu_memory_utilization:g}) "
            f"until {needed / _GIB:.3f} GiB is available"
        )
    fits = (have - 1) // len(groups) * block_size if groups else 0
    shorter = f"set --max-model-len to {fits} or less, or " if fits > 0 else ""
    return (
        f"the KV cache of one request of {config.model.max_model_len:,} tokens takes "
        f"{needed_blocks} {'blocks' if groups else 'states'} ({needed / _GIB:.3f} GiB), but "
        f"{given}; {shorter}{more}"
    )
