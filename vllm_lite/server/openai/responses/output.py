"""The output items of a response as they grow, and the events for them.

Knows no engine and no HTTP. Invariant: the items after the last event are what the events,
taken together, describe, so a streamed response and a whole one are equal.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from vllm_lite.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)

Payload = dict[str, Any]


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
        """End the open item, if there is one."""
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
