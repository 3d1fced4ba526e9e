"""POST /v1/responses and what becomes of a response: read again, cancelled, deleted.

Owns the store and the tasks of background responses. Invariant: a response that is not in the
background ends with its client's connection, and nothing of it stays behind.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from vllm_lite import envs
from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import NotFoundError, RequestError
from vllm_lite.outputs import RequestOutput
from vllm_lite.server.body import read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import Generation, current_origin
from vllm_lite.server.openai.chat_protocol import chat_request, renamed
from vllm_lite.server.openai.logprobs import token_view
from vllm_lite.server.openai.message_reader import ChoiceReaders, logged
from vllm_lite.server.openai.pages import page_of
from vllm_lite.server.openai.prepared_chat import PreparedChat, prepare_chat
from vllm_lite.server.openai.responses.input import (
    Item,
    chat_messages,
    continues_last,
    input_items,
    shown,
)
from vllm_lite.server.openai.responses.protocol import CHAT_NAMES, ResponsesRequest
from vllm_lite.server.openai.responses.run import Payload, ResponseRun
from vllm_lite.server.openai.responses.store import EventLog, ResponseStore, StoredResponse
from vllm_lite.server.openai.sampling_protocol import accepted
from vllm_lite.server.replies import EventStream


class ResponsesService:
    def __init__(self, context: ServingContext) -> None:
        self._context = context
        self._json = context.large_replies.json
        self._store = ResponseStore()
        # Why nothing is stored; empty where responses are.
        self._no_store = _why_no_store(context.server_config)
        # Event loops forget tasks that nobody holds.
        self._tasks: set[asyncio.Task[None]] = set()

    async def create(self, request: Request) -> Response:
        """Create a response: streamed, whole, or in the background."""
        # The key's tenant: of later requests the body's user is not known.
        owner = current_origin().tenant
        body = accepted(ResponsesRequest, await read_json(request))
        self._check(body)
        body.priority = self._context.priority(request, body.priority or 0)
        response_id = self._context.request_id("resp_", request, body.request_id)
        entry = self._entry(body, response_id, owner)
        with renamed(CHAT_NAMES):
            prepared = await prepare_chat(
                self._context, chat_request(self._chat_fields(body, entry))
            )
        entry.payload = self._payload(body, response_id, prepared)
        run = self._run(body, entry, prepared)
        if self._stores(body):
            self._store.add(entry)
        try:
            with renamed(CHAT_NAMES):
                generation = self._start(body, prepared, response_id)
        except BaseException:
            self._store.remove(entry)
            raise
        if body.background:
            return await self._answer_background(entry, run, generation)
        return await self._answer_now(request, body, entry, run, generation)

    async def retrieve(self, request: Request) -> Response:
        """Give a stored response, or, with ?stream=true, its events after ?starting_after."""
        entry = self._find(request)
        query = request.query_params
        if query.get("stream", "false").lower() not in ("true", "1"):
            return self._json(entry.payload)
        if entry.events is None:
            raise RequestError(
                "Only a response that was created with background and stream can be streamed again",
                "stream",
            )
        after = query.get("starting_after", "-1")
        # A sequence number; isdecimal alone would let through digits that int() does not take.
        if after != "-1" and not (after.isascii() and after.isdecimal() and len(after) < 10):
            raise RequestError.about("starting_after", "must be a sequence number")
        return EventStream(entry.events.read(int(after)), None, entry.id, ending=b"")

    async def input_items(self, request: Request) -> Response:
        """List what a stored response answers, with the conversation before it."""
        return self._json(page_of(self._find(request).input_items, request.query_params, shown))

    async def cancel(self, request: Request) -> Response:
        """End a background response that still runs."""
        entry = self._find(request)
        if entry.cancel is None:
            raise RequestError("Only a background response can be cancelled", "id")
        if not entry.is_finished:
            await entry.cancel()
        return self._json(entry.payload)

    async def delete(self, request: Request) -> Response:
        """Forget a stored response; one that still runs ends."""
        entry = self._find(request)
        self._store.remove(entry)
        if entry.cancel is not None and not entry.is_finished:
            await entry.cancel()
        return self._json({"id": entry.id, "object": "response", "deleted": True})

    def _check(self, body: ResponsesRequest) -> None:
        self._context.check_model(body.model)
        body.check()
        if self._no_store and body.background:
            raise RequestError.about("background", f"needs stored responses, but {self._no_store}")
        if self._no_store and body.previous_response_id:
            raise NotFoundError(
                f"There is no previous response: {self._no_store}", "previous_response_id"
            )

    def _stores(self, body: ResponsesRequest) -> bool:
        return not self._no_store and body.store is not False

    def _find(self, request: Request) -> StoredResponse:
        return self._store.get(request.path_params["response_id"], current_origin().tenant)

    def _entry(self, body: ResponsesRequest, response_id: str, owner: str) -> StoredResponse:
        """The entry of a new response, its payload still empty."""
        earlier: list[Item] = []
        if body.previous_response_id:
            try:
                previous = self._store.get(body.previous_response_id, owner)
            except NotFoundError as error:
                raise NotFoundError(error.message, "previous_response_id") from None
            if not previous.is_finished:
                raise RequestError(
                    "The previous response is not finished yet", "previous_response_id"
                )
            earlier = previous.conversation
        items = input_items(body.input, lambda item_id: self._store.item(item_id, owner))
        keeps_events = bool(body.background and body.stream)
        return StoredResponse(
            id=response_id,
            owner=owner,
            payload={},
            input_items=[*earlier, *items],
            num_earlier_items=len(earlier),
            events=EventLog(keep=True) if keeps_events else None,
        )

    def _chat_fields(self, body: ResponsesRequest, entry: StoredResponse) -> dict[str, Any]:
        messages = list(body.previous_input_messages or ())
        messages += chat_messages(entry.input_items, entry.num_earlier_items)
        if body.instructions:
            messages.insert(0, {"role": "system", "content": body.instructions})
        fields = {**body.chat_fields(), "messages": messages}
        if continues_last(entry.input_items):
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        return fields

    def _start(
        self, body: ResponsesRequest, prepared: PreparedChat, response_id: str
    ) -> Generation[RequestOutput]:
        context = self._context
        context.log_request(response_id, prepared.prompt["prompt"], prepared.params)
        return context.generations.start(
            [prepared.prompt],
            prepared.params,
            response_id,
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
        )

    def _run(
        self, body: ResponsesRequest, entry: StoredResponse, prepared: PreparedChat
    ) -> ResponseRun:
        context = self._context
        return ResponseRun(
            body,
            entry.payload,
            ChoiceReaders(1, prepared.parser, context.count_tokens),
            token_view(context, as_ids=None),
            entry.events or EventLog(keep=False),
        )

    async def _answer_background(
        self, entry: StoredResponse, run: ResponseRun, generation: Generation[RequestOutput]
    ) -> Response:
        task = asyncio.create_task(self._in_background(entry, run, generation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        async def cancel() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        entry.cancel = cancel
        if entry.events is not None:
            answer: Response = EventStream(entry.events.read(), None, entry.id, ending=b"")
        else:
            answer = self._json(entry.payload)
        # A task that is cancelled before it began would never clear away.
        await asyncio.sleep(0)
        return answer

    async def _in_background(
        self, entry: StoredResponse, run: ResponseRun, generation: Generation[RequestOutput]
    ) -> None:
        try:
            outputs = logged(self._context, entry.id, generation, is_streamed=False)
            await run.in_background(outputs)
        finally:
            await generation.close()
            self._finish(entry, run)

    async def _answer_now(
        self,
        request: Request,
        body: ResponsesRequest,
        entry: StoredResponse,
        run: ResponseRun,
        generation: Generation[RequestOutput],
    ) -> Response:
        if body.stream:
            events = self._foreground_events(entry, run, generation)
            return EventStream(events, generation, entry.id, ending=b"")
        outputs = logged(self._context, entry.id, generation, is_streamed=False)
        try:
            payload = await generation.finish(request.receive, run.whole(outputs))
        except BaseException:
            self._store.remove(entry)
            raise
        self._finish(entry, run)
        return self._json(payload)

    async def _foreground_events(
        self, entry: StoredResponse, run: ResponseRun, generation: Generation[RequestOutput]
    ) -> Any:
        """The run's events; a response whose client left is not kept."""
        is_told = False
        try:
            async for event in run.events(logged(self._context, entry.id, generation)):
                yield event
            is_told = True
        finally:
            if is_told:
                self._finish(entry, run)
            else:
                self._store.remove(entry)

    def _finish(self, entry: StoredResponse, run: ResponseRun) -> None:
        self._store.finish(entry)
        self._context.count_calls("responses", run.outcomes(), is_streamed=run.is_streamed)

    def _payload(self, body: ResponsesRequest, response_id: str, prepared: PreparedChat) -> Payload:
        """The response as it begins; every key is there from the start."""
        params = prepared.params
        room = self._context.max_model_len - len(prepared.prompt["prompt_token_ids"])
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        with_metrics = self._context.server_config.enable_per_request_metrics
        return {
            "id": response_id,
            "created_at": int(time.time()),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "metadata": body.metadata,
            "model": self._context.model_name,
            "object": "response",
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": params.temperature,
            "tool_choice": (body.tool_choice or "auto") if body.tools else "none",
            "tools": body.tools or [],
            "top_p": params.top_p,
            "background": bool(body.background),
            "completed_at": None,
            "max_output_tokens": limit,
            "max_tool_calls": body.max_tool_calls,
            "previous_response_id": body.previous_response_id,
            "prompt": None,
            "reasoning": None if body.reasoning is None else body.reasoning.model_dump(),
            "service_tier": body.service_tier or "auto",
            "status": "queued" if body.background else "in_progress",
            "store": self._stores(body),
            "text": {"format": body.format, "verbosity": body.text and body.text.verbosity},
            "top_logprobs": body.top_logprobs or 0,
            "truncation": body.truncation or "disabled",
            "usage": None,
            "user": body.user,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
            **({"metrics": None} if with_metrics else {}),
        }


def _why_no_store(config: ServerConfig) -> str:
    if not envs.VLLM_ENABLE_RESPONSES_API_STORE:
        return "this server stores none (VLLM_ENABLE_RESPONSES_API_STORE=0)"
    if config.api_server_count > 1:
        return "this server stores none: its processes (--api-server-count) share no memory"
    return ""
