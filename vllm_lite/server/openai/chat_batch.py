"""POST /v1/chat/completions/batch: many conversations in, one choice for each of them out.

Knows chat replies only as whole payloads. Invariant: all conversations run, or none.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.errors import RequestError
from vllm_lite.server.body import read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.openai.chat_protocol import MAX_MESSAGES, ChatCompletionRequest, renamed
from vllm_lite.server.openai.chat_reply import ChatReply
from vllm_lite.server.openai.prepared_chat import PreparedChat, prepare_chat
from vllm_lite.server.openai.sampling_protocol import accepted

MAX_CONVERSATIONS = 1024

Conversation = Annotated[list[dict[str, Any]], Field(max_length=MAX_MESSAGES, fail_fast=True)]


class ChatBatchRequest(ChatCompletionRequest):
    """POST /v1/chat/completions/batch: as chat's, but for its messages."""

    messages: Annotated[  # type: ignore[assignment]
        list[Conversation], Field(min_length=1, max_length=MAX_CONVERSATIONS, fail_fast=True)
    ]

    def check_batch(self) -> None:
        """Raise RequestError for what would make more than one choice of a conversation."""
        if self.n not in (None, 1):
            raise RequestError.about("n", "can only be 1 in a batch: a conversation is a choice")
        if self.use_beam_search:
            raise RequestError.about("use_beam_search", "is not possible in a batch")

    def singles(self) -> list[ChatCompletionRequest]:
        """The chat requests of the conversations; a batch is never streamed."""
        alone = {"stream": None, "stream_options": None}
        return [
            self.model_copy(update={"messages": conversation, **alone})
            for conversation in self.messages
        ]


class ChatBatchService:
    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Create one chat choice for each conversation."""
        context = self._context
        batch = accepted(ChatBatchRequest, await read_json(request))
        context.check_model(batch.model)
        batch.check_batch()
        batch.priority = context.priority(request, batch.priority)
        request_id = context.request_id("chatcmpl-", request, batch.request_id)
        singles = batch.singles()
        prepared = await self._prepare(singles)
        for index, one in enumerate(prepared):
            context.log_request(f"{request_id}-{index}", one.prompt["prompt"], one.params)
        generation = context.generations.start(
            [one.prompt for one in prepared],
            # They differ in nothing but their prompts.
            prepared[0].params,
            request_id,
            priority=batch.priority,
            cache_salt=batch.cache_salt,
        )
        outputs = await generation.finish(request.receive, generation.last_outputs())
        replies = [
            await ChatReply(context, body, ready, request_id).payload(output)
            for body, ready, output in zip(singles, prepared, outputs, strict=True)
        ]
        return context.large_replies.json(_merged(replies))

    async def _prepare(self, singles: list[ChatCompletionRequest]) -> list[PreparedChat]:
        prepared = []
        for index, body in enumerate(singles):
            # Other requests get their turn between long conversations.
            await asyncio.sleep(0)
            with renamed({"messages": f"messages.{index}"}):
                prepared.append(await prepare_chat(self._context, body))
        return prepared


# What a reply says of its one prompt is said by each choice of a batch.
_OF_A_PROMPT = ("prompt_logprobs", "prompt_token_ids", "prompt_text")


def _merged(replies: list[dict[str, Any]]) -> dict[str, Any]:
    """One reply with the choices of all, numbered as their conversations."""
    choices = []
    for index, reply in enumerate(replies):
        (choice,) = reply["choices"]
        of_prompt = {name: reply[name] for name in _OF_A_PROMPT if reply[name] is not None}
        choices.append({**choice, "index": index, **of_prompt})
    nothing = dict.fromkeys(_OF_A_PROMPT)
    usage = _added([reply["usage"] for reply in replies])
    return {**replies[0], **nothing, "choices": choices, "usage": usage, "metrics": None}


def _added(usages: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums of equal keys; what no reply counts stays null."""
    total: dict[str, Any] = {}
    for name in usages[0]:
        known = [usage[name] for usage in usages if usage[name] is not None]
        if known and isinstance(known[0], dict):
            total[name] = _added(known)
        else:
            total[name] = sum(known) if known else None
    return total
