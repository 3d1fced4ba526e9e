"""The step that takes the most memory, to be run once at start and measured.

As many requests and tokens as a step may have, a context of full length among them, and every
row drawn with filters, penalties and log-probabilities. Knows no device; its blocks are all the
null block, so that any cache will do.
"""

from __future__ import annotations

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import NewRequestData, SchedulerOutput
from vllm_lite.sampling_params import SamplingParams

_SAMPLING = SamplingParams(
    temperature=1.0, top_k=50, top_p=0.9, frequency_penalty=0.1, logprobs=1, seed=0
)


def largest_step(config: VllmConfig) -> SchedulerOutput:
    """max_num_seqs new requests that share max_num_batched_tokens."""
    scheduler, max_len = config.scheduler, config.model.max_model_len
    num_requests = scheduler.max_num_seqs
    share, more = divmod(scheduler.max_num_batched_tokens, num_requests)
    counts = [min(share + (i < more), max_len) for i in range(num_requests)]
    # The first one ends a prompt as long as there may be.
    lengths = [max_len, *counts[1:]]
    requests = [
        NewRequestData(
            request_id=f"largest-{i}",
            prompt_token_ids=[0] * length,
            sampling_params=_SAMPLING,
            block_ids=[0] * -(-length // config.cache.block_size),
            num_computed_tokens=length - count,
        )
        for i, (length, count) in enumerate(zip(lengths, counts, strict=True))
    ]
    scheduled = {request.request_id: count for request, count in zip(requests, counts, strict=True)}
    return SchedulerOutput(requests, [], scheduled, sum(counts), [], [])
