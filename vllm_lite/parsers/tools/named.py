"""Calls written as a name between markers, then the arguments as JSON.

The name may carry a prefix (`functions.`) and the call's own id (`functions.f:0`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_lite.parsers.literals import JSON, Dialect, read_value
from vllm_lite.parsers.source import SPACE, Malformed, Reading
from vllm_lite.parsers.tools.json_calls import JsonTools
from vllm_lite.parsers.tools.reader import CallWriter, Marks, ToolFormat, is_control
from vllm_lite.parsers.tools.spec import NamedTool, ToolChoice
from vllm_lite.parsers.tools.values import coercion

_MARK = re.compile(r"<[^<>]+>")
_NO_NAME = re.compile(r"^\{|[\s\[\]].*\{$", re.DOTALL)


@dataclass(frozen=True)
class BareArguments:
    """The first object of the text is the arguments of `name`."""

    name: str
    id_style: str = ""
    openers: tuple[str, ...] = ("{",)
    wrappers: tuple[str, ...] = ()

    def read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        calls.begin(self.name)
        yield from read_value(calls.source, JSON, calls.put, opener)
        calls.end()


def plain_format(choice: ToolChoice, id_style: str) -> ToolFormat:
    """How the answer of a forced call is read; `id_style` is that of the model's own format."""
    if isinstance(choice, NamedTool):
        return BareArguments(choice.name, id_style)
    return JsonTools(openers=("[",), bare=("[",), id_style=id_style)


@dataclass(frozen=True)
class NamedTools(Marks):
    """`opener` `call` [`lead`] name `name_end` [`argument_leads`] {...} `call_ends` ... `closer`.

    An opener that is itself `call` begins one call alone.
    """

    openers: tuple[str, ...]
    name_ends: tuple[str, ...] = ()
    call: str = ""
    lead: str = ""
    other_leads: tuple[str, ...] = ()
    argument_leads: tuple[str, ...] = ()
    call_ends: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    dialect: Dialect = JSON  # of the arguments
    has_ids: bool = False  # names are `functions.NAME:INDEX`, which is the id too
    json: JsonTools | None = None  # reads an object in place of a name

    @property
    def strays(self) -> tuple[str, ...]:
        marks = (self.call, self.lead, *self.name_ends, *self.argument_leads, *self.call_ends)
        # Some consist of a marker and a word.
        parts = [mark for part in marks for mark in (part, *_MARK.findall(part))]
        return tuple(filter(is_control, (*parts, *self.closers, *self.dialect.quotes)))

    def read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        source = calls.source
        if not self.call or opener == self.call:
            yield from self._read_call(calls)
            yield from calls.read_end(self.closers)
            return
        while True:
            yield from source.skip_space()
            if (yield from source.expect(*self.closers, self.call)) in self.closers:
                return
            yield from self._read_call(calls)

    def _read_call(self, calls: CallWriter) -> Reading[None]:
        source = calls.source
        yield from source.skip_space()
        if self.lead:
            yield from source.expect(self.lead, *self.other_leads)
        brackets = ("{", "(") if self.dialect.bare_words else ("{",)
        ends = (*self.name_ends, *brackets, *(self.openers if self.json else ()))
        name, end = yield from source.short(ends)
        if self.json is not None and (end in self.openers or _NO_NAME.search(f"{name}{end}")):
            yield from self._read_objects(calls, name, end)
            return
        if "<" in name:
            raise Malformed
        call_id = None
        if self.has_ids:
            call_id = name if ":" in name else None
            name = name.partition(":")[0].removeprefix("functions.")
        if not name or "\n" in name:
            raise Malformed
        if end not in brackets:
            yield from source.skip_space()
            for lead in self.argument_leads:
                yield from source.try_literal(lead)
                yield from source.skip_space()
            end = yield from source.expect("{")
        calls.begin(name, call_id)
        tool = calls.tools.get(name)
        if tool is not None and self.dialect.bare_words:
            coerce = coercion(tool)
            yield from read_value(source, self.dialect, calls.put, end, coerce)
        else:
            yield from read_value(source, self.dialect, calls.put, end)
        calls.end()
        for call_end in self.call_ends:
            yield from source.skip_space()
            if (yield from source.try_literal(call_end)):
                source.record()

    def _read_objects(self, calls: CallWriter, before: str, end: str) -> Reading[None]:
        """Calls as JSON: an array of objects or one alone, whose first `{` has been read.

        What stands before them is content. `end` may be another opener instead.
        """
        assert self.json is not None
        text = before.removesuffix("[")
        calls.content(
            text if text.strip(SPACE) else "",
            "" if end in self.openers else f"{before[len(text) :]}{{",
        )
        if end in self.openers:
            yield from self._read_call(calls)
        elif text != before:
            yield from self.json.read_array(calls, has_brace=True)
        else:
            yield from self.json.read_object(calls)
