"""Values as models write them (JSON, Python literals, Gemma's braces), turned into JSON text.

Knows no calls. Nothing is evaluated and nothing recurses: open brackets are on a stack. Invariant:
what is handed on, joined, is always the beginning of a JSON value, and a whole one once the reading
returns. Spaces are as `json.dumps` sets them; numbers and escapes stay as written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from vllm_lite.parsers.quotes import num_inner_quotes
from vllm_lite.parsers.source import SPACE, EndOfText, Malformed, Put, Reading, Source

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(r"-|-?(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][+-]?[0-9]*)?")
_LOOSE_NUMBER = re.compile(
    r"([+-]?)0*([0-9](?:_?[0-9])*|(?=\.[0-9]))(?:\.([0-9]*))?([eE][+-]?[0-9]+)?"
)
_NOT_SCALAR = re.compile(r"[^A-Za-z0-9_+.\-]")
ENDS_WORD, _ENDS_CALL_WORD = re.compile(r"[,:{}\[\]]"), re.compile(r"[,:{}\[\])]")
_PARTS = re.compile(r'"(?:[^"\\]|\\.)*("?)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_MAX_AHEAD = 2048
_HEX = re.compile(r"[0-9A-Fa-f]+")
_SET, _CALL = "} of a set", ") of a call"
_JSON_BRACKET = {"{": "{", "[": "[", "(": "[", "}": "}", "]": "]", ")": "]", _SET: "]", _CALL: "}"}
_CLOSER = {"{": "}", "[": "]", "(": ")"}
# The first item in braces, and the character after it.
_FIRST_ITEM = re.compile(
    r"""\s*(?:([{(\[}])|(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s'"{}\[\](),:]+)\s*([,:}]))""",
    re.DOTALL,
)
# JSON's escapes, then those of Python alone.
_ESCAPES = {c: f"\\{c}" for c in '"\\bfnrt'}
_PYTHON_ESCAPES = {"'": "'", "\n": "", "a": "\\u0007", "v": "\\u000b", "0": "\\u0000"}
_HEX_ESCAPES = {"u": 4, "x": 2, "U": 8}
_NO_TEXT = "\\ufffd"


@dataclass(frozen=True)
class Dialect:
    """One way to write values. `quotes` is in the order of trial, the longest first."""

    quotes: tuple[str, ...] = ('"',)
    constants: Mapping[str, str] = field(
        default_factory=lambda: {"true": "true", "false": "false", "null": "null"}
    )
    openers: tuple[str, ...] = ("{", "[")
    escapes: Mapping[str, str] = field(default_factory=lambda: _ESCAPES | {"/": "\\/"})
    loose_numbers: bool = False  # see `plain_number`
    joins_strings: bool = False  # adjacent strings are concatenated
    has_sets: bool = False  # {1, 2} is [1, 2]
    # Matches the rest of the calls: tells an unescaped quote inside a string from the closing one.
    calls: re.Pattern[str] | None = None
    # Keys and strings may be unquoted: they end at the next match of this pattern.
    bare_words: re.Pattern[str] | None = None


JSON = Dialect()
PYTHON = Dialect(
    quotes=('"""', "'''", '"', "'"),
    constants={"True": "true", "False": "false", "None": "null"} | dict(JSON.constants),
    openers=("{", "[", "("),
    escapes=_ESCAPES | _PYTHON_ESCAPES,
    loose_numbers=True,
    joins_strings=True,
    has_sets=True,
)

GEMMA = Dialect(quotes=('<|"|>', '"'), escapes={}, bare_words=ENDS_WORD)
FUNCTION_GEMMA = Dialect(quotes=("<escape>",), escapes={}, bare_words=ENDS_WORD)


def plain_number(word: str) -> str | None:
    """The JSON of a number in a spelling that JSON lacks: `07`, `+1`, `.5`, `5.`, `1_000`."""
    found = _LOOSE_NUMBER.fullmatch(word)
    if found is None:
        return None
    sign, whole, part, power = found.groups(default="")
    point = "." in word
    return f"{sign.strip('+')}{whole or 0}{point * '.'}{(part or '0') * point}{power}".replace(
        "_", ""
    )


def quoted(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


# (path of keys, None for an array's items; whether the value is quoted) -> a function from its text
# to JSON, or None where the text is used as it is.
Coerce = Callable[[Sequence[str | None], bool], Callable[[str], str] | None]


def _as_written(path: Sequence[str | None], is_quoted: bool) -> None:
    return None


def read_value(
    source: Source, dialect: Dialect, put: Put, opener: str = "", coerce: Coerce = _as_written
) -> Reading[None]:
    """Read one value and hand it on as JSON. Raises Malformed or EndOfText.

    A key that its object has already is Malformed: no reader agrees with another what it means.
    `opener`: its first bracket, read already; `(` is that of a call's arguments.
    """
    open_brackets: list[str] = []  # their closers, outermost first; _SET for a set
    keys: list[set[str]] = []  # of each open object
    path: list[str | None] = []  # the current key of each
    if opener == "(":
        dialect = replace(dialect, bare_words=_ENDS_CALL_WORD)
    if opener:
        open_brackets.append(_CALL if opener == "(" else _CLOSER[opener])
        put("{" if opener == "(" else opener)
        keys.append(set())
        path.append(None)
    comma, is_after_item = "", False
    while True:
        yield from source.skip_space()
        if open_brackets and (yield from source.try_literal(open_brackets[-1][0])):
            put(_JSON_BRACKET[open_brackets.pop()])
            keys.pop()
            path.pop()
            is_after_item = True
        elif open_brackets and is_after_item:
            yield from source.expect(",")
            comma, is_after_item = ", ", False
            continue
        else:
            if open_brackets and open_brackets[-1] in ("}", _CALL):
                key = yield from _read_key(source, dialect, put, comma)
                name = str(json.loads(key))
                if name in keys[-1]:
                    raise Malformed
                keys[-1].add(name)
                path[-1] = name
                put(f"{comma}{key}: ")
                comma = ""
            bracket = yield from source.try_any(dialect.openers)
            if bracket is not None:
                is_set = bracket == "{" and dialect.has_sets and (yield from _is_set(source))
                put(comma + ("[" if is_set else _JSON_BRACKET[bracket]))
                open_brackets.append(_SET if is_set else _CLOSER[bracket])
                keys.append(set())
                path.append(None)
                comma, is_after_item = "", False
                continue
            yield from _read_scalar(source, dialect, put, comma, partial(coerce, path))
            is_after_item = True
        if not open_brackets:
            return


def _is_set(source: Source) -> Reading[bool]:
    """Whether the brace that was read begins a set."""
    first = yield from source.ahead(_FIRST_ITEM, _MAX_AHEAD)
    found = _FIRST_ITEM.fullmatch(first) if first else None
    if not found:
        return False
    opener, end = found.groups()
    return opener != "}" if opener else end != ":"


def _read_key(source: Source, dialect: Dialect, put: Put, comma: str) -> Reading[str]:
    """The key of an object's next member as a JSON string, and the colon after it.

    It is not handed on, but where the text ends within it.
    """
    quote = yield from source.try_any(dialect.quotes)
    if quote is not None:
        parts = ['"']
        try:
            yield from read_string(source, quote, dialect, parts.append)
            yield from source.skip_space()
            yield from source.expect(":")
        except EndOfText:
            put(comma + "".join(parts))
            raise
        key = "".join(parts)
    elif dialect.bare_words:
        key = f'"{quoted((yield from source.name((":",))))}"'
    else:
        yield from source.more()
        raise Malformed
    yield from source.skip_space()
    return key


def _read_scalar(
    source: Source,
    dialect: Dialect,
    put: Put,
    comma: str,
    coerce: Callable[[bool], Callable[[str], str] | None],
) -> Reading[None]:
    quote = yield from source.try_any(dialect.quotes)
    make = coerce(quote is not None)
    if quote is not None and make is not None:
        text: list[str] = []
        if (yield from source.until((quote,), text.append, drops_cut=True)) is None:
            put(_unclosed(make("".join(text)), comma))
            raise EndOfText
        put(comma + make("".join(text)))
        return
    if quote is not None:
        put(comma + '"')
        yield from _read_strings(source, quote, dialect, put)
        return
    parts: list[str] = []
    yield from source.run(dialect.bare_words or _NOT_SCALAR, parts.append)
    word = "".join(parts).rstrip(SPACE)
    if make is not None and word and (yield from source.peek()):
        put(comma + make(word))
        return
    value = dialect.constants.get(word) or (word if NUMBER.fullmatch(word) else None)
    if make is not None and not (yield from source.peek()):
        if (_begun(word := _without_cut(word, dialect.quotes), dialect) or "").startswith('"'):
            put(_unclosed(make(word), comma))
        raise EndOfText
    if value is None and dialect.loose_numbers:
        value = plain_number(word)
    if value is not None:
        put(comma + value)
        return
    if not (yield from source.peek()) and (begun := _begun(word, dialect)) is not None:
        put(comma + begun if begun else "")
        raise EndOfText
    if not dialect.bare_words or not word:
        raise Malformed
    put(f'{comma}"{quoted(word)}"')


def _unclosed(value: str, comma: str) -> str:
    """The prefix of `comma` and `value` that holds however the text goes on."""
    return comma + value[:-1] if value.startswith('"') else ""


def _without_cut(word: str, quotes: tuple[str, ...]) -> str:
    """`word` without the beginning of a quote at its end."""
    cuts = (each[:size] for each in quotes for size in range(len(each) - 1, 0, -1))
    return word.removesuffix(next(filter(word.endswith, cuts), ""))


def _begun(word: str, dialect: Dialect) -> str | None:
    """The JSON prefix of a value that the text's end cut to `word`; None if there is none."""
    if not word or _NUMBER_BEGUN.fullmatch(word):
        return word
    whole = next((name for name in dialect.constants if name.startswith(word)), None)
    if whole:
        return dialect.constants[whole][: len(word)]
    if any(quote.startswith(word) for quote in dialect.quotes):
        return ""
    return f'"{quoted(word)}' if dialect.bare_words else None


def _read_strings(source: Source, quote: str | None, dialect: Dialect, put: Put) -> Reading[None]:
    """As `read_string`; where the dialect joins strings, with those beside it."""
    while quote is not None:
        yield from read_string(source, quote, dialect, put, closer="")
        if not dialect.joins_strings:
            break
        yield from source.skip_space()
        quote = yield from source.try_any(dialect.quotes)
    put('"')


def read_string(
    source: Source,
    quote: str,
    dialect: Dialect,
    put: Put,
    limit: int | None = None,
    *,
    closer: str = '"',
) -> Reading[None]:
    """Read the rest of a string that `quote` opened; hands on its inside and the closing `"`.

    Raises Malformed where it has more than `limit` characters.
    """
    ends = (quote, "\\") if dialect.escapes else (quote,)
    length = 0
    num_inner: int | None = None  # inner quotes, counted at the first one

    def put_text(text: str) -> None:
        nonlocal length
        length += len(text)
        put(quoted(text))

    while True:
        left = None if limit is None else limit - length
        end = yield from source.until(ends, put_text, left, drops_cut=True)
        if end is None:
            raise EndOfText
        if end == quote:
            if num_inner is None and dialect.calls is not None:
                num_inner = yield from num_inner_quotes(source, quote, dialect.calls)
            if not num_inner:
                put(closer)
                return
            num_inner -= 1
            put(quoted(quote))
            continue
        length += 1
        if limit is not None and length > limit:
            raise Malformed
        yield from _read_escape(source, dialect, put)


def _read_escape(source: Source, dialect: Dialect, put: Put) -> Reading[None]:
    char = yield from source.read()
    width = _HEX_ESCAPES.get(char, 0)
    if not width or (char != "u" and "'" not in dialect.escapes):
        # In an unknown escape the backslash is a plain character.
        put(dialect.escapes.get(char, "\\\\" + quoted(char)))
        return
    half = ""  # the first half of a surrogate pair
    while True:
        digits = yield from _read_hex(source, width)
        code = int(digits, 16) if len(digits) == width else -1
        if half:
            put(f"\\u{half}\\u{digits}" if 0xDC00 <= code < 0xE000 else _NO_TEXT)
            if 0xDC00 <= code < 0xE000:
                return
        if 0xD800 <= code < 0xDC00 and (yield from source.try_literal("\\u")):
            half, char, width = f"{code:04x}", "u", 4
            continue
        put(_escaped(char, digits, code))
        return


def _read_hex(source: Source, width: int) -> Reading[str]:
    digits = ""
    while len(digits) < width:
        next_char = yield from source.peek()
        if not next_char:
            raise EndOfText
        if not _HEX.fullmatch(next_char):
            break
        digits += yield from source.read()
    return digits


def _escaped(char: str, digits: str, code: int) -> str:
    """The escape of a character in JSON; one of no character is text."""
    if not 0 <= code <= 0x10FFFF:
        return "\\\\" + char + digits
    if 0xD800 <= code < 0xE000:
        return _NO_TEXT
    return "\\u" + digits if len(digits) == 4 else quoted(chr(code))


def convert(text: str, dialect: Dialect) -> str | None:
    """The JSON of `text`, one value in `dialect`; None if it is not valid."""
    try:
        return _converted(text, dialect)
    except (Malformed, EndOfText):
        return None


def is_json(text: str) -> bool | None:
    """Whether `text` is one JSON value; None where it is the beginning of one."""
    try:
        _converted(text, JSON)
    except EndOfText:
        return None
    except Malformed:
        return False
    return True


def _converted(text: str, dialect: Dialect) -> str:
    source, parts = Source(), list[str]()
    source.push(text)
    source.close()
    next(_read_whole(source, dialect, parts.append), None)
    return "".join(parts)


def ending(begun: str) -> str:
    """The text that completes `begun`, the beginning of a JSON object."""
    closers: list[str] = []
    last = tail = ""  # a structural character, "key" or "value"
    for found in _PARTS.finditer(begun):
        part = found.group()
        if part in _CLOSER:
            closers.append(_CLOSER[part])
            last = part
        elif part in "}]":
            closers.pop()
            last = "value"
        elif part in ",:":
            last = part
        else:
            is_key = last != ":" and closers[-1] == "}"
            last = "key" if is_key else "value"
            tail = '"' if part[0] == '"' and not found.group(1) else _ending_of_word(part)
    tail += {"key": ": null", ":": "null"}.get(last, "")
    return tail + "".join(reversed(closers)) if begun else "{}"


def _ending_of_word(word: str) -> str:
    """The text that completes a number or constant that begins so."""
    whole = next((name for name in JSON.constants if name.startswith(word)), "")
    return whole[len(word) :] or ("0" if word[-1] in "-+.eE" and not whole else "")


def _read_whole(source: Source, dialect: Dialect, put: Put) -> Reading[None]:
    yield from read_value(source, dialect, put)
    yield from source.skip_space()
    if (yield from source.peek()):
        raise Malformed
