"""Text that arrives in pieces, read as if it were whole.

A parser is a generator that reads a `Source` and yields where it needs more text. It sees
characters only, never where a piece ended, so it cannot tell one split of a text from another.
Invariant: every character is looked at a bounded number of times; what has been read is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
Put = Callable[[str], None]

SPACE = " \t\r\n"
MAX_NAME = 256  # longest name of a tool or argument, in characters
_MAX_AHEAD = 1 << 18  # longest lookahead, in characters
NOT_NAME = re.compile(r"[<>{}\s]")  # characters that show that a name has no end
_NOT_SPACE = re.compile(r"[^ \t\r\n]")


class Malformed(Exception):
    """The text does not follow its format from here on."""


class EndOfText(Exception):
    """The text ended where its format needs more."""


class Markers:
    """A few literal strings that are looked for together; at one place the longest wins."""

    def __init__(self, markers: Iterable[str]) -> None:
        self.all = tuple(sorted(set(markers), key=lambda marker: (-len(marker), marker)))
        self._pattern = re.compile("|".join(map(re.escape, self.all)) if self.all else r"(?!)")
        self._prefixes = frozenset(m[:k] for m in self.all for k in range(1, len(m)))
        self._longest_prefix = max((len(marker) - 1 for marker in self.all), default=0)

    def find(self, text: str, start: int) -> tuple[int, str | None]:
        """The place of the first marker from `start`, and the marker; or where one may begin."""
        found = self._pattern.search(text, start)
        first = found.start() if found else len(text)
        tail = max(start, len(text) - self._longest_prefix)
        for begin in range(tail, min(first + 1, len(text))):
            if text[begin:] in self._prefixes:
                return begin, None
        return first, found.group() if found else None

    def find_last(self, text: str, start: int) -> tuple[int, str | None]:
        """As `find`, of a text that is known to have ended."""
        found = self._pattern.search(text, start)
        return (found.start(), found.group()) if found else (len(text), None)


_markers = lru_cache(maxsize=1024)(Markers)  # bounded by the number of formats


class Source:
    """The text between what has been read and what has arrived."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._closed = False
        self.is_cut = True  # whether the text ends before the model had ended it
        self._record: list[str] | None = None
        self._copy: list[str] | None = None
        self._ahead_left = _MAX_AHEAD

    def push(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def close(self, *, is_cut: bool = True) -> None:
        """Nothing more arrives."""
        self._closed = True
        self.is_cut = is_cut

    def record(self, before: str = "") -> None:
        """Begin to keep a copy of what is read, after `before`, until `recorded` is asked."""
        self._record = [before]

    def recorded(self) -> str:
        """The text read since `record`; ends the recording."""
        kept, self._record = self._record, None
        return "".join(kept or ())

    def unread(self, text: str) -> None:
        """Give back `text`, the last that was read; not while a copy is kept."""
        begin = self._at - len(text)
        if begin < 0 or not self._text.startswith(text, begin):
            self._text = text + self._text[self._at :]
            begin = 0
        self._at = begin

    def copy(self) -> None:
        """Keep everything read from here until `copied`, independently of `record`."""
        self._copy = []

    def copied(self) -> str:
        """The text read since `copy`; ends the copying."""
        kept, self._copy = self._copy, None
        return "".join(kept or ())

    def _take(self, end: int) -> str:
        taken = self._text[self._at : end]
        self._at = end
        if self._record is not None:
            self._record.append(taken)
        if self._copy is not None:
            self._copy.append(taken)
        return taken

    def more(self) -> Reading[None]:
        """Wait until there is a character to read; raises EndOfText where none comes."""
        while self._at >= len(self._text):
            if self._closed:
                raise EndOfText
            yield

    def peek(self) -> Reading[str]:
        """The next character, not read; "" at the end."""
        while self._at >= len(self._text):
            if self._closed:
                return ""
            yield
        return self._text[self._at]

    def ahead(self, pattern: re.Pattern[str], limit: int) -> Reading[str | None]:
        """The match of `pattern` in the text ahead, or all of that at its end; consumes nothing.

        It is asked again while more arrives, so no match may be the beginning of a longer one.
        None where `limit` characters, or all that one text may be looked at so, are not enough.
        """
        while True:
            found = pattern.match(self._text, self._at, self._at + limit)
            length = (found.end() if found else len(self._text)) - self._at
            if found or self._closed or length >= limit:
                self._ahead_left -= length
                is_known = self._ahead_left >= 0 and (found or length < limit)
                return self._text[self._at : self._at + length] if is_known else None
            yield

    def read(self) -> Reading[str]:
        yield from self.more()
        return self._take(self._at + 1)

    def skip_space(self) -> Reading[str]:
        skipped = ""
        while True:
            found = _NOT_SPACE.search(self._text, self._at)
            skipped += self._take(found.start() if found else len(self._text))
            if found or self._closed:
                return skipped
            yield

    def try_literal(self, literal: str) -> Reading[bool]:
        while len(self._text) - self._at < len(literal):
            if self._closed or not literal.startswith(self._text[self._at :]):
                return False
            yield
        if not self._text.startswith(literal, self._at):
            return False
        self._take(self._at + len(literal))
        return True

    def try_any(self, literals: Iterable[str]) -> Reading[str | None]:
        """Read the first of `literals` that comes next; None where none does."""
        for literal in literals:
            if (yield from self.try_literal(literal)):
                return literal
        return None

    def expect(self, *literals: str) -> Reading[str]:
        """Read the first of `literals` that comes next.

        Raises Malformed where none does, EndOfText where the text ends before or within one.
        """
        found = yield from self.try_any(literals)
        if found is None:
            rest = self._text[self._at :]
            if self._closed and any(literal.startswith(rest) for literal in literals):
                self._take(len(self._text))
                raise EndOfText
            raise Malformed
        return found

    def until(
        self, marks: tuple[str, ...], put: Put, limit: int | None = None, *, drops_cut: bool = False
    ) -> Reading[str | None]:
        """Hand text to `put` up to the first marker; read the marker and return it.

        None at the end of the text. Text is handed on as soon as it can be no marker. Raises
        Malformed once more than `limit` characters come before a marker. With `drops_cut` a
        marker that the text's end has cut is read over, and is text otherwise.
        """
        markers = _markers(marks)
        while True:
            find = markers.find_last if self._closed else markers.find
            end, marker = find(self._text, self._at)
            if drops_cut and self._closed and marker is None:
                end, _ = markers.find(self._text, self._at)
            if limit is not None and end - self._at > limit:
                put(self._take(self._at + limit + 1))
                raise Malformed
            if end > self._at:
                limit = None if limit is None else limit - (end - self._at)
                put(self._take(end))
            if marker is not None:
                self._take(self._at + len(marker))
                return marker
            if self._closed:
                self._at = len(self._text)
                return None
            yield

    def run(self, stop: re.Pattern[str], put: Put, limit: int | None = None) -> Reading[None]:
        """Hand on the characters before the first that `stop`, one character, matches.

        Raises Malformed once there are more than `limit`.
        """
        while True:
            found = stop.search(self._text, self._at)
            end = found.start() if found else len(self._text)
            if limit is not None and end - self._at > limit:
                put(self._take(self._at + limit + 1))
                raise Malformed
            if end > self._at:
                limit = None if limit is None else limit - (end - self._at)
                put(self._take(end))
            if found or self._closed:
                return
            yield

    def name(self, ends: tuple[str, ...]) -> Reading[str]:
        """A short name and the marker that ends it, both read; returns the name, trimmed.

        Raises Malformed where it is empty, too long, or holds a line break inside.
        """
        name, _ = yield from self.short(ends)
        if not name or "\n" in name:
            raise Malformed
        return name

    def short(self, ends: tuple[str, ...]) -> Reading[tuple[str, str]]:
        """A short text, trimmed, and the marker that ends it; Malformed where it is too long."""
        parts: list[str] = []
        end = yield from self.until(ends, parts.append, MAX_NAME, drops_cut=True)
        text = "".join(parts).strip(SPACE)
        if end is None:
            raise Malformed if NOT_NAME.search(text) else EndOfText
        return text, end

    def word(self, stop: re.Pattern[str]) -> Reading[str]:
        """The characters before the first that `stop` matches; Malformed where there is none."""
        parts: list[str] = []
        yield from self.run(stop, parts.append, MAX_NAME)
        yield from self.more()
        if not parts:
            raise Malformed
        return "".join(parts)
