"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the same engine.

Knows chat only as PreparedChat. Invariant: the blocks of a streamed message and of a whole one
are made of the same events.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

import msgspec
import pydantic_core
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.errors import RequestError, UnavailableError
from vllm_lite.outputs import RequestOutput
from vllm_lite.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from vllm_lite.parsers.registry import reasoning_markers
from vllm_lite.server.anthropic.messages_protocol import (
    CHAT_NAMES,
    CountTokensRequest,
    MessagesRequest,
    with_system_first,
)
from vllm_lite.server.body import json_response, read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.errors import Failure, failure_of
from vllm_lite.server.generation import note_user
from vllm_lite.server.openai.chat_protocol import chat_request, renamed
from vllm_lite.server.openai.message_reader import ChoiceReaders, logged
from vllm_lite.server.openai.prepared_chat import PreparedChat, prepare_chat
from vllm_lite.server.openai.sampling_protocol import accepted
from vllm_lite.server.replies import EventStream, named_event

Payload = dict[str, Any]
_encode = msgspec.json.Encoder().encode


class MessageContent:
    """Builds thinking, text and tool_use blocks out of a model's events."""

    def __init__(self) -> None:
        self.blocks: list[Payload] = []
        self._texts: list[str] = []
        self._is_open = False
        # Whether the model called a tool and finished saying so.
        self.has_calls = False

    def feed(self, event: Event) -> list[Payload]:
        match event:
            case ReasoningDelta(text):
                news = self._open({"type": "thinking", "thinking": "", "signature": ""})
                news.append(self._grow(text, {"type": "thinking_delta", "thinking": text}))
            case ContentDelta(text):
                news = self._open({"type": "text", "text": ""})
                news.append(self._grow(text, {"type": "text_delta", "text": text}))
            case ToolCallStart(_, call_id, name):
                news = self.close()
                news += self._open({"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case ToolArgumentsDelta(_, text):
                news = [self._grow(text, {"type": "input_json_delta", "partial_json": text})]
            case ToolCallEnd(_, complete):
                self.has_calls |= complete
                news = self.close()
        return news

    def close(self) -> list[Payload]:
        if not self._is_open:
            return []
        self._is_open = False
        block, text = self.blocks[-1], "".join(self._texts)
        news = []
        if block["type"] == "tool_use":
            # Where the model broke off, what it had said counts, as it does for who streams.
            block["input"] = _parsed(text)
        else:
            block[block["type"]] = text
        if block["type"] == "thinking":
            # Clients send it back and ask for it to be there; here it proves nothing.
            block["signature"] = uuid.uuid4().hex
            news = [self._delta({"type": "signature_delta", "signature": block["signature"]})]
        return [*news, self._event("content_block_stop")]

    def finish(self) -> list[Payload]:
        """End the message, which has at least one block."""
        if not self.blocks:
            return [*self._open({"type": "text", "text": ""}), *self.close()]
        return self.close()

    def _open(self, block: Payload) -> list[Payload]:
        """Open `block` unless one of its type is open."""
        if self._is_open and self.blocks[-1]["type"] == block["type"]:
            return []
        news = self.close()
        self.blocks.append(block)
        self._texts = []
        self._is_open = True
        return [*news, self._event("content_block_start", content_block=dict(block))]

    def _grow(self, text: str, delta: Payload) -> Payload:
        self._texts.append(text)
        return self._delta(delta)

    def _delta(self, delta: Payload) -> Payload:
        return self._event("content_block_delta", delta=delta)

    def _event(self, kind: str, **extra: Any) -> Payload:
        return {"type": kind, "index": len(self.blocks) - 1, **extra}


def _parsed(arguments: str) -> Payload:
    try:
        value = pydantic_core.from_json(arguments or "{}", allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def error_body(failure: Failure) -> bytes:
    """The server's error in Anthropic's envelope: the same object, one key more around it."""
    return b'{"type":"error",' + failure.body()[1:]


def error_response(failure: Failure) -> Response:
    body = error_body(failure)
    return Response(body, failure.status, failure.headers, media_type="application/json")


class MessagesService:
    def __init__(self, context: ServingContext) -> None:
        self._context = context
        name = context.parsers.reasoning
        # Found out when a client first sends one between the turns.
        self._takes_system: bool | None = None
        self._can_limit_thinking = name is not None and reasoning_markers(name) is not None

    async def create(self, request: Request) -> Response:
        """Create a message, streamed or whole."""
        context = self._context
        body = accepted(MessagesRequest, await read_json(request))
        context.check_model(body.model)
        message_id = context.request_id("msg_", request, None)
        note_user((body.metadata or {}).get("user_id"))
        with renamed(CHAT_NAMES):
            prepared = await self._prepare(body)
            context.log_request(message_id, prepared.prompt["prompt"], prepared.params)
            generation = context.generations.start(
                [prepared.prompt],
                prepared.params,
                message_id,
                priority=context.priority(request, body.priority or 0),
                cache_salt=body.cache_salt,
            )
        reply = _MessageReply(context, prepared, message_id, is_streamed=bool(body.stream))
        outputs = logged(context, message_id, generation, is_streamed=bool(body.stream))
        if body.stream:
            return EventStream(reply.events(outputs), generation, message_id, ending=b"")
        payload = await generation.finish(request.receive, reply.whole(outputs))
        return context.large_replies.json(payload)

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens of the prompt that a message would be created from."""
        context = self._context
        body = accepted(CountTokensRequest, await read_json(request))
        context.check_model(body.model)
        with renamed(CHAT_NAMES):
            prepared = await self._prepare(body)
        count = len(prepared.prompt["prompt_token_ids"])
        return json_response(
            {"input_tokens": count, "context_management": {"original_input_tokens": count}}
        )

    async def _takes_system_anywhere(self) -> bool:
        """Whether the chat template takes system messages between the turns, as clients send."""
        if self._takes_system is None:
            turns = [{"role": role, "content": "x"} for role in ("system", "user") * 2]
            try:
                template = self._context.chat_template
                await self._context.render(messages=turns, chat_template=template)
                self._takes_system = True
            except RequestError:
                self._takes_system = False
        return self._takes_system

    async def _prepare(self, body: CountTokensRequest) -> PreparedChat:
        fields = body.chat_body()
        roles = [message["role"] for message in fields["messages"]]
        if "system" in roles[1:] and not await self._takes_system_anywhere():
            fields["messages"] = with_system_first(fields["messages"])
        effort = self._context.server_config.anthropic_disabled_thinking_effort
        if body.thinking is not None and body.thinking.type == "disabled" and effort != "auto":
            fields["reasoning_effort"] = effort
        if not self._can_limit_thinking:
            # A model that does not think, as far as the server knows, keeps within any budget.
            fields.pop("thinking_token_budget", None)
        return await prepare_chat(self._context, chat_request(fields))


class _MessageReply:
    def __init__(
        self, context: ServingContext, prepared: PreparedChat, message_id: str, *, is_streamed: bool
    ) -> None:
        self._context = context
        self._message_id = message_id
        self._readers = ChoiceReaders(1, prepared.parser, context.count_tokens)
        self._is_streamed = is_streamed
        self._content = MessageContent()
        self._prompt: RequestOutput | None = None
        self._num_output_tokens = 0
        self._stop_reason: str | int | None = None

    async def whole(self, outputs: AsyncIterable[tuple[int, RequestOutput]]) -> Payload:
        """The message as one object; raises what the engine raises."""
        async for _, output in outputs:
            self._take(output)
        self._content.finish()
        stop = self._stop()
        return {**self._message(), "content": self._content.blocks, **stop}

    async def events(
        self, outputs: AsyncIterable[tuple[int, RequestOutput]]
    ) -> AsyncIterator[bytes]:
        """Every event, framed; a failure is the last of them."""
        try:
            async for _, output in outputs:
                is_first = self._prompt is None
                news = self._take(output)
                if is_first:
                    news.insert(0, {"type": "message_start", "message": self._beginning()})
                if news:
                    yield b"".join([_framed(event) for event in news])
            stop = {"type": "message_delta", "delta": self._stop(), "usage": self._usage()}
            last = [*self._content.finish(), stop, {"type": "message_stop"}]
            yield b"".join([_framed(event) for event in last])
        except Exception as error:
            yield named_event("error", error_body(failure_of(error, self._message_id)))

    def _take(self, output: RequestOutput) -> list[Payload]:
        (choice,) = output.outputs
        self._prompt = self._prompt or output
        self._num_output_tokens += len(choice.token_ids)
        self._stop_reason = choice.stop_reason
        events = self._readers[0].feed(choice)
        if choice.finish_reason is not None:
            # A message counts as a chat completion.
            outcomes = self._readers.outcomes()
            self._context.count_calls("chat_completions", outcomes, is_streamed=self._is_streamed)
        return [payload for event in events for payload in self._content.feed(event)]

    def _stop(self) -> Payload:
        """Why the message ends, in Anthropic's words; raises UnavailableError for no good end."""
        reason, stop = self._readers[0].finish_reason, self._stop_reason
        if reason in (None, "abort"):
            raise UnavailableError("The server ended the message before it was finished")
        if reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if self._content.has_calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if reason == "stop" and isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def _message(self) -> Payload:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "model": self._context.model_name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def _beginning(self) -> Payload:
        """The message as it starts; cached input tokens are reported at the end, as in vLLM."""
        num_input = len(self._prompt.prompt_token_ids) if self._prompt is not None else 0
        usage = {"input_tokens": num_input, "output_tokens": self._num_output_tokens}
        return {**self._message(), "usage": usage}

    def _usage(self) -> dict[str, int]:
        """The usage; Anthropic does not count cached tokens as input."""
        prompt = self._prompt
        num_input = len(prompt.prompt_token_ids) if prompt is not None else 0
        usage = {"input_tokens": num_input, "output_tokens": self._num_output_tokens}
        if prompt is not None and self._context.server_config.enable_prompt_tokens_details:
            num_cached = prompt.num_cached_tokens or 0
            usage["input_tokens"] -= num_cached
            usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": num_cached}
        return usage


def _framed(event: Payload) -> bytes:
    return named_event(event["type"], _encode(event))
