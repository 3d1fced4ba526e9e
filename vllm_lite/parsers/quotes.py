"""Quotes within a Python string that no backslash marks: `run(c='sed -n '1,9p' x')`.

Nothing is evaluated. A quote that nothing may follow as it does is text. Which later one ends the
string is decided only where one alone leaves calls that can be read to their end.
"""

from __future__ import annotations

import re

from vllm_lite.parsers.source import Malformed, Reading, Source

_MAX_AHEAD = 2048  # characters searched after a quote
_MAX_QUOTES = 16  # candidates for the closing quote
_FOLLOWER = re.compile(r"\s*\S")
_FOLLOWERS = ",)]}:"
_PARTS = re.compile(
    r"""\s*(?:("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s'"{}\[\](),:=]+)|([{}\[\](),:=]))""",
    re.DOTALL,
)
_AFTER_CALL = re.compile(r"\s*(?:\]|$)|\s*,\s*[\w.\-]+\(|\s*\n")
_OPENER = {")": "(", "]": "[", "}": "{"}


def num_inner_quotes(source: Source, quote: str, calls: re.Pattern[str]) -> Reading[int]:
    """How many quotes, the one just read the first, are text; 0 where it ends its string.

    `calls` matches what comes next up to the calls' end. Raises Malformed where that is unclear.
    """
    follower = yield from source.ahead(_FOLLOWER, _MAX_AHEAD)
    if not follower or follower[-1] in f"{_FOLLOWERS}'\"" or follower.isspace():
        return 0
    rest = yield from source.ahead(calls, _MAX_AHEAD)
    if rest is None:
        raise Malformed
    quotes = [
        found.end()
        for found in re.finditer(rf"\\.|{quote}", rest)
        if found.end() - found.start() == 1
    ]
    ends = [
        number
        for number, end in enumerate(quotes[:_MAX_QUOTES], 1)
        if rest[end:].lstrip()[:1] in _FOLLOWERS and _ends_calls(rest[end:])
    ]
    if len(ends) != 1:
        raise Malformed
    return ends[0]


def _ends_calls(text: str) -> bool:
    """Whether `text`, which follows a value of a call's arguments, ends the call as it should."""
    opened: list[str] = []
    last = "value"
    at = 0
    while found := _PARTS.match(text, at):
        at = found.end()
        value, mark = found.groups()
        if value is not None:
            if last == "value":
                return False
            last = "value"
        elif mark in "([{":
            if last == "value" and mark != "(":
                return False
            opened.append(mark)
            last = mark
        elif mark in _OPENER:
            if opened and opened.pop() != _OPENER[mark]:
                return False
            if not opened and mark == ")" and _AFTER_CALL.match(text, at):
                return True
            last = "value"
        else:
            if last in (",", ":", "="):
                return False
            last = mark
    return False
