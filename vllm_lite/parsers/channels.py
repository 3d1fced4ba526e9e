"""Answers written as messages to someone: to the model itself, to the user, or to a tool.

A message is a header, `<|message|>`, a body and an end. `Framing` says how a header reads; the
reasoning format takes out the messages to the model itself, the tool format those to tools, and
the rest is content. Used by gpt-oss (harmony) and Muse Glimmer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_lite.parsers.literals import JSON, read_value
from vllm_lite.parsers.reasoning import ReasoningSplitter
from vllm_lite.parsers.source import MAX_NAME, EndOfText, Malformed, Put, Reading, Source
from vllm_lite.parsers.tools.reader import CallWriter
from vllm_lite.parsers.tools.xml_calls import XmlTools

HEADER_END = "<|message|>"
_TO = " to="
_ENDS_RECIPIENT = re.compile(r"[^A-Za-z0-9_.\-]")
_CUT_MARK = re.compile(r"<\|?[a-z]*\|?$")
_HEADER_WORDS = ("assistant", "analysis", "commentary", "final", "json", "user")
_CHANNEL = re.compile(r"<\|channel\|>\s*([a-z]+)")
_RECIPIENT = re.compile(r"(?:^|\s)to=([A-Za-z0-9_.\-]+)")


@dataclass(frozen=True)
class Framing:
    """How messages are marked."""

    starts: tuple[str, ...]  # of a header; and ` to=` before a recipient
    ends: tuple[str, ...]  # of a body
    reasoning_channel: str = ""
    reasoning_recipient: str = ""
    tool_prefix: str = ""  # of recipients that are the request's tools

    strays: tuple[str, ...] = ()  # marks within headers

    @property
    def openers(self) -> tuple[str, ...]:
        return (*self.starts, _TO, HEADER_END)

    def read_header(self, source: Source, opener: str) -> Reading[str]:
        """The header that `opener`, which has been read, began; raises Malformed if it is none."""
        if opener == HEADER_END:
            return ""
        parts: list[str] = [opener]
        if opener == _TO:
            # Prose may contain these words: a marker must follow at once.
            yield from source.run(_ENDS_RECIPIENT, parts.append, MAX_NAME)
            parts.append((yield from source.skip_space()))
            if (yield from source.peek()) != "<":
                yield from source.more()
                raise Malformed
        stops = (HEADER_END, "{", *self.ends, self.starts[0])
        end = yield from source.until(stops, parts.append, MAX_NAME)
        if end is None:
            raise Malformed if "\n" in "".join(parts) else EndOfText
        if end != HEADER_END:
            raise Malformed
        return "".join(parts)

    def shown(self, text: str, *, is_cut: bool) -> str:
        """The words of a header that is none; of one that the text's end has cut, nothing."""
        marks = (*self.starts, *self.ends, *self.strays, HEADER_END)
        pattern = "|".join(map(re.escape, marks))
        words = re.sub(pattern, " ", _CUT_MARK.sub("", text)).split()
        is_header = all(
            word.startswith("to=") or any(known.startswith(word) for known in _HEADER_WORDS)
            for word in words
        )
        if is_cut and "<" in text and is_header:
            return ""
        return re.sub(pattern, "", text)

    def kind_of(self, header: str) -> tuple[str, str]:
        """A message's kind ("reasoning", "content" or "tool") and the tool it addresses."""
        found = _RECIPIENT.search(header)
        recipient = found.group(1) if found else ""
        if recipient and recipient == self.reasoning_recipient:
            return "reasoning", ""
        if recipient.startswith(self.tool_prefix) and recipient not in ("", "user"):
            return "tool", recipient.removeprefix(self.tool_prefix)
        channel = _CHANNEL.search(header)
        is_thought = bool(self.reasoning_channel and channel)
        if is_thought and channel and channel.group(1) == self.reasoning_channel:
            return "reasoning", ""
        return "content", ""


HARMONY = Framing(
    starts=("<|start|>", "<|channel|>"),
    ends=("<|end|>", "<|return|>", "<|call|>"),
    reasoning_channel="analysis",
    tool_prefix="functions.",
    strays=("<|constrain|>",),
)
MUSE = Framing(starts=("<|start|>",), ends=("<|eom|>", "<|eot|>"), reasoning_recipient="self")


@dataclass(frozen=True)
class ChannelReasoning:
    """The messages to the model itself are its reasoning."""

    framing: Framing
    starts: tuple[str, ...]
    ends: tuple[str, ...]
    needs_special_tokens: bool = True

    def read(self, source: Source, out: ReasoningSplitter) -> Reading[None]:
        framing = self.framing
        marks = (*framing.openers, *framing.ends)
        kind = "reasoning" if out.is_inside else "content"
        has_reasoned = False
        put: Put = out.put_reasoning if out.is_inside else out.put_rest
        is_first = not out.is_inside
        while True:
            mark: str | None
            if is_first and (yield from source.try_literal(_TO[1:])):
                mark = _TO
            else:
                mark = yield from source.until(marks, put)
            is_first = False
            if mark is None:
                return
            if mark in framing.ends:
                if kind == "tool" or (kind == "content" and out.has_channels):
                    out.put_rest(mark)
                has_reasoned = has_reasoned or kind == "reasoning"
                kind, put = "content", out.put_rest
                continue
            source.record(mark)
            try:
                header = yield from framing.read_header(source, mark)
            except (Malformed, EndOfText) as error:
                raw = source.recorded()
                for end in (*framing.ends, framing.starts[0]):
                    if isinstance(error, Malformed) and raw.endswith(end):
                        raw = raw.removesuffix(end)
                        source.unread(end)
                if kind == "reasoning" or not out.has_channels:
                    raw = framing.shown(raw, is_cut=isinstance(error, EndOfText))
                put(raw)
                continue
            raw = source.recorded()
            kind, _ = framing.kind_of(header)
            put = out.put_reasoning if kind == "reasoning" else out.put_rest
            if kind == "reasoning":
                put("\n" if has_reasoned else "")
            else:
                out.has_ended = True
                put(raw if kind == "tool" or out.has_channels else "")


@dataclass(frozen=True)
class ChannelTools:
    """The messages to tools are calls: arguments as JSON, or calls with tags where `xml` is set."""

    framing: Framing
    xml: XmlTools | None = None
    id_style: str = ""
    needs_special_tokens: bool = True

    @property
    def openers(self) -> tuple[str, ...]:
        return self.framing.openers

    @property
    def wrappers(self) -> tuple[str, ...]:
        return self.framing.ends

    @property
    def strays(self) -> tuple[str, ...]:
        tags = (*self.xml.openers, *self.xml.strays) if self.xml else ()
        return (*tags, *self.framing.strays)

    def read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        """See ToolFormat. A message that is no call is prose from its body on."""
        source = calls.source
        header = yield from self.framing.read_header(source, opener)
        kind, name = self.framing.kind_of(header)
        if kind != "tool":
            return
        yield from source.skip_space()
        if self.xml is not None:
            opened = yield from source.expect(*self.xml.openers)
            yield from self.xml.read_calls(opened, calls)
            return
        if (yield from source.try_any(self.framing.ends)) is not None:
            calls.whole(name)
            return
        yield from source.expect("{")
        calls.begin(name)
        yield from read_value(source, JSON, calls.put, "{")
        calls.end()
        yield from calls.read_end(self.framing.ends)
