"""Reasoning formats that mark reasoning and answer with literal strings.

Knows no tools beyond the markers that end reasoning by beginning a call. What has been opened
stays reasoning until it is closed, also where the text ends first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vllm_lite.parsers.source import SPACE, Put, Reading, Source


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The strings that begin and end reasoning in a model's text."""

    start: str
    end: str


class ReasoningSplitter:
    """Receives the parts of one answer from a format: reasoning, and the rest."""

    def __init__(self, put_reasoning: Put, put_rest: Put, is_inside: bool | None) -> None:
        self.put_reasoning = put_reasoning
        self.put_rest = put_rest
        # Whether the prompt opened reasoning; None if unknown.
        self.is_inside = is_inside
        self.has_ended = False
        # A tool format reads what follows the reasoning; it tells prose from arguments and looks
        # for the markers itself.
        self.has_tools = False
        # The format has messages with headers.
        self.has_channels = False


class ReasoningFormat(Protocol):
    """One way to split reasoning from the answer."""

    @property
    def starts(self) -> tuple[str, ...]:
        """The markers that begin reasoning, the usual one first; empty without reasoning."""

    @property
    def ends(self) -> tuple[str, ...]:
        """The markers that end it."""

    def read(self, source: Source, out: ReasoningSplitter) -> Reading[None]:
        """Read a whole answer; sets `out.has_ended` when its reasoning is over."""


@dataclass(frozen=True)
class TaggedReasoning:
    """`start` reasoning `end` answer."""

    starts: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    # Reasoning may begin without a start marker, which the prompt then contains.
    is_bare: bool = True
    # The start is a control token, absent from prose: it opens reasoning anywhere.
    is_anywhere: bool = False
    # Further starts, at the beginning of the text only.
    first_starts: tuple[str, ...] = ()
    # Reasoning is the answer if the request needs one and there is no other.
    may_be_answer: bool = False
    # Markers that end reasoning and belong to what follows.
    implied_ends: tuple[str, ...] = ()
    # Markers around the answer, dropped from it.
    wrappers: tuple[str, ...] = ()
    # Control tokens without meaning, dropped from the reasoning too.
    fillers: tuple[str, ...] = ()
    # Layout to drop: white space before the end marker, these characters before the answer.
    trims_end: bool = False
    trim_answer: str = ""
    needs_special_tokens: bool = True

    def read(self, source: Source, out: ReasoningSplitter) -> Reading[None]:
        is_inside = self.is_bare if out.is_inside is None else out.is_inside
        space = yield from source.skip_space()
        if (yield from source.try_any((*self.starts, *self.first_starts))) is not None:
            is_inside, space = True, ""
        put_answer = trimmed_start(out.put_rest, self.trim_answer)
        if is_inside:
            yield from self._read_inside(source, out, put_answer, space)
        else:
            out.has_ended = True
            put_answer(space)
        if out.has_tools:
            yield from source.until((), put_answer)
            return
        stops = (*self.interlude_starts, *self.dropped)
        while (marker := (yield from source.until(stops, put_answer))) is not None:
            if marker in self.interlude_starts:
                yield from self._read_inside(source, out, put_answer, "")

    @property
    def interlude_starts(self) -> tuple[str, ...]:
        """The markers that reopen reasoning within the answer."""
        return self.starts if self.is_anywhere else ()

    @property
    def dropped(self) -> tuple[str, ...]:
        """Markers dropped from the answer: wrappers, and marks that open or close nothing."""
        marks = (*self.starts, *self.ends) if self.needs_special_tokens else ()
        return (
            *self.wrappers,
            *self.fillers,
            *(mark for mark in marks if mark not in self.interlude_starts),
        )

    def read_interlude(self, source: Source, out: ReasoningSplitter) -> Reading[str | None]:
        """Reasoning within the answer, its start read; returns what ended it and belongs on."""
        out.has_ended = False
        put = EndTrimmed(out.put_reasoning) if self.trims_end else out.put_reasoning
        skipped = (*self.fillers, *(self.starts if self.needs_special_tokens else ()))
        while True:
            end = yield from source.until((*self.ends, *self.implied_ends, *skipped), put)
            if end not in skipped:  # a second start is ignored too
                break
        out.has_ended = end is not None
        return end if end in self.implied_ends and end not in self.wrappers else None

    def _read_inside(
        self, source: Source, out: ReasoningSplitter, put_answer: Put, text: str
    ) -> Reading[None]:
        if text:
            out.put_reasoning(text)
        put_answer((yield from self.read_interlude(source, out)) or "")


class Interludes:
    """A reasoning format for the parts of an answer that a tool format finds to be prose."""

    def __init__(self, reasoning: TaggedReasoning, splitter: ReasoningSplitter) -> None:
        self.starts = reasoning.interlude_starts
        self.wrappers = reasoning.dropped
        self._reasoning = reasoning
        self._splitter = splitter

    def read(self, source: Source) -> Reading[str | None]:
        return self._reasoning.read_interlude(source, self._splitter)


@dataclass(frozen=True)
class PrefixedAnswer:
    """No reasoning is split off; `prefix`, which the prompt holds, is given back to the answer."""

    prefix: str
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    needs_special_tokens: bool = True

    def read(self, source: Source, out: ReasoningSplitter) -> Reading[None]:
        out.has_ended = True
        out.put_rest(self.prefix)
        yield from source.until((), out.put_rest)


class EndTrimmed:
    """Hands text on without the white space at its end."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._held: list[str] = []

    def __call__(self, text: str) -> None:
        kept = text.rstrip(SPACE)
        if kept:
            self._put("".join(self._held) + kept)
            self._held = []
        if len(kept) < len(text):
            self._held.append(text[len(kept) :])


def trimmed_start(put: Put, characters: str) -> Put:
    """A receiver that hands on to `put` what it gets, less `characters` at the beginning."""
    has_begun = not characters

    def put_trimmed(text: str) -> None:
        nonlocal has_begun
        if not has_begun:
            text = text.lstrip(characters)
            has_begun = bool(text)
        if text:
            put(text)

    return put_trimmed
