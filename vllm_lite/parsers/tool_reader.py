"""The frame that every tool format shares: prose, then calls, then prose again.

Knows no format. A format reads the text after one of its openers and announces each call as soon
as its name, and that arguments follow, is sure. Text that fits no format is content, unchanged.
Where the arguments of a call that was announced break off or stop making sense, the call ends as
incomplete and the text from there on is content. White space alone between calls is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from vllm_lite.parsers.sink import EventSink
from vllm_lite.parsers.source import SPACE, EndOfText, Malformed, Reading, Source
from vllm_lite.parsers.tool_spec import ToolSpec


class CallWriter:
    """What a format does with a call it reads."""

    def __init__(
        self, source: Source, sink: EventSink, tools: Iterable[ToolSpec], id_style: str
    ) -> None:
        self.source = source
        self.tools: Mapping[str, ToolSpec] = {tool.name: tool for tool in tools}
        self._sink = sink
        self._id_style = id_style
        self._is_open = False
        self.num_calls = 0  # of this answer

    def begin(self, name: str, call_id: str | None = None) -> None:
        """A call of `name` is sure: what was read for it is no content any more."""
        self.source.record()
        self._sink.start_call(name, self._id_style, call_id)
        self._is_open = True
        self.num_calls += 1

    def put(self, json_text: str) -> None:
        """More of the arguments' JSON; it stands for all that was read so far."""
        self._sink.arguments(json_text)
        self.source.record()

    def end(self) -> None:
        """The arguments are a whole JSON object."""
        self._sink.end_call()
        self._is_open = False
        self.source.record()

    def read_end(self, closers: Iterable[str]) -> Reading[None]:
        """Read one of `closers` after calls that are whole; what stands there else is content."""
        yield from self.source.skip_space()
        yield from self.source.expect(*closers)

    def abandon(self) -> str:
        """Give up in the midst of calls; returns what was read that belongs to none."""
        if self._is_open:
            self._sink.end_call(complete=False)
        self._is_open = False
        return self.source.recorded()

    def require_known(self, name: str) -> None:
        """Raise Malformed where `name` is no tool: for formats that prose could resemble."""
        if name not in self.tools:
            raise Malformed


class ToolFormat(Protocol):
    """One way to write calls."""

    @property
    def id_style(self) -> str:
        """Of the ids of calls; see `new_call_id`."""
        ...

    @property
    def openers(self) -> tuple[str, ...]:
        """What may begin calls within prose."""
        ...

    @property
    def wrappers(self) -> tuple[str, ...]:
        """Marks around prose or calls that mean nothing by themselves; dropped."""
        ...

    def read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        """Read what follows `opener`, which has been read, to the end of its calls."""
        ...


class _Prose:
    """Content between calls: a stretch of white space alone is held back, then dropped."""

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


class Interludes(Protocol):
    """Reasoning that comes back within an answer; a reasoning format bound to its receiver."""

    starts: tuple[str, ...]
    wrappers: tuple[str, ...]

    def read(self, source: Source) -> Reading[str | None]:
        """Read one, its start read; returns the opener of calls that ended it, if one did."""
        ...


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
    marks = (*tool_format.openers, *tool_format.wrappers, *wrappers, *starts)
    calls = CallWriter(source, sink, tools, tool_format.id_style)
    prose = _Prose(sink)
    opener: str | None = None
    while True:
        opener = opener or (yield from source.until(marks, prose.put))
        if opener is None:
            prose.finish()
            return
        if interludes and opener in starts:
            opener = yield from interludes.read(source)
            continue
        if opener in tool_format.openers:
            yield from _read_calls(tool_format, opener, calls, prose)
        opener = None


def _read_calls(
    tool_format: ToolFormat, opener: str, calls: CallWriter, prose: _Prose
) -> Reading[None]:
    calls.source.record(opener)
    num_calls = calls.num_calls
    lost = ""
    try:
        yield from tool_format.read_calls(opener, calls)
        calls.source.recorded()
    except Malformed:
        lost = calls.abandon()
    except EndOfText:
        # After a call began, marks that the text's end cut are no content.
        cut = calls.abandon()
        lost = cut if calls.num_calls == num_calls else ""
    if calls.num_calls > num_calls:
        prose.break_off()
    if lost:
        prose.put(lost)
