"""One request for n choices becomes n sequences for the engine core, which knows only those."""

from __future__ import annotations

import copy

from vllm_lite.core.step import EngineCoreRequest
from vllm_lite.engine.front.input_processor import ProcessedInput
from vllm_lite.sampling_params import SamplingParams

_SEEDS = 1 << 64


def fan_out(
    request_id: str, request: ProcessedInput, arrival_time: float, priority: int = 0
) -> list[EngineCoreRequest]:
    """The sequences of a request, choice by choice.

    With n > 1 their ids are `0_ID`, `1_ID`, ... and choice i draws from seed + i, so that
    seeded choices differ from each other and repeat as a whole.
    """
    n, params = request.params.n, request.params
    return [
        EngineCoreRequest(
            request_id=request_id if n == 1 else f"{index}_{request_id}",
            prompt_token_ids=request.prompt_token_ids,
            task=_choice_params(params, index)
            if n > 1 and isinstance(params, SamplingParams)
            else params,
            eos_token_ids=request.eos_token_ids,
            arrival_time=arrival_time,
            priority=priority,
            cache_salt=request.cache_salt,
            tenant=request.origin.tenant,
        )
        for index in range(n)
    ]


def _signed(seed: int) -> int:
    """Wrapped around to a signed 64-bit number."""
    return (seed + _SEEDS // 2) % _SEEDS - _SEEDS // 2


def _choice_params(params: SamplingParams, index: int) -> SamplingParams:
    choice = copy.copy(params)
    choice.n = 1
    if params.seed is not None:
        choice.seed = _signed(params.seed + index)
        if params.seed < -1 <= params.seed + index:
            # -1 says "no seed", so the count passes over it.
            choice.seed += 1
    if index > 0:
        # All choices share the prompt: one of them reports on it, the others may use the cache.
        choice.prompt_logprobs = None
    return choice
