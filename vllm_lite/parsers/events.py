"""Reasoning, content and tool calls as events, and as the message that the events make.

Knows no format and no protocol. Invariant: a call's argument deltas, joined, are its arguments;
a streamed answer and a whole one are the same events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More text of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """Call `index` (0, 1, ... in the order of the text) has begun; its name is complete."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArgumentsDelta:
    """More text of the JSON that call `index` has for arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """Nothing more comes for call `index`.

    `complete` is False where the text broke off, or stopped making sense, within the arguments:
    they are then the beginning of a JSON object, not a whole one.
    """

    index: int
    complete: bool = True


Event = ReasoningDelta | ContentDelta | ToolCallStart | ToolArgumentsDelta | ToolCallEnd


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    """One call; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """A whole answer; a part that the model did not write is None."""

    reasoning: str | None
    content: str | None
    tool_calls: list[ParsedToolCall]


def collect(events: Iterable[Event]) -> ParsedMessage:
    """The message that `events`, all of one answer, make."""
    reasoning: list[str] = []
    content: list[str] = []
    starts: list[ToolCallStart] = []
    arguments: list[list[str]] = []
    complete: list[bool] = []
    for event in events:
        match event:
            case ReasoningDelta(text):
                reasoning.append(text)
            case ContentDelta(text):
                content.append(text)
            case ToolCallStart():
                starts.append(event)
                arguments.append([])
                complete.append(False)
            case ToolArgumentsDelta(index, text):
                arguments[index].append(text)
            case ToolCallEnd(index, whole):
                complete[index] = whole
    calls = [
        ParsedToolCall(start.id, start.name, "".join(parts), whole)
        for start, parts, whole in zip(starts, arguments, complete, strict=True)
    ]
    return ParsedMessage("".join(reasoning) or None, "".join(content) or None, calls)
