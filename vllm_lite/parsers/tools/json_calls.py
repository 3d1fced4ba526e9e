"""Calls written as JSON: an object with the tool's name and arguments, alone or in an array.

Covers the formats that put such objects between markers of their own, and those that have no
marker at all, where only the name of a tool of the request makes an object a call.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from vllm_lite.parsers.literals import JSON, convert, read_string, read_value
from vllm_lite.parsers.source import MAX_NAME, NOT_NAME, EndOfText, Malformed, Reading, Source
from vllm_lite.parsers.tools.reader import CallWriter, Marks

_OTHER_KEYS = frozenset(("id", "type", "index", "tool_call_id"))


@dataclass(frozen=True)
class JsonTools(Marks):
    """`opener` [lead] object or [object, ...] `closer`; openers in `bare` are read themselves."""

    openers: tuple[str, ...]
    closers: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()  # optional text between opener and JSON
    separators: tuple[str, ...] = (",", ";")
    bare: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()  # openers common in prose: only known names are calls
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    is_keyed_by_name: bool = False  # {"get_weather": {...}}
    needs_arguments: bool = False  # an object without arguments is not a call

    @property
    def strays(self) -> tuple[str, ...]:
        return (*self.closers, *self.leads)

    def read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        source = calls.source
        is_checked = opener in self.bare or opener in self.checked
        if opener in self.bare:
            bracket = opener
        else:
            yield from source.skip_space()
            for lead in self.leads:
                if (yield from source.try_literal(lead)):
                    yield from source.skip_space()
            bracket = yield from source.expect("[", "{")
        if bracket == "[":
            yield from self.read_array(calls, is_checked)
        else:
            yield from self._read_sequence(calls, is_checked)
        yield from calls.read_end(self.closers)

    def read_array(
        self, calls: CallWriter, is_checked: bool = False, *, has_brace: bool = False
    ) -> Reading[None]:
        """Calls in an array whose `[` has been read; with `has_brace` the first `{` as well."""
        source = calls.source
        if not has_brace:
            yield from source.skip_space()
            yield from source.expect("{")
        while True:
            yield from self.read_object(calls, is_checked)
            yield from source.skip_space()
            has_comma = yield from source.try_literal(",")
            yield from source.skip_space()
            if (yield from source.try_literal("]")) or not has_comma:
                source.record()
                return
            yield from source.expect("{")

    def _read_sequence(self, calls: CallWriter, is_checked: bool) -> Reading[None]:
        """Calls one after another; the `{` of the first has been read."""
        source = calls.source
        while True:
            yield from self.read_object(calls, is_checked)
            space = yield from source.skip_space()
            if (yield from source.try_any(self.separators)) is None:
                source.record(space)
                return
            yield from source.skip_space()
            yield from source.expect("{")

    def read_object(self, calls: CallWriter, is_checked: bool = False) -> Reading[None]:
        """One call; the `{` before it has been read."""
        source = calls.source
        name: str | None = None
        held: str | None = None  # arguments read before the name
        done = has_more = False
        yield from source.skip_space()
        is_empty = yield from source.try_literal("}")
        while not is_empty:
            key = yield from _short_string(source)
            yield from source.skip_space()
            yield from source.expect(":")
            yield from source.skip_space()
            if self.is_keyed_by_name and not done:
                yield from _read_arguments(calls, key, is_checked)
                done = True
            elif key in self.name_keys and name is None:
                name = yield from _short_string(source)
                if is_checked:
                    calls.require_known(name)
            elif key in self.argument_keys and not done and held is None:
                if name is not None:
                    yield from _read_arguments(calls, name, is_checked)
                    done = True
                else:
                    held = yield from _hold_arguments(source)
            elif key in self.argument_keys or ((is_checked or done) and key not in _OTHER_KEYS):
                raise Malformed  # such as arguments cut off by an extra brace
            else:
                has_more = has_more or key not in _OTHER_KEYS
                try:
                    yield from read_value(source, JSON, lambda _: None)
                except EndOfText:
                    if key not in _OTHER_KEYS:
                        raise Malformed from None  # the call itself was not cut
                    raise
            yield from source.skip_space()
            if done:
                source.record()
                # A missing brace is accepted: the marker that follows implies it.
                if not (yield from source.try_literal(",")):
                    yield from source.try_literal("}")
                    source.record()
                    return
            elif not (yield from source.try_literal(",")):
                yield from source.expect("}")
                break
            yield from source.skip_space()
        # The arguments may be under another key.
        is_required = has_more or self.needs_arguments
        if name is None or (is_required and not done and held is None):
            raise Malformed
        if not done:
            calls.whole(name, held or "{}")


def _short_string(source: Source) -> Reading[str]:
    """A JSON string that is a name or a key."""
    yield from source.expect('"')
    parts: list[str] = []
    try:
        yield from read_string(source, '"', JSON, parts.append, MAX_NAME)
    except EndOfText:
        if NOT_NAME.search(json.loads(f'"{"".join(parts)}"')):  # the name has no end
            raise Malformed from None
        raise
    return str(json.loads('"' + "".join(parts)))


def _hold_arguments(source: Source) -> Reading[str]:
    parts: list[str] = []
    yield from source.expect("{")
    yield from read_value(source, JSON, parts.append, "{")
    return "".join(parts)


def _read_arguments(calls: CallWriter, name: str, is_checked: bool) -> Reading[None]:
    """An object; or the same as a string, as some models write it; or null for none."""
    source = calls.source
    if is_checked:
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
    inner = str(json.loads(text)) if first == '"' else "{}" if text == "null" else ""
    arguments = convert(inner, JSON) if inner.lstrip().startswith("{") else None
    if arguments is None:
        raise Malformed
    calls.whole(name, arguments)
