"""A beam search over an EngineClient, as if it were one request with several choices.

Knows no HTTP. Invariant: closing the iterator, at whatever moment, leaves nothing in the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from vllm_lite.beam_search import BeamSearch, beam_output
from vllm_lite.engine.client import EngineClient, Prompt
from vllm_lite.errors import UsageError
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import SamplingParams


def beam_outputs(
    client: EngineClient,
    search: BeamSearch,
    prompt: Prompt,
    params: SamplingParams,
    request_id: str,
    options: dict[str, Any],
) -> AsyncIterator[RequestOutput]:
    """The search's only output; `params` hold prompt truncation and text options.

    `options` are those of generate(). Raises here, before the first item, what generate() raises
    for the prompt. All steps run under `request_id`.
    """
    step = search.step_params(params.logprobs or 0)
    first = step.clone(
        truncate_prompt_tokens=params.truncate_prompt_tokens,
        truncation_side=params.truncation_side,
    )
    begun = client.generate(prompt, first, request_id, **options)
    return _run(client, search, begun, step, params, request_id, options)


async def _run(
    client: EngineClient,
    search: BeamSearch,
    begun: AsyncIterator[RequestOutput],
    step: SamplingParams,
    params: SamplingParams,
    request_id: str,
    options: dict[str, Any],
) -> AsyncIterator[RequestOutput]:
    first = await _last(begun)
    prompt_ids = first.prompt_token_ids
    search.begin(prompt_ids, client.config.model.max_model_len - len(prompt_ids))
    outputs: Sequence[RequestOutput] = [first]
    while True:
        if any(output.outputs[0].finish_reason == "abort" for output in outputs):
            search.abort()
        else:
            search.feed([(output.outputs[0].logprobs or [{}])[0] for output in outputs])
        prompts = search.prompts()
        if not prompts:
            break
        outputs = await _all(
            [client.generate(one, step, request_id, **options, is_part=True) for one in prompts]
        )
    try:
        tokenizer = client.tokenizer
    except UsageError:
        tokenizer = None
    yield RequestOutput(
        request_id=request_id,
        prompt=first.prompt,
        prompt_token_ids=prompt_ids,
        outputs=[
            beam_output(index, beam, prompt_ids, tokenizer, params)
            for index, beam in enumerate(search.best())
        ],
        finished=True,
        num_cached_tokens=first.num_cached_tokens,
    )


async def _all(iterators: Sequence[AsyncIterator[RequestOutput]]) -> list[RequestOutput]:
    """The last output of each; the others are ended where one fails."""
    tasks = [asyncio.ensure_future(_last(iterator)) for iterator in iterators]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _last(iterator: AsyncIterator[RequestOutput]) -> RequestOutput:
    last: RequestOutput | None = None
    async with aclosing(iterator) as outputs:  # type: ignore[type-var]
        async for output in outputs:
            last = output
    if last is None:
        raise RuntimeError("a request of a beam search ended without an output")
    return last
