"""Regular expressions as clients mean them: ECMAScript's, as far as an automaton can follow them.

Reads expressions part by part and compiles none. Invariant: what ECMAScript does not have, or the
engines would read in another way, is refused by its name. Source: ECMA-262, 22.2.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from vllm_lite.structured_output.grammar import GrammarError

_ESCAPE = r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]+\}|[pP]\{[^}]*\}|c[A-Za-z]|.)|\\"
_IN_CLASS = re.compile(rf"{_ESCAPE}|\[:\^?[a-z]+:\]|&&|--|~~|.", re.DOTALL)
_REPEATS = r"(?:[*+?]|\{\d+(?:,\d*)?\})[?+]?"
_OUTSIDE = re.compile(
    rf"{_ESCAPE}|\(\?(?:<?[=!]|:|P?<[A-Za-z_]\w*>|[^)]?)|\[\^?|{_REPEATS}|.", re.DOTALL
)
_REPEAT = re.compile(_REPEATS)
_ASCII = {r"\d": "0-9", r"\w": "A-Za-z0-9_"}
_ASCII_NOT = {r"\D": "[^0-9]", r"\W": "[^A-Za-z0-9_]"}
_ESCAPED_LETTERS = frozenset("dDwWsStnrfv")


class _Part(NamedTuple):
    text: str
    in_class: bool


class _Group:
    """A group that is being read: whether something stands before it, or what is in it."""

    def __init__(self, has_begun: bool) -> None:
        self.has_begun = has_begun  # whether anything precedes the group
        self.is_inside = has_begun  # whether anything precedes the current part
        self.is_ended = False  # by a $ in the current alternative
        self.ends = False  # by a $ in any alternative
        self.has_anchor = False


def checked(pattern: str) -> str:
    r"""`pattern` in which \d and \w are ASCII, for engines whose own know all of Unicode.

    Raises GrammarError for what is written in another dialect or can never match.
    """
    parts = list(_parts(pattern))
    for part, behind in pairwise(parts):
        # Engines disagree on an empty class, a bracket in one, and a repeated repeat.
        is_empty = part.text in ("[", "[^") and not part.in_class and behind.text == "]"
        if is_empty or (_is_repeat(part) and _is_repeat(behind)):
            raise _foreign(pattern, part.text + behind.text)
    _check_anchors(pattern, parts)
    return "".join(_spelt(pattern, part) for part in parts)


def full_match(pattern: str) -> str:
    """`pattern` as `checked` gives it, for a match of a whole text, which needs no anchors."""
    parts = _parts(checked(pattern))
    kept = (part.text for part in parts if part.in_class or part.text not in ("^", "$"))
    return "".join(kept) or "(?:)"


def _parts(pattern: str) -> Iterator[_Part]:
    place, in_class = 0, False
    while match := (_IN_CLASS if in_class else _OUTSIDE).match(pattern, place):
        text, place = match.group(), match.end()
        yield _Part(text, in_class)
        in_class = text != "]" if in_class else text.startswith("[")


def _spelt(pattern: str, part: _Part) -> str:
    text, in_class = part
    if text.startswith("\\"):
        return _escape(pattern, text, in_class)
    if in_class:
        if text.startswith("[:"):
            raise _foreign(pattern, f"[{text}]")
        # Some engines read nested sets.
        return f"\\{text}" if text == "[" else "\\".join(text) if len(text) > 1 else text
    if text.startswith("(?"):
        if text.endswith(("=", "!")):
            raise GrammarError(
                f"the pattern {pattern!r:.80} looks ahead or behind: not enforceable"
            )
        if text != "(?:" and not re.fullmatch(r"\(\?P?<\w+>", text):
            raise _foreign(pattern, text)
        return "(?:"
    if _is_repeat(part) and text.endswith("+") and len(text) > 1:
        raise _foreign(pattern, text)
    return text


def _is_repeat(part: _Part) -> bool:
    return not part.in_class and _REPEAT.fullmatch(part.text) is not None


def _escape(pattern: str, text: str, in_class: bool) -> str:
    letter = text[1:2]
    if not letter:
        raise GrammarError(f"the pattern {pattern!r:.80} ends within an escape")
    if text in _ASCII:
        return _ASCII[text] if in_class else f"[{_ASCII[text]}]"
    if text in _ASCII_NOT and not in_class:
        return _ASCII_NOT[text]
    is_known = letter in _ESCAPED_LETTERS or len(text) > 2 or (letter == "b" and in_class)
    if letter.isascii() and letter.isalnum() and not is_known:
        raise _foreign(pattern, text)
    if text == r"\b":
        return r"\x08"
    if letter == "c":
        return f"\\x{ord(text[2]) % 32:02x}"
    return text


def _check_anchors(pattern: str, parts: list[_Part]) -> None:
    """Raise GrammarError where ^ has something before it, or $ something behind."""
    groups = [_Group(False)]
    closed: _Group | None = None
    for text, in_class in parts:
        group, was, closed = groups[-1], closed, None
        if in_class:
            continue  # its opening bracket has counted for the class
        if text.startswith("("):
            if group.is_ended:
                raise _misplaced(pattern, "$")
            groups.append(_Group(group.is_inside))
        elif text == ")" and len(groups) > 1:
            closed = groups.pop()
            outer = groups[-1]
            outer.is_ended |= closed.ends or closed.is_ended
            outer.has_anchor |= closed.has_anchor
            outer.is_inside = True
        elif text == "|":
            group.ends |= group.is_ended
            group.is_inside, group.is_ended = group.has_begun, False
        elif text == "^":
            group.has_anchor = True
            if group.is_inside:
                raise _misplaced(pattern, "^")
        elif text == "$":
            group.has_anchor = group.is_ended = True
        elif _REPEAT.fullmatch(text):
            if was is not None and was.has_anchor:
                raise _misplaced(pattern, "^ or $ in a repeated group")
        else:
            if group.is_ended:
                raise _misplaced(pattern, "$")
            group.is_inside = True


def _foreign(pattern: str, part: str) -> GrammarError:
    return GrammarError(
        f"the pattern {pattern!r:.80} has {part!r:.20}, which cannot be enforced: expressions are "
        "ECMAScript's, without back references and boundaries"
    )


def _misplaced(pattern: str, anchor: str) -> GrammarError:
    where = {"^": "^ behind something", "$": "$ before something"}.get(anchor, anchor)
    return GrammarError(f"the pattern {pattern!r:.80} has {where}, which no text matches")
