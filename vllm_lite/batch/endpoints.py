"""A line's request through the service that a server would give it to, and its record.

The services see an HTTP request; nothing listens anywhere. Knows no file.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from vllm_lite.batch.lines import BatchLine
from vllm_lite.errors import EngineDeadError
from vllm_lite.server.context import ServingContext
from vllm_lite.server.errors import failure_of
from vllm_lite.server.openai.batches.service import BATCH_ENDPOINTS
from vllm_lite.server.openai.chat_service import ChatService
from vllm_lite.server.openai.completion_service import CompletionService

Headers = tuple[tuple[bytes, bytes], ...]

_HEADERS = ((b"content-type", b"application/json"),)
# What a batch may ask of a model of another kind.
_OF_OTHER_MODELS = ("/v1/embeddings", "/v1/audio/transcriptions", "/v1/audio/translations")
_OF_OTHER_MODELS_ENDINGS = ("/score", "/rerank")


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
        """The output's line, without its line break."""
        body = None if self.body is None else msgspec.Raw(self.body)
        response = _Response(self.status, f"vllm-batch-{uuid.uuid4().hex}", body)
        record = _Record(f"vllm-{uuid.uuid4().hex}", custom_id, response, self.error)
        return msgspec.json.encode(record)


class Endpoints:
    """The urls that a line may name, over one engine."""

    def __init__(self, context: ServingContext, headers: Headers = ()) -> None:
        """Every line's request comes with `headers`."""
        found = (ChatService(context).create, CompletionService(context).create)
        self._services: dict[str, Callable[[Request], Awaitable[Response]]] = dict(
            zip(BATCH_ENDPOINTS, found, strict=True)
        )
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
        return Answer(response.status_code, body=bytes(response.body))

    def _refusal(self, url: str) -> str:
        if url in _OF_OTHER_MODELS or url.endswith(_OF_OTHER_MODELS_ENDINGS):
            return f"Model does not support endpoint: {url:.200}"
        known = ", ".join((*self._services, *_OF_OTHER_MODELS, *_OF_OTHER_MODELS_ENDINGS))
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
