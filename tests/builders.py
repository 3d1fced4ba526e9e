"""Readable one-liners that build what a test talks about."""

from __future__ import annotations

from itertools import count
from typing import Any

from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.options.option import sections
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import plan_kv_cache
from vllm_lite.core.kv_spec import KVCacheSpec, LayerCacheSpec
from vllm_lite.core.request import Request
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.core.step import EngineCoreRequest, Task
from vllm_lite.sampling_params import SamplingParams

_ids = count()


def alike_layers(
    num_layers: int,
    num_kv_heads: int,
    head_size: int,
    dtype: str,
    sliding_window: int | None = None,
    has_row_scales: bool = False,
) -> KVCacheSpec:
    """The spec of layers that differ in nothing."""
    layer = LayerCacheSpec(num_kv_heads, head_size, dtype, sliding_window, has_row_scales)
    return KVCacheSpec((layer,) * num_layers)


TINY_SPEC = alike_layers(num_layers=1, num_kv_heads=1, head_size=8, dtype="float32")

TINY_FACTS = ModelFacts(
    path="",
    format="hf",
    architecture="LlamaForCausalLM",
    hf_config={},
    dtype="float32",
    max_position=1 << 20,
    num_layers=1,
    layer_windows=(None,),
    hidden_size=8,
    num_heads=1,
    num_kv_heads=1,
    head_size=8,
    vocab_size=101,
)
_DEFAULTS = {
    "block_size": 8,
    "max_model_len": 128,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
}


def core_config(**options: Any) -> VllmConfig:
    """A config of small numbers for a model that nobody loads; options by their own names."""
    given = {**_DEFAULTS, **options}
    parts = {
        name: cls(**{key: given.pop(key) for key in list(given) if key in cls.__annotations__})
        for name, cls in sections(VllmConfig).items()
    }
    return VllmConfig(facts=TINY_FACTS, **parts, **given)


def message(
    prompt: int | list[int] = 5,
    *,
    request_id: str | None = None,
    eos: tuple[int, ...] = (),
    priority: int = 0,
    cache_salt: str | None = None,
    tenant: str = "",
    arrival_time: float | None = None,
    task: Task | None = None,
    **params: Any,
) -> EngineCoreRequest:
    """A request as it enters the engine core; an int `prompt` is its length."""
    number = next(_ids)
    return EngineCoreRequest(
        request_id=request_id if request_id is not None else f"r{number}",
        prompt_token_ids=list(range(1, prompt + 1)) if isinstance(prompt, int) else prompt,
        task=SamplingParams(**params) if task is None else task,
        eos_token_ids=list(eos),
        arrival_time=float(number) if arrival_time is None else arrival_time,
        priority=priority,
        cache_salt=cache_salt,
        tenant=tenant,
    )


def request(prompt: int | list[int] = 5, **options: Any) -> Request:
    """A request of the scheduler; options as those of `message`."""
    return Request.from_message(message(prompt, **options))


def scheduler(num_blocks: int = 17, *, spec: KVCacheSpec = TINY_SPEC, **options: Any) -> Scheduler:
    """A scheduler over `num_blocks` blocks, the null block included."""
    config = core_config(num_gpu_blocks_override=num_blocks, **options)
    return Scheduler(config, plan_kv_cache(config, spec, 0))
