"""From the bytes of one streamed answer to its times, text and token count.

A state machine: however the bytes are cut into pieces, text and count are the same. Reads the
clock once for each piece, before it looks at it. Knows no connection.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(slots=True)
class RequestResult:
    """What became of one request; times in seconds, `start_time` on perf_counter's clock.

    `error` is "" where it succeeded. `latency` reaches to the last chunk, `ttft` to the first,
    `itls` are the gaps between. `output_tokens` is None where the server did not tell.
    """

    prompt_tokens: int
    start_time: float = 0.0
    queue_time: float = 0.0
    ttft: float = 0.0
    itls: array[float] = field(default_factory=lambda: array("d"))
    latency: float = 0.0
    output_tokens: int | None = None
    text: str = ""
    error: str = ""

    @property
    def is_success(self) -> bool:
        """Whether the whole answer came."""
        return not self.error


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)
_FIELD = b"data:"


class StreamRecorder:
    """Takes the pieces of one text/event-stream body as they come."""

    __slots__ = ("_first", "_itls", "_last", "_rest", "_texts", "_tokens", "error", "is_done")

    def __init__(self) -> None:
        self.error = ""
        self.is_done = False
        self._rest = b""
        self._first = self._last = 0.0
        self._itls = array("d")
        self._texts: list[str] = []
        self._tokens: int | None = None

    @property
    def num_chunks(self) -> int:
        """Chunks with choices so far."""
        return len(self._itls) + 1 if self._first else 0

    def on_body(self, piece: bytes) -> None:
        """Take the next piece."""
        now = time.perf_counter()
        lines = (self._rest + piece).split(b"\n") if self._rest else piece.split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(_FIELD):
                self._on_event(line[len(_FIELD) :].strip(), now)

    def _on_event(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self.is_done = True
            return
        try:
            chunk = _DECODER.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.error = self.error or f"a chunk is not as OpenAI's: {error}"
            return
        if chunk.error is not None:
            self.error = self.error or error_text(payload)
        if chunk.choices:
            if self._first:
                self._itls.append(now - self._last)
            else:
                self._first = now
            self._last = now
            choice = chunk.choices[0]
            text = choice.text if choice.delta is None else choice.delta.content
            if text:
                self._texts.append(text)
        if chunk.usage is not None:
            self._tokens = chunk.usage.completion_tokens

    def finish(self, result: RequestResult) -> None:
        """Write what was seen into `result`, whose `start_time` is set."""
        if not self._first:
            result.error = result.error or self.error or "the answer has no tokens"
            return
        result.ttft = self._first - result.start_time
        result.latency = self._last - result.start_time
        result.itls = self._itls
        result.output_tokens = self._tokens
        result.text = "".join(self._texts)
        result.error = result.error or self.error


def error_text(body: bytes) -> str:
    """The message of an error body, or its beginning where it is none of OpenAI's."""
    try:
        content = msgspec.json.decode(body)
        error = content.get("error", content)
        message = error if isinstance(error, str) else error["message"]
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError):
        message = body[:200].decode("utf-8", "replace")
    return " ".join(str(message).split())
