"""Reasoning, content and tool calls as events, and as the message that the events make.

Knows no format and no protocol. Invariant: a call's argument deltas, joined, are its arguments;
a streamed answer and a whole one are the same events.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NewId = Callable[[str, str, int], str]
_ALPHANUMERIC = string.ascii_letters + string.digits


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


def new_call_id(style: str, name: str, index: int) -> str:
    """The id of call `index` of tool `name`; styles are those of the models' own servers."""
    if style == "kimi_k2":
        return f"functions.{name}:{index}"
    if style == "mistral":  # its template accepts no other length
        return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
    if style == "call":
        return f"call_{secrets.token_hex(12)}"
    return f"chatcmpl-tool-{secrets.token_hex(8)}"


class EventSink:
    """Collects the events of one step of one answer."""

    def __init__(self, *, only_first_call: bool = False, new_id: NewId = new_call_id) -> None:
        self._events: list[Event] = []
        self._make: Callable[[str], Event] | None = None  # makes the delta being gathered
        self._parts: list[str] = []
        self._only_first = only_first_call
        self._new_id = new_id
        self.num_calls = 0
        self.needs_content = False  # reasoning is the answer if there is no other
        self._reasoning: list[str] = []

    def take(self) -> list[Event]:
        self._flush()
        taken, self._events = self._events, []
        return taken

    def reasoning(self, text: str) -> None:
        if self.needs_content:
            self._reasoning.append(text)
        self._put(ReasoningDelta, text)

    def content(self, text: str) -> None:
        self.needs_content = self.needs_content and not text.strip()
        self._put(ContentDelta, text)

    def finish(self) -> None:
        if self.needs_content and not self.num_calls:
            self.content("".join(self._reasoning))

    def start_call(self, name: str, style: str = "", call_id: str | None = None) -> None:
        """The next call; `arguments` until `end_call` are its own."""
        index = self.num_calls
        self.num_calls += 1
        if not self._is_dropped:
            self._add(ToolCallStart(index, call_id or self._new_id(style, name, index), name))

    def arguments(self, text: str) -> None:
        if not self._is_dropped:
            self._put(self._arguments_delta, text)

    def end_call(self, complete: bool = True) -> None:
        if not self._is_dropped:
            self._add(ToolCallEnd(self.num_calls - 1, complete))

    def _arguments_delta(self, text: str) -> Event:
        return ToolArgumentsDelta(self.num_calls - 1, text)

    def _put(self, make: Callable[[str], Event], text: str) -> None:
        if not text:
            return
        if make != self._make:
            self._flush()
            self._make = make
        self._parts.append(text)

    def _add(self, event: Event) -> None:
        self._flush()
        self._events.append(event)

    def _flush(self) -> None:
        if self._make is not None:
            self._events.append(self._make("".join(self._parts)))
            self._make, self._parts = None, []

    @property
    def _is_dropped(self) -> bool:
        return self._only_first and self.num_calls > 1
