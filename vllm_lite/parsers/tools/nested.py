"""Calls written as elements named after the arguments, nested as the values are (MiniMax M3).

Every tag follows a mark that no text contains. An element that holds elements is an object, or an
array where the schema says so; one that holds text has the type that the schema gives it. Elements
of one name are an array; an argument's must stand together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import starmap

from vllm_lite.parsers.literals import quoted
from vllm_lite.parsers.source import MAX_NAME, SPACE, EndOfText, Malformed, Reading, Source
from vllm_lite.parsers.tools.reader import CallWriter, Marks
from vllm_lite.parsers.tools.spec import item_schema, property_schema, schema_types
from vllm_lite.parsers.tools.values import beginning, typed

_MAX_TAG = MAX_NAME + 32
_MAX_DEPTH = 128


@dataclass
class _Element:
    """An open element: its text, and the JSON of its children by their names."""

    name: str
    schema: object
    is_array: bool = False
    has_children: bool = False
    members: dict[str, list[str]] = field(default_factory=dict)  # an array's items are under ""
    text: list[str] = field(default_factory=list)

    def add(self, name: str, value: str) -> None:
        self.members.setdefault("" if self.is_array else name, []).append(value)

    def settle(self) -> None:
        """Make a child of the text beside children, so that it is not lost."""
        text = "".join(self.text)
        if self.has_children and text.strip(SPACE):
            name = "$text"
            while name in self.members:
                name = f"${name}"
            self.add(name, f'"{quoted(text)}"')
            self.text.clear()

    def begun(self) -> str:
        """The JSON of an element with children, as far as they are known."""
        if self.is_array:
            return f"[{', '.join(self.members.get('', ()))}"
        return "{" + ", ".join(starmap(_member, self.members.items()))

    def value(self, root: Mapping[str, object]) -> str:
        """The JSON of the element, which has ended."""
        if self.has_children:
            self.settle()
            return self.begun() + ("]" if self.is_array else "}")
        text = "".join(self.text)
        types = schema_types(self.schema, root) or ("string",)
        if text.strip(SPACE) or "string" in types:
            return typed(text, types)
        return "[]" if "array" in types else "{}" if "object" in types else typed(text, types)


def _member(name: str, values: list[str]) -> str:
    """One member of an object; several values of a name are an array."""
    value = values[0] if len(values) == 1 else f"[{', '.join(values)}]"
    return f'"{quoted(name)}": {value}'


@dataclass(frozen=True)
class NestedTools(Marks):
    """`opener` then `<invoke name="f">` `<key>value</key>`... `</invoke>` ... `closer`."""

    mark: str
    openers: tuple[str, ...]
    closers: tuple[str, ...]

    @property
    def strays(self) -> tuple[str, ...]:
        return (self.mark, *self.closers, *self._bare)

    @property
    def _bare(self) -> tuple[str, ...]:
        """The tags around the calls where their mark is damaged."""
        return tuple(tag.removeprefix(self.mark) for tag in (*self.openers, *self.closers))

    def read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        source = calls.source
        while True:
            yield from source.skip_space()
            again = (*self.openers, *self._bare[: len(self.openers)])
            found = yield from source.expect(*self.closers, f"{self.mark}<invoke name=", *again)
            if found in self.closers:
                return
            if found in again:
                continue
            name = (yield from source.name((">",))).strip("\"'")
            if not name:
                raise Malformed
            yield from self._read_call(calls, name)

    def _read_call(self, calls: CallWriter, name: str) -> Reading[None]:
        """The arguments; each is handed on once the next begins and so has another name."""
        tool = calls.tools.get(name)
        root: Mapping[str, object] = tool.parameters if tool else {}
        calls.begin(name)
        calls.put("{")
        stack = [_Element("invoke", root)]
        seen: set[str] = set()  # arguments passed on
        try:
            while tag := (yield from self._read_tag(calls.source, stack)):
                element = stack[-1]
                if not tag.startswith("/"):
                    if len(stack) == 1 and tag not in element.members:
                        _hand_on(element, seen, calls)
                    if len(stack) == _MAX_DEPTH or (len(stack) == 1 and tag in seen):
                        raise Malformed
                    stack.append(_opened(element, tag, root))
                elif len(stack) > 1:
                    stack.pop()
                    stack[-1].add(element.name, element.value(root))
                else:
                    break
        except (Malformed, EndOfText):
            lost = calls.source.recorded()
            calls.put(_beginning(stack, seen, root))
            calls.source.record(lost)
            raise
        _hand_on(stack[0], seen, calls)
        calls.put("}")
        calls.end()

    def _read_tag(self, source: Source, stack: list[_Element]) -> Reading[str]:
        """The text up to the next tag, kept in the last element, and the tag."""
        element = stack[-1]
        if len(stack) == 1:
            source.record()
        if (yield from source.until((self.mark,), element.text.append, drops_cut=True)) is None:
            raise EndOfText
        if len(stack) > 1:
            source.record(self.mark)
        elif "".join(element.text).strip(SPACE):
            raise Malformed  # text between arguments
        parts: list[str] = []
        yield from source.expect("<")
        if (yield from source.until((">",), parts.append, _MAX_TAG)) is None:
            raise EndOfText
        tag = "".join(parts).strip(SPACE)
        if not tag or "<" in tag or (tag[0] == "/" and tag[1:] != element.name):
            raise Malformed
        return tag


def _opened(parent: _Element, name: str, root: Mapping[str, object]) -> _Element:
    """The element that begins within `parent`."""
    if not parent.has_children:
        parent.has_children = True
        parent.is_array = "array" in schema_types(parent.schema, root)
    if parent.is_array:
        return _Element(name, item_schema(parent.schema, root))
    return _Element(name, property_schema(parent.schema, name, root))


def _hand_on(call: _Element, seen: set[str], calls: CallWriter) -> None:
    """The argument that is whole, where there is one."""
    for name, values in call.members.items():
        calls.put((", " if seen else "") + _member(name, values))
        seen.add(name)
    call.members.clear()


def _beginning(stack: list[_Element], seen: set[str], root: Mapping[str, object]) -> str:
    """The JSON of what is read of the arguments, but not handed on yet."""
    text = ""
    for depth, element in enumerate(stack):
        is_last = depth == len(stack) - 1
        if is_last and depth and not element.has_children:
            return text + beginning("".join(element.text), schema_types(element.schema, root))
        name = "" if is_last else stack[depth + 1].name
        values = [] if element.is_array else element.members.pop(name, [])
        if depth:
            element.settle()
        begun = element.begun()
        if not depth:
            begun = (", " if seen and (element.members or name) else "") + begun.removeprefix("{")
        comma = ", " if element.members and not is_last else ""
        text += begun + comma
        if not is_last and not element.is_array:
            text += (
                f'"{quoted(name)}": '
                + ("[" if values else "")
                + "".join(f"{value}, " for value in values)
            )
    return text
