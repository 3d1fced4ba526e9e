"""The content blocks of a message as they grow, and Anthropic's events for them.

Knows no engine and no HTTP. Invariant: the blocks of a whole message are what a client that
joins the events of a streamed one gets.
"""

from __future__ import annotations

import uuid
from typing import Any

import pydantic_core

from vllm_lite.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)

Payload = dict[str, Any]


class MessageContent:
    """Builds thinking, text and tool_use blocks out of a model's events."""

    def __init__(self) -> None:
        self.blocks: list[Payload] = []
        self._texts: list[str] = []
        self._is_open = False
        # Whether the model called a tool and finished saying so.
        self.has_calls = False

    def feed(self, event: Event) -> list[Payload]:
        """Take in an event."""
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
        """End the open block, if there is one."""
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
