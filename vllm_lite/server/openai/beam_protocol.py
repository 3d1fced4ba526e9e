"""use_beam_search: what a beam search takes of a request and what not; and how choices start.

Invariant: a request that gets a search asks for nothing that it would ignore.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.beam_search import BeamSearch
from vllm_lite.beam_search_params import BeamSearchParams
from vllm_lite.engine.client import Prompt
from vllm_lite.errors import RequestError
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.server.beam_outputs import beam_outputs
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


def beam_search_of(
    context: ServingContext, body: SamplingFields, params: SamplingParams
) -> BeamSearch:
    """A search for `body`, whose limits `params` hold.

    Raises RequestError for fields that do not go with a search.
    """
    for name in _UNFIT:
        if getattr(body, name):
            raise RequestError(f"{name} does not go with use_beam_search", name)
    if params.prompt_logprobs is not None:
        name = "echo" if body.prompt_logprobs is None else "prompt_logprobs"
        raise RequestError("a beam search cannot score its prompt", name)
    if params.structured_outputs is not None:
        raise RequestError(
            "use_beam_search cannot shape its text by a format, a grammar or a forced tool call",
            "use_beam_search",
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
) -> Generation:
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
