"""POST /pooling with data: what a plugin makes of it, and of the answers to its prompts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.engine.client import PromptDict
from vllm_lite.errors import RequestError
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import Generation, Vector
from vllm_lite.server.pooling.inputs import text_prompts
from vllm_lite.server.pooling.protocol import MAX_INPUTS, PoolingRequest
from vllm_lite.server.pooling.run import begin, check_answered, naming, started


async def processed(context: ServingContext, body: PoolingRequest, request: Request) -> Response:
    """The plugin's reply; raises RequestError."""
    processor = context.io_processor
    if processor is None:
        raise RequestError("data needs a server with --io-processor-plugin", "data")
    request_id = begin(context, body, "pooling-", request)
    with _refusing():
        given = processor.parse_data(body.data)
        made = await processor.pre_process_async(given, request_id)
        params = processor.merge_pooling_params(
            PoolingParams(dimensions=body.dimensions, use_activation=body.use_activation)
        )
    with naming("data"):
        prompts = await _prompts(context, body, made)
        generation = await started(context, body, request_id, prompts, params)
    work = processor.post_process_async(_answers(generation), request_id)
    with _refusing():
        reply = await generation.finish(request.receive, work)
    payload = {"request_id": request_id, "created_at": int(time.time()), "data": reply}
    return context.large_replies.response(msgspec.json.encode(payload, enc_hook=_plain))


@contextmanager
def _refusing() -> Iterator[None]:
    """Refuse the request where the plugin raises ValueError."""
    try:
        yield
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError.about("data", f"is refused by the plugin: {error}"[:1000]) from None


async def _prompts(context: ServingContext, body: PoolingRequest, made: Any) -> list[PromptDict]:
    """Prompts of token ids from what the plugin made."""
    is_one = isinstance(made, str | dict) or (bool(made) and isinstance(made[0], int))
    listed = [made] if is_one else list(made)
    if not 0 < len(listed) <= MAX_INPUTS:
        raise RequestError.about("data", f"makes {len(listed)} prompts; 1 to {MAX_INPUTS} are read")
    found: list[PromptDict] = []
    for one in listed:
        if isinstance(one, list):
            found.append({"prompt_token_ids": one})
        elif isinstance(one, dict) and "prompt_token_ids" in one:
            found.append(cast("PromptDict", one))
        else:
            text = one if isinstance(one, str) else str(one["prompt"])
            found += await text_prompts(context, body, "data", [text], special=True)
    return found


async def _answers(generation: Generation[Vector]) -> AsyncIterator[tuple[int, Vector]]:
    async for index, output in generation:
        check_answered(output)
        yield index, output


def _plain(value: Any) -> Any:
    """A tensor's or an array's numbers, or a pydantic model's fields."""
    for name in ("tolist", "model_dump"):
        if (method := getattr(value, name, None)) is not None:
            return method()
    raise TypeError(f"a plugin's reply holds {type(value).__name__}, which JSON does not know")
