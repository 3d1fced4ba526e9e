"""POST /invocations: one route for what its body asks for, as SageMaker calls servers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.errors import RequestError
from vllm_lite.server.body import read_json
from vllm_lite.server.openai.chat_service import ChatService
from vllm_lite.server.openai.completion_service import CompletionService


class InvocationsService:
    """Routes a body to chat or completions by the field that only one of them has."""

    def __init__(self, chat: ChatService, completion: CompletionService) -> None:
        self._chat = chat
        self._completion = completion

    async def create(self, request: Request) -> Response:
        """Create a chat completion from messages, or a completion from a prompt."""
        raw = await read_json(request)
        if "messages" in raw:
            return await self._chat.answer(raw, request)
        if "prompt" in raw:
            return await self._completion.answer(raw, request)
        raise RequestError(
            "The body has neither messages, as a chat request has, nor the prompt of a completion"
        )
