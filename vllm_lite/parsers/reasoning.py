"""Where reasoning ends and the answer begins: formats that mark the two with literal strings.

Knows no tools beyond the markers that end reasoning by beginning a call. What has been opened
stays reasoning until it is closed, also where the text ends first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vllm_lite.parsers.source import Markers, Put, Reading, Source


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The strings that begin and end reasoning in a model's text."""

    start: str
    end: str


class ReasoningSplitter:
    """Reads one answer; hands reasoning and the rest to two receivers. Made by a format."""

    def __init__(self, put_reasoning: Put, put_rest: Put, is_inside: bool | None) -> None:
        self.put_reasoning = put_reasoning
        self.put_rest = put_rest
        # Whether the prompt has opened reasoning already; None where nobody knows.
        self.is_inside = is_inside
        self.has_ended = False


class ReasoningFormat(Protocol):
    """One way to tell reasoning from the answer."""

    @property
    def markers(self) -> ReasoningMarkers | None:
        """For a budget of thinking and for grammars that begin afterwards."""
        ...

    def read(self, source: Source, out: ReasoningSplitter) -> Reading[None]:
        """Read a whole answer; sets `out.has_ended` when its reasoning is over."""
        ...


@dataclass(frozen=True)
class TaggedReasoning:
    """`start` reasoning `end` answer."""

    starts: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    # Reasoning may begin without its start, which the prompt's template then holds.
    is_bare: bool = True
    # The start is a control token that no prose contains: it opens reasoning wherever it stands.
    is_anywhere: bool = False
    # These end reasoning too, but belong to what follows.
    implied_ends: tuple[str, ...] = ()
    # Dropped from the answer: marks that stand around it.
    wrappers: tuple[str, ...] = ()
    # Characters dropped from both ends of the reasoning, and from the answer's beginning.
    trim: str = ""
    trim_answer: str = ""
    needs_special_tokens: bool = True

    @property
    def markers(self) -> ReasoningMarkers | None:
        """See ReasoningFormat."""
        return ReasoningMarkers(self.starts[0], self.ends[0])

    def read(self, source: Source, out: ReasoningSplitter) -> Reading[None]:
        """See ReasoningFormat."""
        is_inside = self.is_bare if out.is_inside is None else out.is_inside
        space = yield from source.skip_space()
        if (yield from source.try_any(self.starts)) is not None:
            is_inside, space = True, ""
        put_answer = trimmed_start(out.put_rest, self.trim_answer)
        if is_inside:
            yield from self._read_inside(source, out, put_answer, space)
        else:
            out.has_ended = True
            put_answer(space)
        stops = Markers((*(self.starts if self.is_anywhere else ()), *self.wrappers))
        while (marker := (yield from source.until(stops, put_answer))) is not None:
            if marker in self.starts:
                yield from self._read_inside(source, out, put_answer, "")

    def _read_inside(
        self, source: Source, out: ReasoningSplitter, put_answer: Put, text: str
    ) -> Reading[None]:
        out.has_ended = False
        put = Trimmed(out.put_reasoning, self.trim)
        put(text)
        end = yield from source.until(Markers((*self.ends, *self.implied_ends)), put)
        out.has_ended = end is not None
        if end is not None and end in self.implied_ends:
            put_answer(end)


class Trimmed:
    """Hands text on without the `characters` at its two ends."""

    def __init__(self, put: Put, characters: str) -> None:
        self._put = put
        self._characters = characters
        self._held: list[str] = []
        self._has_begun = not characters

    def __call__(self, text: str) -> None:
        """More of the text."""
        if not self._has_begun:
            text = text.lstrip(self._characters)
            self._has_begun = bool(text)
        kept = text.rstrip(self._characters) if self._characters else text
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
