"""The routes that watch a server, /health, /ping, /version, /load, /metrics, and load reports."""

from __future__ import annotations

import json

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite import __version__
from vllm_lite.errors import EngineDeadError
from vllm_lite.log import init_logger
from vllm_lite.metrics.exposition import families, merge, render
from vllm_lite.server.body import json_response
from vllm_lite.server.context import ServingContext
from vllm_lite.server.errors import Failure
from vllm_lite.server.process.peers import NoPeers

logger = init_logger(__name__)

# The header of an ORCA load report (Open Request Cost Aggregation, xds.data.orca.v3).
ASKED_BY = "endpoint-load-metrics-format"
HEADER = "endpoint-load-metrics"
_METRICS = ("kv_cache_usage_perc", "num_requests_waiting")


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
        if isinstance(context.peers, NoPeers):
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
