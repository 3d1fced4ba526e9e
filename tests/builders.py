"""Readable one-liners that build what a test talks about."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

from vllm_lite.core.kv_plan import plan_kv_cache
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.core.step import EngineCoreRequest
from vllm_lite.request import Request
from vllm_lite.sampling_params import SamplingParams

_ids = count()

TINY_SPEC = KVCacheSpec(num_layers=1, num_kv_heads=1, head_size=8, dtype="float32")

_DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {"max_model_len": 64},
    "cache": {
        "block_size": 4,
        "gpu_memory_utilization": 0.9,
        "kv_cache_memory_bytes": None,
        "num_gpu_blocks_override": None,
        "enable_prefix_caching": True,
    },
    "scheduler": {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "enable_chunked_prefill": True,
        "scheduling_policy": "fcfs",
        "long_prefill_token_threshold": 0,
        "max_num_partial_prefills": 1,
        "max_long_partial_prefills": 1,
    },
}


def core_config(**options: Any) -> Any:
    """What the core reads of a VllmConfig; options go where they belong by name."""
    tree = {group: dict(values) for group, values in _DEFAULTS.items()}
    for name, value in options.items():
        (group,) = (group for group in tree if name in tree[group])
        tree[group][name] = value
    return SimpleNamespace(**{group: SimpleNamespace(**values) for group, values in tree.items()})


def message(
    prompt: int | list[int] = 5,
    *,
    request_id: str | None = None,
    eos: tuple[int, ...] = (),
    priority: int = 0,
    cache_salt: str | None = None,
    arrival_time: float | None = None,
    **params: Any,
) -> EngineCoreRequest:
    """A request as it enters the engine core; an int `prompt` is its length."""
    number = next(_ids)
    return EngineCoreRequest(
        request_id=request_id if request_id is not None else f"r{number}",
        prompt_token_ids=list(range(1, prompt + 1)) if isinstance(prompt, int) else prompt,
        sampling_params=SamplingParams(**params),
        eos_token_ids=list(eos),
        arrival_time=float(number) if arrival_time is None else arrival_time,
        priority=priority,
        cache_salt=cache_salt,
    )


def request(prompt: int | list[int] = 5, **options: Any) -> Request:
    """A request of the scheduler; options as those of `message`."""
    return Request.from_message(message(prompt, **options))


def scheduler(num_blocks: int = 17, *, spec: KVCacheSpec = TINY_SPEC, **options: Any) -> Scheduler:
    """A scheduler over `num_blocks` blocks, the null block included."""
    config = core_config(num_gpu_blocks_override=num_blocks, **options)
    return Scheduler(config, plan_kv_cache(config, spec, 0))
