"""Calls written as Python: `[get_weather(city="Rome", days=2)]`, or one call a line.

Nothing is evaluated: names, keywords and literals are read as text. Arguments without a keyword
are no call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

from vllm_lite.parsers.literals import PYTHON, Dialect, quoted, read_value
from vllm_lite.parsers.source import Malformed, Reading, Source
from vllm_lite.parsers.tools.reader import CallWriter, Marks

_NOT_NAME = re.compile(r"[^A-Za-z0-9_.\-]")


@dataclass(frozen=True)
class PythonicTools(Marks):
    """`opener` [`[`] call, call, ... [`]`] `closer`; a `[` in `bare` stands for both."""

    openers: tuple[str, ...]
    closers: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    repeats_calls: bool = False  # a repetition of the calls is dropped

    @cached_property
    def dialect(self) -> Dialect:
        ends = "|".join(map(re.escape, self.closers)) or "(?!)"
        return replace(PYTHON, calls=re.compile(f".*?(?={ends})", re.DOTALL))

    @property
    def strays(self) -> tuple[str, ...]:
        return self.closers

    def read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        if not self.repeats_calls:
            yield from self._read_calls(opener, calls)
            return
        calls.source.copy()
        yield from self._read_calls(opener, calls)
        if (yield from calls.source.try_literal(calls.source.copied())):
            calls.source.record()

    def _read_calls(self, opener: str, calls: CallWriter) -> Reading[None]:
        source = calls.source
        is_bare = opener in self.bare
        yield from source.skip_space()
        in_list = is_bare or (yield from source.try_literal("["))
        while True:
            yield from source.skip_space()
            yield from self._read_call(calls, is_bare)
            yield from source.skip_space()
            has_comma = yield from source.try_literal(",")
            yield from source.skip_space()
            if in_list and (yield from source.try_literal("]")):
                break
            if self.closers and (yield from source.try_any(self.closers)) is not None:
                return
            if in_list and not has_comma:
                yield from source.expect("]", *self.closers)
        source.record()
        yield from calls.read_end(self.closers)

    def _read_call(self, calls: CallWriter, is_bare: bool) -> Reading[None]:
        source = calls.source
        name = yield from source.word(_NOT_NAME)
        yield from source.expect("(")
        if is_bare:
            calls.require_known(name)
        yield from source.skip_space()
        if (yield from source.try_literal(")")):
            calls.whole(name)
            return
        key = yield from _keyword(source)
        calls.begin(name)
        seen: set[str] = set()
        while True:
            if key in seen:
                raise Malformed  # duplicate keyword
            calls.put(f'{", " if seen else "{"}"{quoted(key)}": ')
            seen.add(key)
            yield from read_value(source, self.dialect, calls.put)
            yield from source.skip_space()
            has_comma = yield from source.try_literal(",")
            yield from source.skip_space()
            if (yield from source.try_literal(")")):
                break
            if not has_comma:
                yield from source.expect(",", ")")
            key = yield from _keyword(source)
        calls.put("}")
        calls.end()


def _keyword(source: Source) -> Reading[str]:
    key = yield from source.word(_NOT_NAME)
    yield from source.skip_space()
    yield from source.expect("=")
    yield from source.skip_space()
    return key
