"""A reply's Markdown on a terminal, as it arrives.

Complete blocks are printed once; the last one is redrawn as it grows. Control
characters must be removed from the text before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment

# Most drawings of a growing block in a second.
_DRAWINGS = 15
_parser = MarkdownIt().enable("table")


class _Block:
    """Some Markdown without the spaces that fill its lines, its last `height` lines at most."""

    def __init__(self, text: str, height: int | None = None) -> None:
        self._markdown = Markdown(text, code_theme="ansi_dark", hyperlinks=False)
        self._height = height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._markdown, options, pad=False)
        for line in lines[-self._height :] if self._height else lines:
            yield from _without_fill(line)
            yield Segment.line()


def _without_fill(line: Iterable[Segment]) -> list[Segment]:
    segments = [*line]
    while segments and not segments[-1].text.strip():
        segments.pop()
    if segments:
        text, style, control = segments[-1]
        segments[-1] = Segment(text.rstrip(), style, control)
    return segments


class MarkdownReply:
    """One reply: write its parts, then close it in any case."""

    def __init__(self, file: TextIO) -> None:
        self._console = Console(file=file, force_terminal=True, highlight=False)
        self._text = ""
        self._live = Live(
            console=self._console,
            get_renderable=lambda: _Block(self._text, self._console.height - 2),
            refresh_per_second=_DRAWINGS,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def write(self, text: str) -> None:
        self._text += text
        if start := _last_block(self._text):
            done, self._text = self._text[:start], self._text[start:]
            # Above what grows.
            self._console.print(_Block(done))

    def close(self) -> None:
        self._live.stop()
        if self._text.strip():
            self._console.print(_Block(self._text), end="")


def _last_block(text: str) -> int:
    """The offset of the last block of `text` in characters; earlier blocks are complete."""
    starts = [token.map[0] for token in _parser.parse(text) if token.map and token.level == 0]
    if not starts or starts[-1] == 0:
        return 0
    return sum(len(line) for line in text.split("\n")[: starts[-1]]) + starts[-1]
