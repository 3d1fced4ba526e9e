"""The message of a chat reply: a parser's events as deltas and as a whole message.

Knows no engine and no framing. Invariant: the deltas of a message, joined, are the message.
"""

from __future__ import annotations

from collections.abc import Iterable

from vllm_lite.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
    collect,
)


def delta_of(event: Event, *, has_reasoning: bool) -> dict[str, object] | None:
    """The `delta` of an event; None if it has none.

    With `has_reasoning` content and reasoning name each other as null, as clients of reasoning
    models expect.
    """
    match event:
        case ContentDelta(text):
            if has_reasoning:
                return {"content": text, "reasoning": None, "reasoning_content": None}
            return {"content": text}
        case ReasoningDelta(text):
            return {"content": None, "reasoning": text, "reasoning_content": text}
        case ToolCallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ToolArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case _:
            return None


def message_of(role: str, echo: str, events: Iterable[Event]) -> dict[str, object]:
    """The `message` that `events` make, its content after `echo`.

    Content is null only where there is reasoning or a call in its place.
    """
    parsed = collect(events)
    content = echo + (parsed.content or "")
    is_empty = not content and (parsed.tool_calls or parsed.reasoning is not None)
    message: dict[str, object] = {
        "role": role,
        "content": None if is_empty else content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if parsed.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in parsed.tool_calls
        ]
    message["reasoning"] = message["reasoning_content"] = parsed.reasoning
    return message
