"""The response header by which a balancer hears of the load: an ORCA report, where it asks for one.

Knows no route. Source of the format: Open Request Cost Aggregation, xds.data.orca.v3.
"""

from __future__ import annotations

import json

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

ASKED_BY = "endpoint-load-metrics-format"
HEADER = "endpoint-load-metrics"
_METRICS = ("kv_cache_usage_perc", "num_requests_waiting")


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
