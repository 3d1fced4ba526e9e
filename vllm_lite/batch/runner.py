"""Keeps the engine full with lines and the journal filled with their records.

Each line's request goes through the service that a server would give it to, which sees an HTTP
request; nothing listens anywhere. Invariant: no more than `num_in_flight` lines are in memory,
and no more bytes of them than MAX_BYTES_IN_FLIGHT and a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Message

from vllm_lite.batch.journal import Journal
from vllm_lite.batch.lines import BatchLine, parse_line
from vllm_lite.errors import EngineDeadError
from vllm_lite.server.context import ServingContext
from vllm_lite.server.errors import failure_of
from vllm_lite.server.openai.batches.endpoints import batch_services

Headers = tuple[tuple[bytes, bytes], ...]
_HEADERS = ((b"content-type", b"application/json"),)
# What a batch may ask of one model or another.
_URLS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings"),
    *("/v1/audio/transcriptions", "/v1/audio/translations"),
)
_ENDINGS = ("/score", "/rerank")
# Seconds between two looks at what clients have in the engine, while a row waits.
LOOK_EVERY = 0.05
# Seconds after its end that a client is expected back.
LINGER = 1.0
# Seconds until a line that found the engine's queue full comes back.
RETRY_INTERVAL = 0.1
_TOO_MANY_REQUESTS = 429
# A request in Python takes several times its bytes in the file.
MAX_BYTES_IN_FLIGHT = 32 << 20


class _Mode(msgspec.Struct):
    """The fields of a body that are read first."""

    stream: Any = None


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw | None


class _Record(msgspec.Struct):
    """A line of the output. `error` is text, or an error object as a server sends it."""

    id: str
    custom_id: str | None
    response: _Response
    error: Any


@dataclass(frozen=True, slots=True)
class Answer:
    """How a line ended: the reply's body, or an error."""

    status: int
    body: bytes | None = None
    error: Any = None

    def record(self, custom_id: str | None) -> bytes:
        body = None if self.body is None else msgspec.Raw(self.body)
        response = _Response(self.status, f"vllm-batch-{uuid.uuid4().hex}", body)
        record = _Record(f"vllm-{uuid.uuid4().hex}", custom_id, response, self.error)
        return msgspec.json.encode(record)


class Endpoints:
    """The urls that a line may name, over one engine."""

    def __init__(self, context: ServingContext, headers: Headers = ()) -> None:
        """Every line's request comes with `headers`."""
        self._services = batch_services(context)
        self._headers = _HEADERS + headers

    async def answer(self, line: BatchLine) -> Answer:
        """Run the line's request to its end; raises EngineDeadError and nothing else."""
        if line.fault is not None:
            return _unreadable(line)
        service = self._services.get(line.url)
        if service is None:
            return Answer(400, error=self._refusal(line.url))
        if _streams(line.body):
            return Answer(400, error="Request must not be sent in stream mode")
        try:
            response = await service(_request(line, self._headers))
        except EngineDeadError:
            raise
        except Exception as error:
            failure = failure_of(error, line.custom_id or f"line {line.number}")
            return Answer(failure.status, error=msgspec.Raw(failure.body()))
        if response.media_type != "application/json":
            return Answer(400, error="A line of a batch is answered with JSON: send another format")
        return Answer(response.status_code, body=bytes(response.body))

    def _refusal(self, url: str) -> str:
        if url in _URLS or url.endswith(_ENDINGS):
            return f"Model does not support endpoint: {url:.200}"
        known = ", ".join((*_URLS, *_ENDINGS))
        return f"URL {url:.200} was used. Supported endpoints: {known}"


def _unreadable(line: BatchLine) -> Answer:
    error = {
        "message": f"Line {line.number} of the input is not a request: {line.fault}",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
        "line": line.number,
    }
    return Answer(400, error={"error": error})


def _streams(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_Mode).stream not in (None, False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # the service says what is wrong with it


def _request(line: BatchLine, headers: Headers) -> Request:
    scope = {
        "type": "http",
        "method": "POST",
        "path": line.url,
        "query_string": b"",
        "headers": headers,
    }
    messages: list[Message] = [{"type": "http.request", "body": line.body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()  # whoever asked stays to the end
        return messages.pop()

    return Request(scope, receive)


class Turns:
    """Lets `most` run while no client asks for anything, and `least` beside clients' requests."""

    def __init__(self, most: int, least: int, count_others: Callable[[], int]) -> None:
        self.most = most
        self._least = least
        self._count_others = count_others
        self._num_running = 0
        # Of those that wait for a turn, one looks whether there is room.
        self._queue = asyncio.Lock()
        self._has_left = asyncio.Event()
        self._others_seen = -LINGER

    @property
    def is_alone(self) -> bool:
        """Whether nothing of a client's has been in the engine for a while."""
        if self._count_others():
            self._others_seen = time.monotonic()
        return time.monotonic() - self._others_seen >= LINGER

    async def __aenter__(self) -> None:
        async with self._queue:
            while self._num_running >= (self.most if self.is_alone else self._least):
                self._has_left.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_left.wait(), LOOK_EVERY)
            self._num_running += 1

    async def __aexit__(self, *_: object) -> None:
        self._num_running -= 1
        self._has_left.set()


class BatchRunner:
    """Runs the lines of one batch that its journal does not hold yet."""

    def __init__(
        self,
        endpoints: Endpoints,
        journal: Journal,
        num_in_flight: int,
        on_done: Callable[[], object],
        turns: Turns | None = None,
    ) -> None:
        """`on_done` is called after each line; `turns` say when one may run."""
        self._endpoints = endpoints
        self._journal = journal
        self._num_in_flight = num_in_flight
        self._on_done = on_done
        self._turns = turns or Turns(num_in_flight, num_in_flight, lambda: 0)
        # Lines that the engine has, not counting those that wait to be let in.
        self._num_running = 0
        self._num_bytes = 0
        self._has_room = asyncio.Condition()

    async def run(self, lines: Iterator[tuple[int, bytes]]) -> None:
        """Answer every line of `lines`; raises EngineDeadError, and UsageError on a full disk."""
        workers = [asyncio.create_task(self._work(lines)) for _ in range(self._num_in_flight)]
        try:
            for done in asyncio.as_completed(workers):
                await done
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, lines: Iterator[tuple[int, bytes]]) -> None:
        while True:
            async with self._has_room:
                await self._has_room.wait_for(lambda: self._num_bytes < MAX_BYTES_IN_FLIGHT)
                number, raw = next(lines, (0, b""))
                self._num_bytes += len(raw)
                # There may be room, or the end, for the next one that waits too.
                self._has_room.notify()
            if not number:
                return
            if not self._journal.has(number):
                async with self._turns:
                    await self._finish(parse_line(number, raw))
            async with self._has_room:
                self._num_bytes -= len(raw)
                self._has_room.notify()

    async def _finish(self, line: BatchLine) -> None:
        answer = await self._answer(line)
        record = answer.record(line.custom_id)
        self._journal.append(line.number, record, failed=answer.error is not None)
        self._on_done()
        # A run of bad lines must not keep the others from their outputs.
        await asyncio.sleep(0)

    async def _answer(self, line: BatchLine) -> Answer:
        while True:
            self._num_running += 1
            try:
                answer = await self._endpoints.answer(line)
            finally:
                self._num_running -= 1
            # Refused while nothing else runs, it would be refused for ever.
            is_alone = not self._num_running and self._turns.is_alone
            if answer.status != _TOO_MANY_REQUESTS or is_alone:
                return answer
            await asyncio.sleep(RETRY_INTERVAL)
