"""Runs a request's prompts through a pooling engine: checks before, one vector for each after.

Knows no route. Invariant: what one request may ask for, and hold, is bounded before it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.engine.client import PromptDict
from vllm_lite.errors import RequestError, UnavailableError
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import Vector
from vllm_lite.server.pooling.protocol import PoolingBody

Vectors = NDArray[np.float32]
# Numbers of all vectors of one request: as many as MAX_INPUTS vectors of 4096 have.
MAX_NUMBERS = 1 << 23
_PER_TOKEN = ("token_embed", "token_classify")


@dataclass(frozen=True, slots=True)
class Pooled:
    """The answers to a request's prompts: [N] each, or [T, N] with one for each token."""

    request_id: str
    vectors: list[Vectors]
    num_tokens: int

    @property
    def usage(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.num_tokens,
            "total_tokens": self.num_tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        }

    @property
    def num_numbers(self) -> int:
        return sum(vector.size for vector in self.vectors)


def facts_of(context: ServingContext) -> PoolingFacts:
    """The facts of an engine that pools."""
    facts = context.client.config.facts.pooling
    assert facts is not None
    return facts


def begin(context: ServingContext, body: PoolingBody, prefix: str, request: Request) -> str:
    """The id of a request that may run; raises RequestError."""
    context.check_model(body.model)
    request_id = context.request_id(prefix, request, getattr(body, "request_id", None))
    body.priority = context.priority(request, body.priority)
    context.generations.check_open()
    return request_id


async def pool(
    context: ServingContext,
    body: PoolingBody,
    request: Request,
    request_id: str,
    prompts: Sequence[PromptDict],
    params: PoolingParams | Sequence[PoolingParams],
) -> Pooled:
    """Run the prompts to their end, unless the client leaves; raises what the engine raises."""
    each = [params] * len(prompts) if isinstance(params, PoolingParams) else list(params)
    facts = facts_of(context)
    _check_size(facts, prompts, each[0])
    context.log_request(request_id, prompts[0].get("prompt"), each[0])
    parts, own = list(prompts), each
    is_long = facts.enable_chunked_processing and each[0].task == "embed"
    if is_long:
        split = [_split(prompt, context.max_model_len, facts.max_embed_len) for prompt in prompts]
        parts = [part for some in split for part in some]
        own = [one for one, some in zip(each, split, strict=True) for _ in some]
    generation = context.generations.encode(
        parts, own, request_id, priority=body.priority, cache_salt=body.cache_salt
    )
    outputs = await generation.finish(request.receive, generation.last_outputs())
    vectors = [_vector(output) for output in outputs]
    lengths = [len(output.prompt_token_ids) for output in outputs]
    if is_long:
        vectors = _joined(vectors, lengths, [len(some) for some in split])
    return Pooled(request_id, vectors, sum(lengths))


def _check_size(facts: PoolingFacts, prompts: Sequence[PromptDict], params: PoolingParams) -> None:
    """Raise RequestError for more numbers than one reply may hold."""
    task = params.task or facts.default_task
    width = facts.size if "embed" in task else facts.num_labels
    count = len(prompts)
    if task in _PER_TOKEN:
        count = sum(len(prompt["prompt_token_ids"]) for prompt in prompts)
    if count * width > MAX_NUMBERS:
        raise RequestError(
            f"{count} vectors of {width} numbers are more than the {MAX_NUMBERS} numbers of a "
            "reply; send fewer inputs at a time",
            "input",
        )


def _vector(output: Vector) -> Vectors:
    """The numbers of an output; raises UnavailableError where it was aborted."""
    if output.error is not None:
        raise UnavailableError("The request was aborted before it was answered; send it again")
    vector: Vectors = output.outputs.data.numpy()
    return vector


def _split(prompt: PromptDict, length: int, most: int | None) -> list[PromptDict]:
    """A prompt in parts that the context holds; raises RequestError."""
    ids = prompt["prompt_token_ids"]
    if most is not None and len(ids) > most:
        raise RequestError(
            f"an input has {len(ids)} tokens, more than the {most} of max_embed_len "
            "(--pooler-config); shorten it or set truncate_prompt_tokens",
            "input_tokens",
        )
    if len(ids) <= length:
        return [prompt]
    starts = range(0, len(ids), length)
    return [{"prompt_token_ids": ids[start : start + length]} for start in starts]


def _joined(vectors: list[Vectors], lengths: list[int], counts: list[int]) -> list[Vectors]:
    """The mean of each prompt's parts, by their tokens; of a length of 1 where theirs is."""
    joined, at = [], 0
    for count in counts:
        some, weights = vectors[at : at + count], lengths[at : at + count]
        at += count
        if count > 1:
            mean = np.average(some, axis=0, weights=weights)
            is_normal = np.allclose(np.linalg.norm(some, axis=1), 1, rtol=1e-2)
            mean /= np.linalg.norm(mean) if is_normal else 1
            some = [mean.astype(np.float32)]
        joined.append(some[0])
    return joined
