"""Regular expressions as clients mean them: ECMAScript's classes, and no looking around.

Reads escapes and brackets, nothing else. Source: ECMA-262, 22.2.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# One escape, a bracket that opens or closes a class, or the beginning of a look-around.
_PARTS = re.compile(r"\\.|\[\^?|\]|\(\?<?[=!]", re.DOTALL)
_ASCII = {r"\d": "0-9", r"\w": "A-Za-z0-9_"}
_ASCII_NOT = {r"\D": "[^0-9]", r"\W": "[^A-Za-z0-9_]"}


def has_look_around(pattern: str) -> bool:
    """Whether an expression looks ahead or behind, which no engine here can do."""
    found = False

    def look(part: str, in_class: bool) -> str:
        nonlocal found
        found = found or (part.startswith("(?") and not in_class)
        return part

    _rewritten(pattern, look)
    return found


def with_ascii_classes(pattern: str) -> str:
    r"""`pattern` in which \d and \w are ASCII, for engines whose own know all of Unicode."""

    def spell(part: str, in_class: bool) -> str:
        if part in _ASCII:
            return _ASCII[part] if in_class else f"[{_ASCII[part]}]"
        return part if in_class else _ASCII_NOT.get(part, part)

    return _rewritten(pattern, spell)


def _rewritten(pattern: str, change: Callable[[str, bool], str]) -> str:
    """`pattern` with its parts changed, each told whether it stands inside a class."""
    in_class, class_start = False, 0

    def replace(match: re.Match[str]) -> str:
        nonlocal in_class, class_start
        part = match.group()
        changed = change(part, in_class)
        if part.startswith("[") and not in_class:
            in_class, class_start = True, match.end()
        elif part == "]" and match.start() > class_start:
            in_class = False
        return changed

    return _PARTS.sub(replace, pattern)
