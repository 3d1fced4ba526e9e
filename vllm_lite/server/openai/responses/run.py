"""One response on its way: what the engine gives becomes items, events and, last, a status.

Knows no HTTP. Invariants: the items after the last event are what the events describe, so a
streamed response and a whole one are equal; a run ends with one of the last statuses whatever
happens to it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any

from vllm_lite.errors import UnavailableError
from vllm_lite.outputs import RequestMetrics, RequestOutput, RequestSpecDecodeMetrics
from vllm_lite.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from vllm_lite.server.errors import Failure, failure_of
from vllm_lite.server.openai.chunks import reply_metrics
from vllm_lite.server.openai.logprobs import TokenView, chat_logprobs
from vllm_lite.server.openai.message_reader import ChoiceReaders
from vllm_lite.server.openai.responses.protocol import ResponsesRequest
from vllm_lite.server.openai.responses.store import EventLog

Payload = dict[str, Any]
Outputs = AsyncIterable[tuple[int, RequestOutput]]


class ResponseOutput:
    """Builds reasoning, message and function_call items out of a model's events."""

    def __init__(self) -> None:
        self.items: list[Payload] = []
        # Of the last item, while it is open.
        self._texts: list[str] = []
        self._logprobs: list[Payload] = []
        self._is_open = False

    def feed(self, event: Event, logprobs: Sequence[Payload] = ()) -> list[Payload]:
        """Take in an event; `logprobs` belong to the tokens of a ContentDelta."""
        match event:
            case ReasoningDelta(text):
                news = self._open_reasoning()
                news.append(self._grow("response.reasoning_text.delta", text, content_index=0))
            case ContentDelta(text):
                news = self._open_message()
                self._logprobs += logprobs
                shown = [_without_bytes(entry) for entry in logprobs]
                news.append(
                    self._grow("response.output_text.delta", text, content_index=0, logprobs=shown)
                )
            case ToolCallStart(_, call_id, name):
                news = [*self.close(), *self._open_call(call_id, name)]
            case ToolArgumentsDelta(_, text):
                news = [self._grow("response.function_call_arguments.delta", text)]
            case ToolCallEnd(_, complete):
                news = self.close(is_complete=complete)
        return news

    def add_logprobs(self, logprobs: Sequence[Payload]) -> None:
        """Give an open message those of tokens that brought no text, such as the last one."""
        if self._is_open and self.items[-1]["type"] == "message":
            self._logprobs += logprobs

    def close(self, *, is_complete: bool = True) -> list[Payload]:
        if not self._is_open:
            return []
        self._is_open = False
        item, text = self.items[-1], "".join(self._texts)
        item["status"] = "completed" if is_complete else "incomplete"
        if item["type"] == "function_call":
            item["arguments"] = text
            done = self._event(
                "response.function_call_arguments.done", name=item["name"], arguments=text
            )
            news = [done]
        else:
            (part,) = item["content"]
            part["text"] = text
            extra: Payload = {"content_index": 0, "text": text}
            if item["type"] == "message":
                part["logprobs"] = self._logprobs
                extra["logprobs"] = [_without_bytes(entry) for entry in part["logprobs"]]
            news = [
                self._event(f"response.{part['type']}.done", **extra),
                self._event("response.content_part.done", content_index=0, part=part),
            ]
        return [*news, self._item_event("response.output_item.done", item)]

    def _open_reasoning(self) -> list[Payload]:
        item = {
            "id": f"rs_{uuid.uuid4().hex}",
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": ""}],
            "encrypted_content": None,
            "status": "in_progress",
        }
        return self._open_with_part(item)

    def _open_message(self) -> list[Payload]:
        item = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "phase": None,
            "content": [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}],
        }
        return self._open_with_part(item)

    def _open_with_part(self, item: Payload) -> list[Payload]:
        """Open `item` unless one of its type is open."""
        if self._is_open and self.items[-1]["type"] == item["type"]:
            return []
        news = [*self.close()]
        self._begin(item)
        (part,) = item["content"]
        return [
            *news,
            self._item_event("response.output_item.added", {**item, "content": []}),
            self._event("response.content_part.added", content_index=0, part=dict(part)),
        ]

    def _open_call(self, call_id: str, name: str) -> list[Payload]:
        item = {
            "id": f"fc_{uuid.uuid4().hex}",
            "type": "function_call",
            "call_id": call_id,
            "name": name,
            "arguments": "",
            "status": "in_progress",
        }
        self._begin(item)
        return [self._item_event("response.output_item.added", dict(item))]

    def _begin(self, item: Payload) -> None:
        self.items.append(item)
        self._texts, self._logprobs = [], []
        self._is_open = True

    def _grow(self, kind: str, text: str, **extra: Any) -> Payload:
        self._texts.append(text)
        return self._event(kind, delta=text, **extra)

    def _event(self, kind: str, **extra: Any) -> Payload:
        index = len(self.items) - 1
        return {"type": kind, "output_index": index, "item_id": self.items[-1]["id"], **extra}

    def _item_event(self, kind: str, item: Payload) -> Payload:
        return {"type": kind, "output_index": len(self.items) - 1, "item": item}


def _without_bytes(entry: Payload) -> Payload:
    """A logprob as text events show it."""
    shown = {key: value for key, value in entry.items() if key != "bytes"}
    if "top_logprobs" in shown:
        shown["top_logprobs"] = [_without_bytes(top) for top in shown["top_logprobs"]]
    return shown


class ResponseRun:
    """Turns the outputs of one generation into a response."""

    def __init__(
        self,
        body: ResponsesRequest,
        payload: Payload,
        readers: ChoiceReaders,
        view: TokenView,
        log: EventLog,
    ) -> None:
        """`payload` is the response as it begins; the run keeps it up to date."""
        self.payload = payload
        self._body = body
        self._readers = readers
        self._view = view
        self._log = log
        self._output = ResponseOutput()
        # Of tokens whose text has not come yet.
        self._logprobs: list[Payload] = []
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._prompt: RequestOutput | None = None
        self._metrics: RequestMetrics | None = None
        self._drafts: RequestSpecDecodeMetrics | None = None
        self._num_reasoning_tokens = 0
        self._finish_reason: str | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether somebody reads the events as they come."""
        return bool(self._body.stream)

    def outcomes(self) -> list[bool]:
        """For each text that was searched for calls, whether it had one."""
        return self._readers.outcomes()

    async def whole(self, outputs: Outputs) -> Payload:
        """The finished response; raises what the engine raises."""
        async for _, output in outputs:
            self._take(output)
        if self._finish_reason == "abort":
            raise UnavailableError("The server ended the response before it was finished")
        self._num_reasoning_tokens = await self._readers.count_reasoning()
        self._end(self._last_status())
        return self.payload

    async def events(self, outputs: Outputs) -> AsyncIterator[bytes]:
        """Every event, framed; a failure is the last of them."""
        yield self._status_event("response.created")
        try:
            if self.payload["status"] == "queued":
                yield self._status_event("response.queued")
            else:
                yield self._status_event("response.in_progress")
            async for _, output in outputs:
                if self.payload["status"] == "queued":
                    self.payload["status"] = "in_progress"
                    yield self._status_event("response.in_progress")
                news = [self._log.add(event) for event in self._take(output)]
                if news:
                    yield b"".join(news)
            self._num_reasoning_tokens = await self._readers.count_reasoning()
            news = [self._log.add(event) for event in self._end(self._last_status())]
            yield b"".join(news)
        except Exception as error:
            yield self._fail(failure_of(error, self.payload["id"]))

    async def in_background(self, outputs: Outputs) -> None:
        """Run to the end, writing only to the log; cancel the task to cancel the run."""
        try:
            async for _ in self.events(outputs):
                pass
        except asyncio.CancelledError:
            for event in self._end("cancelled"):
                self._log.add(event)
        finally:
            self._log.close()

    def _take(self, output: RequestOutput) -> list[Payload]:
        """Take in an output; the events that it makes."""
        (choice,) = output.outputs
        if self._prompt is None:
            self._prompt = output
        self._text.append(choice.text)
        self._token_ids += choice.token_ids
        self._finish_reason, self._metrics = choice.finish_reason, output.metrics
        self._drafts = choice.spec_decode_metrics
        if self._body.wants_logprobs and choice.logprobs:
            count = self._body.top_logprobs or 0
            shown = chat_logprobs(self._view, choice.token_ids, choice.logprobs, count)
            self._logprobs += shown["content"]
        news: list[Payload] = []
        reader = self._readers[0]
        was_reasoning = reader.is_reasoning
        for event in reader.feed(choice):
            # What is no content has no place for log-probabilities.
            logprobs, self._logprobs = self._logprobs, []
            if isinstance(event, ReasoningDelta) and self._body.include_reasoning is False:
                continue
            news += self._output.feed(event, logprobs if isinstance(event, ContentDelta) else ())
        if was_reasoning:
            self._logprobs = []
        if choice.finish_reason is not None:
            self._output.add_logprobs(self._logprobs)
        return news

    def _last_status(self) -> str:
        if self._finish_reason == "length":
            return "incomplete"
        return "failed" if self._finish_reason in (None, "abort") else "completed"

    def _end(self, status: str) -> list[Payload]:
        """Close open items and complete the payload; returns the events for it."""
        news = self._output.close(is_complete=status == "completed")
        payload = self.payload
        payload["status"] = status
        payload["output"] = self._output.items
        payload["usage"] = self._usage()
        metrics, count, has_timings = self._metrics, len(self._token_ids), "metrics" in payload
        told = reply_metrics(metrics, self._drafts, count, has_timings=has_timings)
        if told is not None:
            payload["metrics"] = told
        if status == "incomplete":
            payload["incomplete_details"] = {"reason": "max_output_tokens"}
        elif status == "completed":
            payload["completed_at"] = int(time.time())
        elif status == "failed" and payload["error"] is None:
            message = "The server ended the response before it was finished"
            payload["error"] = {"code": "server_error", "message": message}
        if self._body.enable_response_messages and self._prompt is not None:
            prompt = self._prompt
            payload["input_messages"] = [_raw(prompt.prompt or "", prompt.prompt_token_ids)]
            payload["output_messages"] = [_raw("".join(self._text), self._token_ids)]
        # There is no event of its own for what was cancelled.
        kind = "incomplete" if status == "cancelled" else status
        return [*news, {"type": f"response.{kind}", "response": payload}]

    def _fail(self, failure: Failure) -> bytes:
        self.payload["error"] = {"code": "server_error", "message": failure.message}
        return b"".join([self._log.add(event) for event in self._end("failed")])

    def _status_event(self, kind: str) -> bytes:
        return self._log.add({"type": kind, "response": self.payload})

    def _usage(self) -> dict[str, Any] | None:
        if self._prompt is None:
            return None
        num_input, num_output = len(self._prompt.prompt_token_ids), len(self._token_ids)
        num_cached = self._prompt.num_cached_tokens or 0
        return {
            "input_tokens": num_input,
            "input_tokens_details": {
                "cached_tokens": num_cached,
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [num_input],
                "cached_tokens_per_turn": [num_cached],
            },
            "output_tokens": num_output,
            "output_tokens_details": {
                "reasoning_tokens": self._num_reasoning_tokens,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [num_output],
                "tool_output_tokens_per_turn": [0],
            },
            "total_tokens": num_input + num_output,
        }


def _raw(text: str, token_ids: list[int]) -> Payload:
    return {"message": text, "tokens": token_ids, "type": "raw_message_tokens"}
