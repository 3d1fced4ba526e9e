"""/v1/batches: rows of an uploaded file, answered offline.

Accepts, describes and cancels batches; the runner reads the store.
"""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.errors import RequestError
from vllm_lite.server.body import json_response, parse, read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import current_origin
from vllm_lite.server.openai.batches.files_service import ExpiresAfter
from vllm_lite.server.openai.batches.store import (
    COMPLETION_WINDOW,
    ENDED,
    MAX_EXPIRY,
    BatchRecord,
    BatchStore,
    new_id,
)
from vllm_lite.server.openai.pages import page_of

# What a row may ask for.
BATCH_ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
MAX_METADATA, _MAX_KEY, _MAX_VALUE = 16, 64, 512


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

    def check(self) -> None:
        """Raise RequestError for what the types let through."""
        if self.endpoint not in BATCH_ENDPOINTS:
            raise RequestError(
                f"endpoint must be one of {', '.join(BATCH_ENDPOINTS)}, not {self.endpoint!r:.200}",
                "endpoint",
            )
        pairs = (self.metadata or {}).items()
        if len(pairs) > MAX_METADATA or any(
            len(key) > _MAX_KEY or len(value) > _MAX_VALUE for key, value in pairs
        ):
            raise RequestError(
                f"metadata must have at most {MAX_METADATA} entries, with keys of at most "
                f"{_MAX_KEY} and values of at most {_MAX_VALUE} characters",
                "metadata",
            )


class BatchesService:
    """The batches of one storage directory."""

    def __init__(self, context: ServingContext, store: BatchStore) -> None:
        self._context = context
        self._store = store

    async def create(self, request: Request) -> Response:
        """Create a batch from an uploaded file."""
        owner = current_origin().tenant
        body = parse(BatchRequest, await read_json(request))
        body.check()
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
