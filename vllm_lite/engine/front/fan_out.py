"""From a request to the engine core's sequences."""

from __future__ import annotations

import copy

from vllm_lite.core.step import EngineCoreRequest
from vllm_lite.engine.front.input_processor import ProcessedInput
from vllm_lite.sampling_params import SamplingParams

_SEEDS = 1 << 64


def fan_out(
    request_id: str, request: ProcessedInput, arrival_time: float, priority: int = 0
) -> list[EngineCoreRequest]:
    """A sequence for each of the n choices of a request, or for each part of its prompt.

    With n > 1 their ids are `0_ID`, `1_ID`, ... and choice i samples with seed + i, so that
    seeded choices differ from each other and repeat as a whole.
    """
    sequences, params = request.sequences, request.params
    n = len(sequences)
    return [
        EngineCoreRequest(
            request_id=request_id if n == 1 else f"{index}_{request_id}",
            prompt_token_ids=token_ids,
            task=_choice_params(params, index)
            if n > 1 and isinstance(params, SamplingParams)
            else params,
            eos_token_ids=request.eos_token_ids,
            arrival_time=arrival_time,
            priority=priority,
            cache_salt=request.cache_salt,
            tenant=request.origin.tenant,
        )
        for index, token_ids in enumerate(sequences)
    ]


def _choice_params(params: SamplingParams, index: int) -> SamplingParams:
    choice = copy.copy(params)
    choice.n = 1
    if params.seed is not None:
        # Wrapped around to a signed 64-bit number.
        choice.seed = (params.seed + index + _SEEDS // 2) % _SEEDS - _SEEDS // 2
        if params.seed < -1 <= params.seed + index:
            # -1 means "no seed" and is skipped.
            choice.seed += 1
    if index > 0:
        # One choice reports on the prompt, so that the others may use the prefix cache.
        choice.prompt_logprobs = None
    return choice
