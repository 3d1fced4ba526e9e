"""Calls written as JSON: an object with the tool's name and arguments, alone or in an array.

Covers the formats that put such objects between markers of their own, and those that have no
marker at all, where only the name of a tool of the request makes an object a call.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from vllm_lite.parsers.literals import JSON, is_json, read_string, read_value, to_json
from vllm_lite.parsers.source import MAX_NAME, EndOfText, Malformed, Reading, Source
from vllm_lite.parsers.tool_reader import CallWriter

_OTHER_KEYS = frozenset(("id", "type", "tool_call_id"))


@dataclass(frozen=True)
class JsonTools:
    """`opener` [lead] object or [object, ...] `closer`; openers in `bare` are read themselves."""

    openers: tuple[str, ...]
    closers: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()  # what may stand between the opener and the JSON
    separators: tuple[str, ...] = (",", ";")
    bare: tuple[str, ...] = ()
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    is_keyed_by_name: bool = False  # {"get_weather": {...}}
    id_style: str = ""

    def read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        """See ToolFormat."""
        source = calls.source
        is_bare = opener in self.bare
        if is_bare:
            bracket: str | None = opener
        else:
            yield from source.skip_space()
            for lead in self.leads:
                if (yield from source.try_literal(lead)):
                    yield from source.skip_space()
            bracket = yield from source.try_any(("[", "{"))
            if bracket is None:
                yield from source.more()
                raise Malformed
        if bracket == "[":
            yield from source.skip_space()
            yield from source.literal("{")
        yield from self._read_object(calls, is_bare)
        while True:
            yield from source.skip_space()
            if (yield from source.try_any(self.separators)) is None:
                break
            yield from source.skip_space()
            if bracket == "[" and (yield from source.try_literal("]")):
                bracket = None
                break
            yield from source.literal("{")
            yield from self._read_object(calls, is_bare)
        yield from self._read_end(source, bracket)

    def _read_end(self, source: Source, bracket: str | None) -> Reading[None]:
        # The calls are whole by now: what is missing here is forgiven.
        if bracket == "[":
            yield from source.try_literal("]")
        for closer in self.closers:
            yield from source.skip_space()
            if (yield from source.try_literal(closer)):
                return

    def _read_object(self, calls: CallWriter, is_bare: bool) -> Reading[None]:
        """One call; the `{` before it has been read."""
        source = calls.source
        name: str | None = None
        held: str | None = None  # arguments that came before the name
        done = False
        yield from source.skip_space()
        is_empty = yield from source.try_literal("}")
        while not is_empty:
            key = yield from _short_string(source)
            yield from source.skip_space()
            yield from source.literal(":")
            yield from source.skip_space()
            if self.is_keyed_by_name and not done:
                yield from _read_arguments(calls, key, is_bare)
                done = True
            elif key in self.name_keys and name is None:
                name = yield from _short_string(source)
                if is_bare:
                    calls.require_known(name)
            elif key in self.argument_keys and not done and held is None:
                if name is not None:
                    yield from _read_arguments(calls, name, is_bare)
                    done = True
                else:
                    held = yield from _hold_arguments(source)
            elif is_bare and not done and key not in _OTHER_KEYS:
                raise Malformed
            else:
                yield from read_value(source, JSON, lambda _: None)
            yield from source.skip_space()
            if done:
                # A brace too few is forgiven: the marker after it says as much.
                if not (yield from source.try_literal(",")):
                    yield from source.try_literal("}")
                    source.record()
                    return
            elif not (yield from source.try_literal(",")):
                yield from source.literal("}")
                break
            yield from source.skip_space()
        if name is None:
            raise Malformed
        if not done:
            calls.begin(name)
            calls.put(held or "{}")
            calls.end()


def _short_string(source: Source) -> Reading[str]:
    """A JSON string that is a name or a key."""
    yield from source.literal('"')
    parts: list[str] = []
    yield from read_string(source, '"', JSON, parts.append, MAX_NAME)
    return decode('"' + "".join(parts))


def decode(json_string: str) -> str:
    """The text of a JSON string that the reader of values has written."""
    return str(json.loads(json_string))


def _hold_arguments(source: Source) -> Reading[str]:
    parts: list[str] = []
    if (yield from source.peek()) != "{":
        yield from source.more()
        raise Malformed
    yield from read_value(source, JSON, parts.append)
    return "".join(parts)


def _read_arguments(calls: CallWriter, name: str, is_bare: bool) -> Reading[None]:
    """An object; or the same as a string, as some models write it; or null for none."""
    source = calls.source
    if is_bare:
        calls.require_known(name)
    first = yield from source.peek()
    if first == "{":
        calls.begin(name)
        yield from read_value(source, JSON, calls.put)
        calls.end()
        return
    if not first:
        raise EndOfText
    parts: list[str] = []
    yield from read_value(source, JSON, parts.append)
    text = "".join(parts)
    inner = decode(text) if first == '"' else "{}" if text == "null" else ""
    if not inner.lstrip().startswith("{") or not is_json(inner):
        raise Malformed
    calls.begin(name)
    calls.put(to_json(inner))
    calls.end()
