"""POST /v1/completions: prompts in, continuations out; and POST /invocations."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.engine.client import Prompt
from vllm_lite.errors import RequestError
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.server.body import read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.openai.beam_search import beam_search_of, start_searches
from vllm_lite.server.openai.chat_service import ChatService
from vllm_lite.server.openai.completion_protocol import CompletionRequest
from vllm_lite.server.openai.completion_reply import CompletionReply
from vllm_lite.server.openai.message_reader import logged
from vllm_lite.server.openai.sampling_protocol import (
    accepted,
    blamed_on,
    effective_max_tokens,
    from_the_start,
)
from vllm_lite.server.replies import EventStream

DEFAULT_MAX_TOKENS = 16
# Prompts tokenised before others get the event loop.
_PROMPTS_PER_TURN = 16


class CompletionService:
    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Create a completion, streamed or whole."""
        context = self._context
        body = accepted(CompletionRequest, await read_json(request))
        context.check_model(body.model)
        body.check()
        request_id = context.request_id("cmpl-", request, body.request_id)
        body.priority = context.priority(request, body.priority)
        params = self._sampling_params(body)
        context.generations.check_open()
        prompts, texts = await self._prompts(body)
        with blamed_on("structured_outputs" if body.structured_outputs else "response_format"):
            await context.generations.prepare(params)
        context.log_request(request_id, texts[0], params)
        if body.use_beam_search:
            searches = [beam_search_of(context, body, params) for _ in prompts]
            generation = start_searches(context, body, request_id, prompts, params, searches)
        else:
            generation = context.generations.start(
                prompts, params, request_id, priority=body.priority, cache_salt=body.cache_salt
            )
        reply = CompletionReply(context, body, params, request_id, texts)
        if body.stream:
            news = logged(context, request_id, generation)
            return EventStream(reply.events(news), generation, request_id)
        outputs = await generation.finish(request.receive, generation.last_outputs())
        return await reply.whole(outputs)

    def _sampling_params(self, body: CompletionRequest) -> SamplingParams:
        context = self._context
        scored = body.prompt_logprobs
        if scored is None and body.echo:
            scored = body.logprobs
        # A prompt is scored in the step that samples after it, so one token is generated.
        asked = 1 if body.is_prompt_only else body.max_tokens
        return body.sampling_params(
            context.sampling_defaults,
            max_tokens=effective_max_tokens(
                asked,
                "max_tokens",
                default=DEFAULT_MAX_TOKENS,
                cap=context.max_tokens_cap,
                limit=context.max_model_len,
            ),
            logprobs=body.logprobs,
            prompt_logprobs=scored,
            # Reasoning is not split off here, so the whole text is constrained.
            constraint=from_the_start(body.constraint()),
        )

    async def _prompts(self, body: CompletionRequest) -> tuple[list[Prompt], list[str | None]]:
        """The prompts for the engine and their texts, None where they are token ids."""
        prompts: list[Prompt] = []
        texts: list[str | None] = []
        for index, one in enumerate(body.prompts()):
            if index % _PROMPTS_PER_TURN == 0:
                await asyncio.sleep(0)
            if isinstance(one, list):
                prompts.append(one)
                texts.append(None)
                continue
            token_ids = await self._context.encode(
                one,
                "prompt",
                special=body.add_special_tokens,
                cut=body.truncate_prompt_tokens is not None,
            )
            prompts.append({"prompt": one, "prompt_token_ids": token_ids})
            texts.append(one)
        return prompts, texts


class InvocationsService:
    """Routes a body to chat or completions by the field that only one of them has."""

    def __init__(self, chat: ChatService, completion: CompletionService) -> None:
        self._chat = chat
        self._completion = completion

    async def create(self, request: Request) -> Response:
        """Create a chat completion from messages, or a completion from a prompt."""
        raw = await read_json(request)
        if "messages" in raw:
            return await self._chat.create(request)
        if "prompt" in raw:
            return await self._completion.create(request)
        raise RequestError(
            "The body has neither messages, as a chat request has, nor the prompt of a completion"
        )
