"""The frame that every tool format shares: prose, then calls, then prose again.

Knows no format. A format reads the text after one of its openers and announces each call as soon
as its name, and that arguments follow, is sure. Text that fits no format is content, less the
format's marks. Where the arguments of a call that was announced stop making sense, the call ends as
incomplete, its JSON closed, and the text from there on is content; where the text ends within
them without the model's having ended it, they stay the beginning of a JSON object. White space
alone between calls is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from vllm_lite.parsers.events import EventSink
from vllm_lite.parsers.literals import ending
from vllm_lite.parsers.reasoning import Interludes
from vllm_lite.parsers.source import MAX_NAME, SPACE, EndOfText, Malformed, Reading, Source
from vllm_lite.parsers.tools.spec import ToolSpec

_CONTROL = re.compile(r"[|\uff5c\]]|<.*[_:]")
_MAX_REREAD = 4 * MAX_NAME  # characters of a failed call searched for another


def is_control(mark: str) -> bool:
    """Whether `mark` is so unlike prose that it is never shown."""
    return bool(_CONTROL.search(mark))


class CallWriter:
    """Receives a call as a format reads it."""

    def __init__(
        self, source: Source, sink: EventSink, tools: Iterable[ToolSpec], id_style: str
    ) -> None:
        self.source = source
        self.tools: Mapping[str, ToolSpec] = {tool.name: tool for tool in tools}
        self._sink = sink
        self._id_style = id_style
        self._is_open = False
        self._arguments: list[str] = []  # of the open call
        self.num_calls = 0  # of this answer

    def begin(self, name: str, call_id: str | None = None) -> None:
        """A call of `name` is sure: what was read for it is no content any more."""
        self.source.record()
        self._sink.start_call(name, self._id_style, call_id)
        self._is_open = True
        self._arguments = []
        self.num_calls += 1

    def put(self, json_text: str) -> None:
        """More of the arguments' JSON, for everything read so far."""
        self._sink.arguments(json_text)
        self._arguments.append(json_text)
        self.source.record()

    def end(self) -> None:
        """The arguments are a whole JSON object."""
        self._sink.end_call()
        self._is_open = False
        self.source.record()

    def whole(self, name: str, arguments: str = "{}") -> None:
        """A call whose arguments are known at once."""
        self.begin(name)
        self.put(arguments)
        self.end()

    def content(self, text: str, rest: str = "") -> None:
        """Show `text`, which belongs to no call, of what was read so far; `rest` came after it."""
        self._sink.content(text)
        self.source.record(rest)

    def read_end(self, closers: Iterable[str]) -> Reading[None]:
        """Read one of `closers` after calls that are whole; what stands there else is content."""
        yield from self.source.skip_space()
        yield from self.source.expect(*closers)

    def abandon(self, *, is_cut: bool) -> str:
        """Give up in the midst of calls; returns what was read that belongs to none.

        The arguments become whole JSON, but not where the text's end has cut them: nobody shall
        take those for all that the model wanted to say.
        """
        if self._is_open:
            if not is_cut:
                self._sink.arguments(ending("".join(self._arguments)))
            self._sink.end_call(complete=False)
        self._is_open = False
        return self.source.recorded()

    def require_known(self, name: str) -> None:
        """Raise Malformed where `name` is no tool: for formats that prose could resemble."""
        if name not in self.tools:
            raise Malformed


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The fields of every format beside the marks of its calls; see ToolFormat."""

    wrappers: tuple[str, ...] = ()
    id_style: str = ""
    needs_special_tokens: bool = True


class ToolFormat(Protocol):
    """One way to write calls."""

    @property
    def id_style(self) -> str:
        """Of the ids of calls; see `new_call_id`."""

    @property
    def openers(self) -> tuple[str, ...]:
        """The texts that may begin calls within prose."""

    @property
    def wrappers(self) -> tuple[str, ...]:
        """Marks around prose or calls that mean nothing by themselves; dropped."""

    def read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        """Read what follows `opener`, which has been read, to the end of its calls."""


class _Prose:
    """Content between calls: a run of only white space is held back, then dropped."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._held: list[str] | None = []

    def put(self, text: str) -> None:
        if self._held is None:
            self._sink.content(text)
            return
        self._held.append(text)
        if text.strip(SPACE):
            self._sink.content("".join(self._held))
            self._held = None

    def break_off(self) -> None:
        self._held = []

    def finish(self) -> None:
        if self._held and not self._sink.num_calls:
            self._sink.content("".join(self._held))


def read_tools(
    tool_format: ToolFormat,
    source: Source,
    sink: EventSink,
    tools: Iterable[ToolSpec],
    interludes: Interludes | None = None,
) -> Reading[None]:
    """Read a whole answer: its content and its calls go to `sink`."""
    starts = interludes.starts if interludes else ()
    wrappers = interludes.wrappers if interludes else ()
    strays = tuple(getattr(tool_format, "strays", ()))
    closers = tuple(getattr(tool_format, "closers", ()))
    marks = (*tool_format.openers, *tool_format.wrappers, *wrappers, *starts)
    marks += tuple(filter(is_control, strays))
    calls = CallWriter(source, sink, tools, tool_format.id_style)
    prose = _Prose(sink)
    opener: str | None = None
    is_damaged = False  # in malformed calls
    while True:
        stops = (*marks, *strays) if is_damaged else marks
        if opener is None:
            has_called = calls.num_calls > 0
            opener = yield from source.until(stops, prose.put, drops_cut=has_called)
        if opener is None:
            prose.finish()
            return
        if interludes and opener in starts:
            opener = yield from interludes.read(source)
            continue
        if opener in tool_format.openers:
            is_damaged = not (yield from _read_calls(tool_format, opener, calls, prose))
        elif opener in closers:
            is_damaged = False
        opener = None


def _read_calls(
    tool_format: ToolFormat, opener: str, calls: CallWriter, prose: _Prose
) -> Reading[bool]:
    """Read the calls after `opener`; whether they were whole. What is none is left to be read."""
    source = calls.source
    source.record(opener)
    num_calls = calls.num_calls
    is_cut = False
    try:
        yield from tool_format.read_calls(opener, calls)
        source.recorded()
        lost = None
    except Malformed:
        lost = calls.abandon(is_cut=False)
    except EndOfText:
        lost, is_cut = calls.abandon(is_cut=source.is_cut), True
    if calls.num_calls > num_calls:
        prose.break_off()
    if lost is None:
        return True
    if calls.num_calls == num_calls:
        lost = lost.removeprefix(opener)
        if not is_control(opener):
            prose.put(opener)
    # A call that the end of the text cuts off is not content.
    if is_cut and (calls.num_calls > num_calls or (calls.num_calls and is_control(opener))):
        return False
    if len(lost) > _MAX_REREAD:
        prose.put(lost[:-_MAX_REREAD])
        lost = lost[-_MAX_REREAD:]
    source.unread(lost)
    return False
