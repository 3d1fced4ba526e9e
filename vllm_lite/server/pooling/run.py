"""Runs a request's prompts through a pooling engine: checks before, one vector for each after.

Knows no route. Invariant: what one request may ask for, and hold, is bounded before it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from vllm_lite.config.pooling import TOKEN_TASKS, PoolingFacts
from vllm_lite.engine.client import PromptDict
from vllm_lite.errors import RequestError, UnavailableError
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import Generation, Vector
from vllm_lite.server.pooling.protocol import PoolingBody

Vectors = NDArray[np.float32]
# Numbers of all vectors of one request: as many as MAX_INPUTS vectors of 4096 have.
MAX_NUMBERS = 1 << 23


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
    facts = context.client.config.facts.pooling
    assert facts is not None
    return facts


def begin(context: ServingContext, body: PoolingBody, prefix: str, request: Request) -> str:
    """The id of a request that may run; raises RequestError."""
    # As in vLLM, where only routes that generate name the field.
    context.check_model(body.model, param=None)
    request_id = context.request_id(prefix, request, getattr(body, "request_id", None))
    body.priority = context.priority(request, body.priority)
    context.generations.check_open()
    return request_id


@contextmanager
def naming(prompt: str, dimensions: str = "dimensions") -> Iterator[None]:
    """Let errors about a prompt or dimensions name the fields of the body that they come from."""
    fields = {"prompt": prompt, "dimensions": dimensions}
    try:
        yield
    except RequestError as error:
        if error.param not in fields:
            raise
        raise RequestError(error.message, fields[error.param]) from None


async def pool(
    context: ServingContext,
    body: PoolingBody,
    request: Request,
    request_id: str,
    prompts: Sequence[PromptDict],
    params: PoolingParams | Sequence[PoolingParams],
) -> Pooled:
    """Run the prompts to their end, unless the client leaves; raises what the engine raises."""
    generation = await started(context, body, request_id, prompts, params)
    outputs = await generation.finish(request.receive, generation.last_outputs())
    vectors = [_vector(output) for output in outputs]
    lengths = [len(output.prompt_token_ids) for output in outputs]
    return Pooled(request_id, vectors, sum(lengths))


async def started(
    context: ServingContext,
    body: PoolingBody,
    request_id: str,
    prompts: Sequence[PromptDict],
    params: PoolingParams | Sequence[PoolingParams],
) -> Generation[Vector]:
    """The prompts in the engine, for a caller that closes it; raises what the engine raises."""
    each = [params] * len(prompts) if isinstance(params, PoolingParams) else list(params)
    _check_size(facts_of(context), prompts, each[0])
    context.log_request(request_id, prompts[0].get("prompt"), each[0])
    return await context.generations.encode(
        list(prompts), each, request_id, priority=body.priority, cache_salt=body.cache_salt
    )


def check_answered(output: Vector) -> None:
    """Raise UnavailableError for an output that was aborted."""
    if output.error is not None:
        raise UnavailableError("The request was aborted before it was answered; send it again")


def _check_size(facts: PoolingFacts, prompts: Sequence[PromptDict], params: PoolingParams) -> None:
    """Raise RequestError for more numbers than one reply may hold."""
    task = params.task or facts.default_task
    width = facts.size if "embed" in task else facts.num_labels
    count = len(prompts)
    if task in TOKEN_TASKS:
        count = sum(_num_answers(facts, prompt["prompt_token_ids"]) for prompt in prompts)
    if count * width > MAX_NUMBERS:
        raise RequestError(
            f"{count} vectors of {width} numbers are more than the {MAX_NUMBERS} numbers of a "
            "reply; send fewer inputs at a time",
            "prompt",
        )


def _num_answers(facts: PoolingFacts, token_ids: list[int]) -> int:
    """The tokens of a prompt that have an answer, or a few more."""
    marks = facts.answering_token_ids
    return sum(map(token_ids.count, marks)) if marks else len(token_ids)


def _vector(output: Vector) -> Vectors:
    """The numbers of an output; raises UnavailableError where it was aborted."""
    check_answered(output)
    vector: Vectors = output.outputs.as_array()
    return vector
