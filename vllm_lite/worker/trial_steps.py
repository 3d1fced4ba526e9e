"""Steps to be run once at start: the one that takes the most memory, and some small ones.

Single tokens show whether the weights are sound, and a small step how long the largest may take.

The largest has as many requests and tokens as a step may have, a context of full length among them,
and every row drawn with filters, penalties and log-probabilities. The small ones have all kernels
compiled before a request waits for them: there is another for some numbers of rows, for a number
that is 1 or that 16 divides, and for the splits of a context. The first of them has a mask and
reports its token alone. Knows no device; all blocks are the null block, so that any cache will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import ModelRunnerOutput, NewRequestData, SchedulerOutput, TokenMasks
from vllm_lite.errors import CheckpointError
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import SamplingParams

_COSTLY = SamplingParams(
    temperature=1.0, top_k=50, top_p=0.9, frequency_penalty=0.1, logprobs=1, seed=0
)
_GREEDY = SamplingParams(temperature=0.0)
_REPORTED = SamplingParams(temperature=0.0, logprobs=0)
_SAMPLES = 16
_TIMED_CONTEXT, _TIMED_TOKENS = 2048, 8
# Tokens of small steps. Products of up to four rows have kernels for 1, 2 and 4; tiles of more are
# for up to 16, 64 or more, and the fewer of them there are the more parts sums may have.
_TOKENS = (1, 2, 3, 5, 16, 17, 32, 64, 65, 112, 127, 256)
# Contexts whose attention has 2, 4, 8, 16 and 32 splits, where one token is alone.
_CONTEXTS = (128, 256, 512, 1024, 2048)


def trial_steps(config: VllmConfig, num_groups: int = 1) -> list[SchedulerOutput]:
    """Steps to submit in this order, each after the last one's answer; the largest comes first.

    `num_groups`: block tables of a request.
    """
    steps = [_largest_step(config)]
    for lengths, counts in _small(config):
        sampling = _GREEDY if len(steps) > 1 else _REPORTED
        steps.append(_step(config, lengths, counts, sampling, after=steps[-1]))
        if sampling is _REPORTED and config.facts.pooling is None:
            bits = np.full((len(counts), -(-config.facts.vocab_size // 32)), -1, np.int32)
            steps[-1].token_masks = TokenMasks(list(steps[-1].num_scheduled_tokens), bits)
    for request in (request for step in steps for request in step.new_requests):
        request.block_ids *= num_groups
    return steps


def sample_steps(config: VllmConfig, num_blocks: int, num_groups: int = 1) -> list[SchedulerOutput]:
    """Requests of one token, each with a block of its own, and then their end.

    Several, because a weight of 1e38 spoils about half of all tokens.
    """
    scheduler, size = config.scheduler, config.facts.vocab_size
    most = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens, size)
    if num_groups:
        most = min(most, num_blocks - 1)
    count = min(_SAMPLES, most)
    step = _step(config, [1] * count, [1] * count)
    for i, request in enumerate(step.new_requests):
        request.prompt_token_ids = [i * size // count]
        request.block_ids = [[i + 1]] * num_groups
    return [step, SchedulerOutput([], {}, {}, {}, 0, list(step.num_scheduled_tokens), [])]


def timed_step(config: VllmConfig, num_groups: int = 1) -> tuple[list[SchedulerOutput], float]:
    """A small step with the end of its request, and how many times as long the largest may take.

    Some tokens of a prompt, the context before them as long as may be, up to 2,048. A token takes
    the longer the fewer are beside it, and attention no longer than the context: so the largest
    step takes at most as many times more as it has tokens, and context for each.
    """
    scheduler, max_len = config.scheduler, config.model.max_model_len
    length = min(max_len, _TIMED_CONTEXT)
    count = min(_TIMED_TOKENS, length, scheduler.max_num_batched_tokens)
    if not _has_context(config):
        length = max_len = count
    step = _step(config, [length], [count])
    step.new_requests[0].block_ids *= num_groups
    times = scheduler.max_num_batched_tokens / count * max_len / length
    return [step, SchedulerOutput([], {}, {}, {}, 0, list(step.num_scheduled_tokens), [])], times


def check_answer(config: VllmConfig, answer: ModelRunnerOutput) -> None:
    """Raise CheckpointError where a step of whole prompts got no token.

    Whatever is not finite among the weights makes all that follows not finite: better said now
    than in each request.
    """
    if answer.errors:
        what = "logits" if config.facts.pooling is None else "answers"
        raise CheckpointError(
            f"{config.facts.path} gives {what} that are not finite: its weights are damaged, or "
            f"their products outgrow --dtype {config.model.dtype}; fetch it again, or use another "
            "--dtype"
        )


def _has_context(config: VllmConfig) -> bool:
    """Whether a step's tokens may follow others that are cached."""
    return config.facts.pooling is None or config.facts.pooling.is_causal


def _small(config: VllmConfig) -> Iterator[tuple[list[int], list[int]]]:
    """Lengths of the requests of each small step, and how many of their tokens are computed."""
    scheduler, max_len = config.scheduler, config.model.max_model_len
    most, rows = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    # The most rows that sample, those that 16 divides and those that it does not.
    tokens = {*_TOKENS, rows, rows - 1, rows // 16 * 16} - {0}
    shared = [_shared(config, number) for number in (7, *sorted(tokens))]
    # Long enough for a prompt's tile; the other request's token is another tile's.
    mixed = [min(16, max_len), 1][:rows]
    for counts in (*shared, mixed):
        if sum(counts) <= most:
            yield counts, counts
    if _has_context(config):
        for length in sorted({min(context, max_len) for context in _CONTEXTS}):
            yield [length], [1]
        for counts in ([min(2, max_len)], mixed):
            if sum(counts) <= most:
                yield [min(_CONTEXTS[-1], max_len)] * len(counts), counts


def _shared(config: VllmConfig, num_tokens: int) -> list[int]:
    """So many tokens, or fewer if they do not fit, shared by as many requests as may be."""
    num_requests = min(config.scheduler.max_num_seqs, num_tokens)
    share, more = divmod(num_tokens, num_requests)
    return [min(share + (i < more), config.model.max_model_len) for i in range(num_requests)]


def _largest_step(config: VllmConfig) -> SchedulerOutput:
    """max_num_seqs requests that share max_num_batched_tokens."""
    scheduler, max_len = config.scheduler, config.model.max_model_len
    if not _has_context(config):
        counts = [max_len] * (scheduler.max_num_batched_tokens // max_len)
        counts = counts[: scheduler.max_num_seqs]
        return _step(config, counts, counts)
    counts = _shared(config, scheduler.max_num_batched_tokens)
    # The first one ends a prompt as long as there may be.
    return _step(config, [max_len, *counts[1:]], counts, _COSTLY)


def _step(
    config: VllmConfig,
    lengths: Sequence[int],
    counts: Sequence[int],
    sampling: SamplingParams = _GREEDY,
    after: SchedulerOutput | None = None,
) -> SchedulerOutput:
    """New requests whose last `counts` tokens are computed; all sample, or are pooled."""
    facts = config.facts.pooling
    task = sampling if facts is None else PoolingParams().fitted(facts)
    requests = [
        NewRequestData(
            request_id=f"trial-{i}",
            prompt_token_ids=[0] * length,
            task=task,
            block_ids=[[0] * -(-length // config.cache.block_size)],
            num_computed_tokens=length - count,
        )
        for i, (length, count) in enumerate(zip(lengths, counts, strict=True))
    ]
    scheduled = {new.request_id: count for new, count in zip(requests, counts, strict=True)}
    finished = [] if after is None else list(after.num_scheduled_tokens)
    verified = dict.fromkeys(scheduled, int(facts is None))
    return SchedulerOutput(requests, {}, scheduled, verified, sum(counts), finished, [])
