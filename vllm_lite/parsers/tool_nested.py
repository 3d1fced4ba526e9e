"""Calls written as elements named after the arguments, nested as the values are (MiniMax M3).

Every tag follows a mark that no text contains. An element that holds elements is an object, or an
array where the schema says so; one that holds text has the type that the schema gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_lite.parsers.literals import quoted
from vllm_lite.parsers.source import (
    MAX_NAME,
    SPACE,
    EndOfText,
    Malformed,
    Put,
    Reading,
    Source,
)
from vllm_lite.parsers.tool_reader import CallWriter
from vllm_lite.parsers.tool_spec import item_schema, property_schema, schema_types
from vllm_lite.parsers.tool_values import typed

_MAX_TAG = MAX_NAME + 32


@dataclass
class _Element:
    """An open element: what has been handed on of it is its bracket and its children."""

    name: str
    schema: object
    closer: str = ""  # "}" or "]" once a child has made it an object or an array
    num_children: int = 0
    text: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class NestedTools:
    """`opener` then `<invoke name="f">` `<key>value</key>`... `</invoke>` ... `closer`."""

    mark: str
    openers: tuple[str, ...]
    closers: tuple[str, ...]
    wrappers: tuple[str, ...] = ()
    id_style: str = ""
    needs_special_tokens: bool = True

    @property
    def strays(self) -> tuple[str, ...]:
        """See ToolFormat."""
        return (self.mark, *self.closers)

    def read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        """See ToolFormat."""
        source = calls.source
        while True:
            yield from source.skip_space()
            found = yield from source.expect(*self.closers, f"{self.mark}<invoke name=")
            if found in self.closers:
                return
            name = (yield from source.name((">",))).strip("\"'")
            if not name:
                raise Malformed
            yield from self._read_call(calls, name)

    def _read_call(self, calls: CallWriter, name: str) -> Reading[None]:
        tool = calls.tools.get(name)
        root: Mapping[str, object] = tool.parameters if tool else {}
        calls.begin(name)
        calls.put("{")
        stack = [_Element("invoke", root, closer="}")]
        while stack:
            tag = yield from self._read_tag(calls.source, stack[-1])
            if tag.startswith("/"):
                if tag[1:] != stack[-1].name:
                    raise Malformed
                self._close(stack.pop(), root, calls.put)
            else:
                stack.append(self._open(stack[-1], tag, root, calls.put))
        calls.end()

    def _read_tag(self, source: Source, element: _Element) -> Reading[str]:
        """The text up to the next tag, kept in `element`, and the tag."""
        if (yield from source.until((self.mark,), element.text.append, drops_cut=True)) is None:
            raise EndOfText
        parts: list[str] = []
        yield from source.expect("<")
        if (yield from source.until((">",), parts.append, _MAX_TAG)) is None:
            raise EndOfText
        return "".join(parts).strip(SPACE)

    def _open(self, parent: _Element, name: str, root: Mapping[str, object], put: Put) -> _Element:
        if not parent.closer:
            is_array = "array" in schema_types(parent.schema, root)
            parent.closer = "]" if is_array else "}"
            put("[" if is_array else "{")
        comma = ", " if parent.num_children else ""
        parent.num_children += 1
        if parent.closer == "]":
            put(comma)
            return _Element(name, item_schema(parent.schema, root))
        put(f'{comma}"{quoted(name)}": ')
        return _Element(name, property_schema(parent.schema, name, root))

    def _close(self, element: _Element, root: Mapping[str, object], put: Put) -> None:
        text = "".join(element.text)
        if not element.closer:
            types = schema_types(element.schema, root) or ("string",)
            is_empty = not text.strip(SPACE) and "string" not in types
            put("[]" if is_empty and "array" in types else typed(text, types))
            return
        if text.strip(SPACE) and element.closer == "}":
            # Text beside elements has a name of its own, so that it is not lost.
            put(f'{", " if element.num_children else ""}"$text": "{quoted(text)}"')
        put(element.closer)
