"""POST /v1/chat/completions: messages in, one or several assistant messages out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.server.body import read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.openai.beam_search import start_searches
from vllm_lite.server.openai.chat_protocol import ChatCompletionRequest
from vllm_lite.server.openai.chat_reply import ChatReply
from vllm_lite.server.openai.message_reader import logged
from vllm_lite.server.openai.prepared_chat import prepare_chat
from vllm_lite.server.openai.sampling_protocol import accepted
from vllm_lite.server.replies import EventStream


class ChatService:
    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Create a chat completion, streamed or whole."""
        context = self._context
        body = accepted(ChatCompletionRequest, await read_json(request))
        context.check_model(body.model)
        request_id = context.request_id("chatcmpl-", request, body.request_id)
        body.priority = context.priority(request, body.priority)
        prepared = await prepare_chat(context, body)
        context.log_request(request_id, prepared.prompt["prompt"], prepared.params)
        prompts, params = [prepared.prompt], prepared.params
        if prepared.search is not None:
            searches = [prepared.search]
            generation = start_searches(context, body, request_id, prompts, params, searches)
        else:
            generation = context.generations.start(
                prompts, params, request_id, priority=body.priority, cache_salt=body.cache_salt
            )
        if body.stream:
            reply = ChatReply(context, body, prepared, request_id)
            outputs = logged(context, request_id, generation)
            return EventStream(reply.events(outputs), generation, request_id)
        (output,) = await generation.finish(request.receive, generation.last_outputs())
        return await ChatReply(context, body, prepared, request_id).whole(output)
