"""Calls written with tags: the tool's name in one, then an element for each argument.

Covers `<function=f><parameter=k>v</parameter></function>`, the same with attributes
(`<invoke name="f"><parameter name="k">v</parameter></invoke>`), and pairs of elements
(`f<arg_key>k</arg_key><arg_value>v</arg_value>`). A tag of the format ends a value that lacks its
closing tag, so no value can hold one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_lite.parsers.literals import JSON, convert, quoted
from vllm_lite.parsers.source import (
    MAX_NAME,
    NOT_NAME,
    SPACE,
    EndOfText,
    Malformed,
    Put,
    Reading,
    Source,
)
from vllm_lite.parsers.tools.json_calls import JsonTools
from vllm_lite.parsers.tools.reader import CallWriter, Marks, is_control
from vllm_lite.parsers.tools.spec import ToolSpec, type_named
from vllm_lite.parsers.tools.values import read_text_value

_STOPS_WORD = re.compile(r"[\s=>\"'<]")
_MAX_ATTRIBUTES = 8
_NO_STRING = frozenset(("integer", "number", "boolean", "null", "object", "array"))
_UNKNOWN = ToolSpec("", {})


@dataclass(frozen=True)
class Tag:
    """An opening tag: `start` name `end`, or, with `attribute`, `start` attributes `end`."""

    start: str
    end: str = ">"
    attribute: str = ""


@dataclass(frozen=True)
class XmlTools(Marks):
    """`opener` call ... `closer`; a call is `call` [`lead`] `parameter`... `call_end`."""

    openers: tuple[str, ...]
    call: Tag
    call_end: str
    parameter: Tag
    value_end: str
    closers: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()  # optional text before a call
    name_ends: tuple[str, ...] = ()  # further ends of a name, beside the tag's own
    value_start: str = ""  # between the argument's tag and its value
    type_tag: Tag | None = None  # an element between the two, with the type
    type_attribute: str = ""  # of the argument's tag: "true" for a string, or a type
    trims_newlines: bool = False
    checks_names: bool = False  # only the request's tools are calls
    has_cdata: bool = False  # values may be CDATA sections
    # Reads an object in place of a call or its name.
    json: JsonTools | None = None
    # A single argument of one of these names, unknown to the tool, contains the arguments.
    holders: tuple[str, ...] = ()
    # Openers that are the call's own tag, without a wrapper: only a known name is a call, unless
    # the tag is a control token.
    bare: tuple[str, ...] = field(default=())

    @property
    def strays(self) -> tuple[str, ...]:
        tags = [tag for tag in (self.call, self.parameter, self.type_tag) if tag]
        marks = [mark for tag in tags for mark in (tag.start, tag.end) if len(mark) > 1]
        marks += [self.value_start, self.value_end, self.call_end, *self.name_ends]
        return tuple(filter(None, (*marks, *self.closers, *self.leads)))

    def read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        source = calls.source
        if opener in self.bare:
            yield from self._read_call(calls, is_bare=not is_control(opener))
            return
        while True:
            yield from source.skip_space()
            found = yield from source.expect(
                *self.closers, *self.leads, *("{" if self.json else ""), self.call.start
            )
            if found in self.closers:
                return
            if found in self.leads:
                continue
            if self.json is not None and found == "{":
                yield from self.json.read_object(calls, self.checks_names)
            elif (yield from self._read_call(calls, is_bare=False)) in self.closers:
                return
            if not self.closers:
                return

    def _read_call(self, calls: CallWriter, *, is_bare: bool) -> Reading[str]:
        """One call, the start of its tag read; returns the tag that ended it."""
        source = calls.source
        ends = (self.call.end, *self.name_ends, self.parameter.start, self.call_end)
        if self.call.attribute:
            name = (yield from _attributes(source, self.call.end)).get(self.call.attribute, "")
            tag = ""
        elif self.json is not None and (yield from _opens_object(source)):
            yield from self.json.read_object(calls, self.checks_names)
            yield from source.skip_space()
            return (yield from source.expect(self.call_end, *self.closers))
        else:
            name, tag = yield from _name(source, ends)
        while True:
            head, _, tail = name.partition(".")
            if head == tail and head in calls.tools:
                name = head  # the name repeated as its namespace
            if not name or any(char in SPACE for char in name):
                raise Malformed
            if is_bare:
                calls.require_known(name)
            if not self.checks_names or name in calls.tools:
                break
            if (yield from self._read_over(calls, name, tag)) == self.call_end:
                return self.call_end
            name, tag = yield from _name(source, ends)
        tag = yield from self._next_tag(source, tag)
        calls.begin(name)
        calls.put("{")
        tool = calls.tools.get(name, _UNKNOWN)
        argument = _Argument(tool, self.holders, calls.put)
        while tag == self.parameter.start:
            tag = yield from self._read_argument(calls.source, argument)
            tag = yield from self._next_tag(source, tag)
            argument.settle(is_last=tag != self.parameter.start)
        calls.put("}")
        calls.end()
        return tag

    def _read_over(self, calls: CallWriter, name: str, tag: str) -> Reading[str]:
        """Treats a malformed call, less its marks, as content; `tag` was read after its name.

        Returns what ended it: the next call may begin before the mark of its end.
        """
        calls.content(name)
        ends = (self.call_end, *(() if self.call.start else self.openers))
        marks = (*self.strays, self.call_end, *self.openers)
        while tag not in ends:
            found = yield from calls.source.until(marks, calls.content, drops_cut=True)
            if found is None:
                raise EndOfText
            tag = found
        return tag

    def _next_tag(self, source: Source, read: str) -> Reading[str]:
        """The start of an argument, or the end of the call; `read` if it is one of the two."""
        tags = (self.parameter.start, self.call_end)
        if read in tags:
            return read
        while True:
            yield from source.skip_space()
            if not source.is_cut and not (yield from source.peek()):
                return self.call_end  # the model ended without the closing tag
            tag = yield from source.expect(*tags, *self.closers, self.value_end)
            if tag != self.value_end:  # a superfluous end tag
                return tag

    def _read_argument(self, source: Source, argument: _Argument) -> Reading[str]:
        """One argument, its tag's start read; returns the tag that ended its value.

        One that the call has already is Malformed: nothing says which of the two is meant.
        """
        said = ""
        if self.parameter.attribute:
            attributes = yield from _attributes(source, self.parameter.end)
            key, said = (
                attributes.get(self.parameter.attribute),
                attributes.get(self.type_attribute, ""),
            )
        else:
            key, _ = yield from _name(source, (self.parameter.end,))
        if self.type_tag is not None:
            yield from source.skip_space()
            if (yield from source.try_literal(self.type_tag.start)):
                said, _ = yield from _name(source, (self.type_tag.end,))
        if self.value_start:
            yield from source.skip_space()
            yield from source.expect(self.value_start)
        put = argument.begin(key)
        end = yield from read_text_value(
            source,
            (self.value_end, self.parameter.start, self.call_end),
            self._types(argument.types, said),
            put,
            trims_newlines=self.trims_newlines,
            has_cdata=self.has_cdata,
        )
        if end is None:
            argument.settle(is_last=False)
            raise EndOfText
        return end

    def _types(self, types: frozenset[str], said: str) -> frozenset[str]:
        """The types of a value by its tool's schema, `types`, and by the type its tag `said`."""
        if self.type_attribute != "string":
            return _said_types(said) or types
        told = frozenset(("string",)) if said == "true" else _NO_STRING
        if said not in ("true", "false"):
            told |= {"string"}
        return (types & told) or types or told


class _Argument:
    """One argument after another of a call, on their way to its JSON.

    Of a call of one argument that may be a holder of all, the value is kept back.
    """

    def __init__(self, tool: ToolSpec, holders: tuple[str, ...], put: Put) -> None:
        properties = tool.parameters.get("properties")
        self._known = properties if isinstance(properties, Mapping) else {}
        self._holders = [name for name in holders if self._known and name not in self._known]
        self._tool = tool
        self._put = put
        self._seen: set[str] = set()
        self._held: list[str] = []
        self.types: frozenset[str] = frozenset()

    def begin(self, key: str | None) -> Put:
        """The argument `key`; returns where its value goes. Raises Malformed for a second one."""
        if not key or key in self._seen:
            raise Malformed
        self.types = self._tool.types_at((key,))
        head = f'{", " if self._seen else ""}"{quoted(key)}": '
        if not self._seen and key in self._holders:
            self.types = frozenset(("object", "string"))
            self._held.append(head)
        else:
            self._put(head)
        self._seen.add(key)
        return self._held.append if self._held else self._put

    def settle(self, *, is_last: bool) -> None:
        """The value is over; with `is_last`, the call too."""
        held, self._held = "".join(self._held), []
        if held and is_last:
            (inner,) = json.loads(f"{{{held}}}").values()
            parsed = _object(inner) if isinstance(inner, str) else inner
            if isinstance(parsed, dict) and set(parsed) <= set(self._known):
                held = json.dumps(parsed, ensure_ascii=False)[1:-1]
        if held:
            self._put(held)


def _object(text: str) -> object:
    found = convert(text, JSON) if text.lstrip().startswith("{") else None
    return json.loads(found) if found is not None else None


def _opens_object(source: Source) -> Reading[bool]:
    yield from source.skip_space()
    return (yield from source.try_literal("{"))


def _said_types(said: str) -> frozenset[str]:
    """The types that a tag names itself."""
    if said == "false":
        return frozenset(("number", "boolean", "null", "object", "array"))
    name = "string" if said == "true" else type_named(said)
    return frozenset((name,)) if name else frozenset()


def _name(source: Source, ends: tuple[str, ...]) -> Reading[tuple[str, str]]:
    name, end = yield from source.short(ends)
    if "<" in name:
        raise Malformed
    if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
        name = name[1:-1]
    if not name or "\n" in name:
        raise Malformed
    return name, end


def _attributes(source: Source, end: str) -> Reading[dict[str, str]]:
    """The attributes of a tag up to its `end`: `a="x" b='y' c=z`."""
    found: dict[str, str] = {}
    for _ in range(_MAX_ATTRIBUTES):
        yield from source.skip_space()
        if (yield from source.peek()) == end[0]:
            yield from source.expect(end)
            return found
        key = yield from source.word(_STOPS_WORD)
        yield from source.skip_space()
        yield from source.expect("=")
        yield from source.skip_space()
        quote = yield from source.try_any(('"', "'"))
        if quote is None:
            value = yield from source.word(_STOPS_WORD)
        else:
            parts: list[str] = []
            closed = yield from source.until((quote,), parts.append, MAX_NAME)
            value = "".join(parts)
            if closed is None:
                raise Malformed if NOT_NAME.search(value) else EndOfText
            if "<" in value or "\n" in value:
                raise Malformed
        found[key] = value.replace("&quot;", '"').replace("&amp;", "&")
    raise Malformed
