"""The routes that watch a server: /health, /ping, /version, /load, /metrics, load reports, and
the live events of the page.

The engine is asked for live events only while somebody watches, twice a second for all of them.
Invariant: with keys, a watcher is told of the requests of its own key; of others it sees what
they hold together.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite import __version__
from vllm_lite.errors import EngineDeadError
from vllm_lite.log import init_logger
from vllm_lite.metrics.exposition import families, merge, render
from vllm_lite.metrics.stats import EngineSnapshot
from vllm_lite.server.body import json_response
from vllm_lite.server.context import ServingContext
from vllm_lite.server.errors import Failure
from vllm_lite.server.generation import current_origin
from vllm_lite.server.replies import EventStream, sse

logger = init_logger(__name__)

# The header of an ORCA load report (Open Request Cost Aggregation, xds.data.orca.v3).
ASKED_BY = "endpoint-load-metrics-format"
HEADER = "endpoint-load-metrics"
_METRICS = ("kv_cache_usage_perc", "num_requests_waiting")
# Seconds between two events.
PERIOD = 0.5
_OTHERS = -3


class HealthService:
    """Whether the engine lives, and how busy it is."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def health(self, request: Request) -> Response:
        """Answer 200 while the engine lives, else 503."""
        client = self._context.client
        try:
            if client.errored:
                raise client.dead_error
            await client.check_health()
        except EngineDeadError:
            message = "The engine has stopped; the server is about to exit"
            return Failure(503, "ServiceUnavailableError", message).response()
        return Response()

    async def version(self, request: Request) -> Response:
        """Report the version of the server."""
        return json_response({"version": __version__})

    async def load(self, request: Request) -> Response:
        """Report how many requests run; 0 without --enable-server-load-tracking."""
        if not self._context.server_config.enable_server_load_tracking:
            return json_response({"server_load": 0})
        others = await self._context.peers.ask()
        running = len(self._context.generations) + sum(one.num_running for one in others)
        return json_response({"server_load": running})

    async def metrics(self, request: Request) -> Response:
        """Report the metrics of engine and server in Prometheus' text format."""
        context = self._context
        if context.peers.is_alone:
            collected = families([context.client.registry, context.metrics.registry])
        else:
            snapshots = [context.snapshot(), *await context.peers.ask()]
            snapshots.sort(key=lambda one: one.index)
            collected = merge([one.families for one in snapshots])
        text = render(collected)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def add_load_report(
    request: Request, response: Response, registry: CollectorRegistry | None
) -> None:
    """Put the report on `response` where `request` names a format that there is: text or json."""
    form = request.headers.get(ASKED_BY, "").lower()
    if form not in ("text", "json") or registry is None:
        return
    found = {
        name: float(sample.value)
        for family in registry.collect()
        for sample in family.samples
        if (name := sample.name.removeprefix("vllm:")) in _METRICS
    }
    if form == "json":
        response.headers[HEADER] = "JSON " + json.dumps({"named_metrics": found})
    else:
        listed = (f"named_metrics.{name}={value}" for name, value in found.items())
        response.headers[HEADER] = "TEXT " + ", ".join(listed)


class LiveService:
    """Streams of what one engine does."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context
        self._asking = asyncio.Lock()
        self._taken = 0.0
        self._snapshot: EngineSnapshot | None = None

    async def stream(self, request: Request) -> Response:
        """Stream what the engine does, twice a second, for as long as the reader stays."""
        return EventStream(self._events(current_origin().tenant), None, "live")

    async def _events(self, tenant: str) -> AsyncIterator[bytes]:
        generations = self._context.generations
        while True:
            generations.check_open()
            yield sse(msgspec.json.encode(_shown(await self._latest(), tenant)))
            await asyncio.sleep(PERIOD)

    async def _latest(self) -> EngineSnapshot:
        """The snapshot that all watchers share for a while."""
        async with self._asking:
            if self._snapshot is None or time.monotonic() - self._taken >= PERIOD:
                self._snapshot = await self._context.client.snapshot()
                self._taken = time.monotonic()
            return self._snapshot


def _shown(snapshot: EngineSnapshot, tenant: str) -> dict[str, Any]:
    """The part of a snapshot that a tenant may see, as plain data; without keys, all of it."""
    own = [i for i, one in enumerate(snapshot.requests) if not tenant or one.tenant == tenant]
    place = {index: at for at, index in enumerate(own)}
    shown: dict[str, Any] = msgspec.to_builtins(snapshot)
    shown["requests"] = [shown["requests"][index] for index in own]
    for one in shown["requests"]:
        del one["tenant"]
    shown["blocks"] = [b if b < 0 else place.get(b, _OTHERS) for b in snapshot.blocks]
    return shown
