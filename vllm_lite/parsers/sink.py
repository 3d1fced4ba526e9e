"""Turns a parser's findings into events: numbers calls, makes ids, joins deltas.

Knows no format. Invariant: neighbouring deltas of one kind are one event of a step.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable

from vllm_lite.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)

NewId = Callable[[str, str, int], str]
_ALPHANUMERIC = string.ascii_letters + string.digits


def new_call_id(style: str, name: str, index: int) -> str:
    """The id of call `index` of tool `name`; styles are those of the models' own servers."""
    if style == "kimi_k2":
        return f"functions.{name}:{index}"
    if style == "mistral":  # its template refuses any other length
        return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
    if style == "call":
        return f"call_{secrets.token_hex(12)}"
    return f"chatcmpl-tool-{secrets.token_hex(8)}"


class EventSink:
    """Collects the events of one step of one answer."""

    def __init__(self, *, only_first_call: bool = False, new_id: NewId = new_call_id) -> None:
        self._events: list[Event] = []
        self._make: Callable[[str], Event] | None = None  # of the delta whose parts are gathered
        self._parts: list[str] = []
        self._only_first = only_first_call
        self._new_id = new_id
        self.num_calls = 0
        self.needs_content = False  # reasoning is the answer too where there is no other
        self._reasoning: list[str] = []

    def take(self) -> list[Event]:
        """The events since the last time."""
        self._flush()
        taken, self._events = self._events, []
        return taken

    def reasoning(self, text: str) -> None:
        """More reasoning."""
        if self.needs_content:
            self._reasoning.append(text)
        self._put(ReasoningDelta, text)

    def content(self, text: str) -> None:
        """More of the answer."""
        self.needs_content = self.needs_content and not text.strip()
        self._put(ContentDelta, text)

    def finish(self) -> None:
        """The answer is over."""
        if self.needs_content and not self.num_calls:
            self.content("".join(self._reasoning))

    def start_call(self, name: str, style: str = "", call_id: str | None = None) -> None:
        """The next call; `arguments` until `end_call` are its own."""
        index = self.num_calls
        self.num_calls += 1
        if not self._is_dropped:
            self._add(ToolCallStart(index, call_id or self._new_id(style, name, index), name))

    def arguments(self, text: str) -> None:
        """More of the arguments of the call that has begun."""
        if not self._is_dropped:
            self._put(self._arguments_delta, text)

    def end_call(self, complete: bool = True) -> None:
        """The call that has begun is over."""
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
