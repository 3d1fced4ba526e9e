"""use_beam_search: what a search takes of a request, and its run over an EngineClient as if it were
one request with several choices.

Invariants: a request that gets a search asks for nothing that it would ignore; closing the
iterator, at whatever moment, leaves nothing in the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from vllm_lite.beam_search import BeamSearch, beam_output
from vllm_lite.beam_search_params import BeamSearchParams
from vllm_lite.engine.client import EngineClient, Prompt
from vllm_lite.errors import RequestError, UsageError
from vllm_lite.outputs import RequestOutput
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import Generation, current_origin
from vllm_lite.server.openai.sampling_protocol import SamplingFields

# Continuations are compared by what the model says of them, a token at a time.
_UNFIT = (
    "stop",
    "min_tokens",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "presence_penalty",
    "frequency_penalty",
    "repetition_detection",
    "thinking_token_budget",
    "logprob_token_ids",
)


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
        truncate_prompt_tokens=params.truncate_prompt_tokens, truncation_side=params.truncation_side
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


def beam_search_of(
    context: ServingContext, body: SamplingFields, params: SamplingParams
) -> BeamSearch:
    """A search for `body`, whose limits `params` hold.

    Raises RequestError for fields that do not go with a search.
    """
    for name in _UNFIT:
        if getattr(body, name):
            raise RequestError.about(name, "does not go with use_beam_search")
    if params.prompt_logprobs is not None:
        name = "echo" if body.prompt_logprobs is None else "prompt_logprobs"
        raise RequestError("a beam search cannot score its prompt", name)
    if params.structured_outputs is not None:
        raise RequestError.about(
            "use_beam_search", "cannot shape its text by a format, a grammar or a forced tool call"
        )
    wanted = BeamSearchParams(
        beam_width=1 if body.n is None else body.n,
        max_tokens=params.max_tokens or context.max_model_len,
        ignore_eos=params.ignore_eos,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
    )
    return BeamSearch(
        wanted,
        _eos_token_ids(context),
        params.stop_token_ids or (),
        max_logprobs=context.max_logprobs,
    )


def start_searches(
    context: ServingContext,
    body: SamplingFields,
    request_id: str,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    searches: Sequence[BeamSearch],
) -> Generation[RequestOutput]:
    """Put the prompts into the engine, each with its search.

    Raises what generate() raises; the caller has to close the result.
    """
    generations = context.generations
    generations.check_open()
    options: dict[str, object] = {
        "priority": body.priority,
        "cache_salt": body.cache_salt,
        "origin": current_origin(),
    }
    iterators = [
        beam_outputs(context.client, search, prompt, params, request_id, options)
        for search, prompt in zip(searches, prompts, strict=True)
    ]
    return generations.run([request_id], iterators)


def _eos_token_ids(context: ServingContext) -> set[int]:
    ids = set(context.client.config.facts.eos_token_ids)
    tokenizer = context.maybe_tokenizer
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return ids
