"""/v1/files and /v1/batches: uploaded rows, answered offline.

Accepts, describes and deletes files, and accepts, describes and cancels batches; the runner
reads the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Message

from vllm_lite.errors import RequestError
from vllm_lite.server.body import json_response, parse, read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.errors import BodyTooLargeError
from vllm_lite.server.generation import current_origin
from vllm_lite.server.openai.batches.endpoints import batch_services
from vllm_lite.server.openai.batches.store import (
    COMPLETION_WINDOW,
    ENDED,
    MAX_EXPIRY,
    MIN_EXPIRY,
    BatchRecord,
    BatchStore,
    FileRecord,
    new_id,
)
from vllm_lite.server.openai.pages import page_of

MAX_FILENAME = 255
_MAX_LISTED = 10_000
# The size of a form without its file.
_MAX_FIELDS = 16
_MAX_FIELD_BYTES = 1 << 12
_FORM_BYTES = 1 << 16
MAX_METADATA, _MAX_KEY, _MAX_VALUE = 16, 64, 512


class ExpiresAfter(BaseModel):
    """How long something is kept."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRY, le=MAX_EXPIRY)


class FileForm(BaseModel):
    """The form of an upload, but for its file."""

    purpose: Literal["batch"] = Field(description="What the file is for: rows of a batch.")
    expires_after: ExpiresAfter | None = Field(
        None, description="How long it is kept; 30 days unless given."
    )


class FileUpload(FileForm):
    """The whole form, for the OpenAPI document."""

    file: Annotated[str, Field(json_schema_extra={"format": "binary"})] = Field(
        description="A JSON object a line: `custom_id`, `method`, `url` and `body`."
    )


class FilesService:
    def __init__(self, store: BatchStore) -> None:
        self._store = store

    async def create(self, request: Request) -> Response:
        """Upload a file."""
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise RequestError("Send the file as a form (Content-Type: multipart/form-data)")
        room = await asyncio.to_thread(self._store.room)
        bounded = _Bounded(request, room)
        try:
            form = await bounded.form(
                max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES
            )
        except HTTPException as error:
            raise RequestError(f"The form cannot be read: {error.detail}") from None
        try:
            return json_response((await asyncio.to_thread(self._keep, form, room)).shown())
        finally:
            await form.close()

    async def list(self, request: Request) -> Response:
        """List the files of this key, a page at a time."""
        query = request.query_params
        found = await asyncio.to_thread(self._store.files, current_origin().tenant)
        if "purpose" in query:
            found = [one for one in found if one.purpose == query["purpose"]]
        listed = [one.shown() for one in found]
        return json_response(page_of(listed, query, most=_MAX_LISTED, default=_MAX_LISTED))

    async def retrieve(self, request: Request) -> Response:
        """Describe a file."""
        return json_response(self._find(request).shown())

    async def content(self, request: Request) -> Response:
        """Give what a file holds."""
        record = self._find(request)
        return FileResponse(
            self._store.content(record),
            media_type="application/octet-stream",
            filename=record.filename,
        )

    async def delete(self, request: Request) -> Response:
        """Delete a file; a batch that has begun goes on."""
        record = self._find(request)
        self._store.remove_file(record)
        return json_response({"id": record.id, "object": "file", "deleted": True})

    def _find(self, request: Request) -> FileRecord:
        return self._store.file(request.path_params["file_id"], current_origin().tenant)

    def _keep(self, form: FormData, room: int) -> FileRecord:
        upload = form.get("file")
        if not isinstance(upload, UploadFile):
            raise RequestError.about("file", "is missing: send the rows as a file")
        name = upload.filename or "file"
        if len(name) > MAX_FILENAME or not name.isprintable():
            raise RequestError(
                f"The file's name must be at most {MAX_FILENAME} printable characters", "file"
            )
        size = upload.size or 0
        if not size:
            raise RequestError("The file is empty", "file")
        if size > room:
            raise _too_large(room)
        asked = parse(FileForm, _fields(form), frozenset({"file"}))
        now = time.time()
        keep = asked.expires_after.seconds if asked.expires_after else MAX_EXPIRY
        record = FileRecord(
            id=new_id("file-"),
            owner=current_origin().tenant,
            filename=name,
            purpose=asked.purpose,
            bytes=size,
            created=now,
            expires_at=int(now) + keep,
        )
        return self._store.add_file(record, iter(partial(upload.file.read, 1 << 20), b""))


class _Bounded(Request):
    """A request whose body ends in an error past `room` bytes of a file."""

    def __init__(self, request: Request, room: int) -> None:
        super().__init__(request.scope, self._receive_some)
        self._whole = request
        self._left = room + _FORM_BYTES
        self._room = room

    async def _receive_some(self) -> Message:
        message = await self._whole.receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise _too_large(self._room)
        return message


def _too_large(room: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The file is larger than the {room} bytes that can be stored", "file")


def _fields(form: FormData) -> dict[str, object]:
    """The form's texts; `a[b]` is the key b of the object a."""
    found: dict[str, Any] = {}
    for name, value in form.items():
        outer, bracket, inner = name.partition("[")
        if bracket and isinstance(found.setdefault(outer, {}), dict):
            found[outer][inner.removesuffix("]")] = value
        elif not bracket:
            found[outer] = value
    return found


class BatchRequest(BaseModel):
    """The body of POST /v1/batches."""

    input_file_id: str = Field(description="A file that was uploaded with the purpose `batch`.")
    endpoint: str = Field(description="The route that every row of the file names.")
    completion_window: Literal["24h"] = Field(
        description="How long the batch may take; what is not answered then expires."
    )
    metadata: dict[str, str] | None = Field(None, description="Up to 16 texts to find it by.")
    output_expires_after: ExpiresAfter | None = Field(
        None, description="How long its results are kept; 30 days unless given."
    )

    def check(self, endpoints: Iterable[str]) -> None:
        """Raise RequestError for what the types let through; rows may name `endpoints`."""
        if self.endpoint not in endpoints:
            raise RequestError.about(
                "endpoint", f"must be one of {', '.join(endpoints)}, not {self.endpoint!r:.200}"
            )
        pairs = (self.metadata or {}).items()
        if len(pairs) > MAX_METADATA or any(
            len(key) > _MAX_KEY or len(value) > _MAX_VALUE for key, value in pairs
        ):
            raise RequestError.about(
                "metadata",
                f"must have at most {MAX_METADATA} entries, with keys of at most {_MAX_KEY} and "
                f"values of at most {_MAX_VALUE} characters",
            )


class BatchesService:
    def __init__(self, context: ServingContext, store: BatchStore) -> None:
        self._context = context
        self._store = store
        self._endpoints = list(batch_services(context))

    async def create(self, request: Request) -> Response:
        """Create a batch from an uploaded file."""
        owner = current_origin().tenant
        body = parse(BatchRequest, await read_json(request))
        body.check(self._endpoints)
        self._context.generations.check_open()
        source = self._store.file(body.input_file_id, owner, "input_file_id")
        if source.purpose != "batch":
            raise RequestError(
                f"The file's purpose is {source.purpose}; upload rows with the purpose batch",
                "input_file_id",
            )
        now = time.time()
        keep = body.output_expires_after
        record = BatchRecord(
            id=new_id("batch_"),
            owner=owner,
            endpoint=body.endpoint,
            input_file_id=source.id,
            created=now,
            expires_at=int(now) + COMPLETION_WINDOW,
            keep=keep.seconds if keep else MAX_EXPIRY,
            metadata=body.metadata,
        )
        await asyncio.to_thread(self._store.add_batch, record, source)
        return json_response(record.shown())

    async def list(self, request: Request) -> Response:
        """List the batches of this key, the newest first, a page at a time."""
        found = await asyncio.to_thread(self._store.batches, current_origin().tenant)
        return json_response(page_of([one.shown() for one in found], request.query_params))

    async def retrieve(self, request: Request) -> Response:
        """Describe a batch: its progress, and the files of its results once it has ended."""
        return json_response(self._find(request).shown())

    async def cancel(self, request: Request) -> Response:
        """End a batch; rows that are done keep their results."""
        record = self._find(request)
        if record.status in ENDED:
            raise RequestError(f"The batch is {record.status} already", "batch_id")
        self._store.ask_to_cancel(record)
        return json_response(self._find(request).shown())

    def _find(self, request: Request) -> BatchRecord:
        return self._store.batch(request.path_params["batch_id"], current_origin().tenant)
