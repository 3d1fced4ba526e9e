"""Argument values that come as bare text between markers, made JSON by the tool's schema.

Knows no format. Invariant: a value always becomes valid JSON; what does not fit the types that
the schema allows, and is no JSON itself, is a string, as it stands. A value that can only be a
string is handed on while it is read; the others once they are whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from vllm_lite.parsers.literals import (
    JSON,
    NUMBER,
    PYTHON,
    Coerce,
    convert,
    is_json,
    plain_number,
    quoted,
)
from vllm_lite.parsers.source import SPACE, Put, Reading, Source
from vllm_lite.parsers.tools.spec import ToolSpec

_STRING = frozenset(("string",))
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_TRUE, _FALSE, _NULL = ("true", "1"), ("false", "0"), ("null", "none")


class NewlineTrimmed:
    """Hands text on without one line break at either end: they are layout, not value."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._held = ""
        self._is_first = True

    def __call__(self, text: str) -> None:
        if not text:
            return
        if self._is_first:
            self._is_first = False
            text = text.removeprefix("\n")
        text = self._held + text
        kept = text.removesuffix("\n")
        self._held = text[len(kept) :]
        if kept:
            self._put(kept)


def read_text_value(
    source: Source,
    ends: tuple[str, ...],
    types: Collection[str],
    put: Put,
    *,
    trims_newlines: bool = False,
    has_cdata: bool = False,
) -> Reading[str | None]:
    """Read a value up to one of `ends`, hand it on as JSON, return that end; None for the text's.

    `types` are the JSON types that it may have; with none an object or array is what it looks
    like, and anything else a string. With `has_cdata` a CDATA section is the text within it.
    """
    if not types and (yield from _first_bracket(source, put_space := list[str]())):
        types = ("object", "array", "string")
    elif not types:
        types = _STRING
    else:
        put_space = []
    if frozenset(types) == _STRING:
        put('"')
        put_text = _quoting(put)
        if trims_newlines:
            put_text = NewlineTrimmed(put_text)
        put_text("".join(put_space))
        end = yield from _read_text(source, ends, put_text, has_cdata)
        put('"' if end is not None else "")
        return end
    parts: list[str] = []
    collect: Put = NewlineTrimmed(parts.append) if trims_newlines else parts.append
    collect("".join(put_space))
    end = yield from _read_text(source, ends, collect, has_cdata)
    text = "".join(parts)
    is_whole = end is not None or not source.is_cut
    put(typed(text, types) if is_whole else beginning(text, types))
    return end


def _read_text(
    source: Source, ends: tuple[str, ...], put: Put, has_cdata: bool
) -> Reading[str | None]:
    marks = (*ends, _CDATA) if has_cdata else ends
    while (found := (yield from source.until(marks, put, drops_cut=True))) == _CDATA:
        if (yield from source.until((_CDATA_END,), put, drops_cut=True)) is None:
            return None
    return found


def _first_bracket(source: Source, put_space: list[str]) -> Reading[bool]:
    put_space.append((yield from source.skip_space()))
    return (yield from source.peek()) in ("{", "[")


def _quoting(put: Put) -> Put:
    def put_text(text: str) -> None:
        put(quoted(text))

    return put_text


def typed(text: str, types: Collection[str]) -> str:
    """The JSON of `text` as the first of `types` that it fits.

    What fits none is what it is in JSON, or else a string.
    """
    bare = text.strip(SPACE)
    word = bare.lower()
    if word in _NULL and ("null" in types or "string" not in types):
        return "null"
    if "integer" in types or "number" in types:
        number = bare if NUMBER.fullmatch(bare) else plain_number(bare)
        if number and (number == bare or "string" not in types):
            return number
    if "boolean" in types and word in _TRUE + _FALSE:
        return "true" if word in _TRUE else "false"
    if bare[:1] in ("{", "[") and ("object" if bare[0] == "{" else "array") in types:
        found = convert(bare, JSON) or convert(bare, PYTHON)
        if found is not None:
            return found
    found = convert(bare, JSON) if "string" not in types else None
    return f'"{quoted(text)}"' if found is None else found


def coercion(tool: ToolSpec) -> Coerce:
    """A function that converts values of another type to the types of the tool's schema."""

    def make(path: Sequence[str | None], is_quoted: bool) -> Callable[[str], str] | None:
        types = tool.types_at(path)
        if not types or (is_quoted and "string" in types):
            return None
        return partial(typed, types=types)

    return make


def beginning(text: str, types: Collection[str]) -> str:
    """The JSON of a value that the text's end has cut: never closed where more may have come."""
    bare = text.strip(SPACE)
    if not bare or ("null" in types and "null".startswith(bare.lower())):
        return ""
    looks_so = bare[0] in ("{", "[") or ("string" not in types and bare[0] in "-0123456789tfn")
    if looks_so and is_json(bare) is not False:
        return bare
    return f'"{quoted(text)}'
