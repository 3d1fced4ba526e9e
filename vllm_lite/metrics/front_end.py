"""Metrics of the HTTP server: requests by route, and results of tool parsers.

The names, types, labels and buckets are those of vLLM's dashboards. Knows no HTTP library.
Invariant: labels are routes, methods and status classes that exist, never what a client sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product
from typing import Literal

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.metrics_core import SummaryMetricFamily
from prometheus_client.registry import Collector

from vllm_lite.metrics.prometheus import Histogram

# fmt: off
DURATION = (.01, .025, .05, .075, .1, .25, .5, .75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30,
            60)
COARSE_DURATION = (.1, .5, 1)
# fmt: on
METHODS = frozenset(
    ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
)
# Asked for all the time by machines; they would drown the rest.
UNCOUNTED = frozenset(("/metrics", "/health", "/load", "/ping", "/version", "/server_info"))
RequestType = Literal["chat_completions", "responses", "other"]


class _Sizes:
    """How many messages a route had, and of how many bytes."""

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count = self.total = 0

    def add(self, size: int) -> None:
        self.count += 1
        self.total += size


class FrontEndMetrics(Collector):
    """The counters of one server process, in a registry with Python's and the process's own."""

    def __init__(self, model_name: str, *, has_tool_parser: bool = False) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._created = time.time()
        # By (handler, status class, method); by handler; by (handler, method).
        self._requests: dict[tuple[str, str, str], int] = {}
        self._request_sizes: dict[str, _Sizes] = {}
        self._response_sizes: dict[str, _Sizes] = {}
        self._durations: dict[tuple[str, str], Histogram] = {}
        self._duration = Histogram(DURATION)
        # By (mode, outcome, request type); empty without a tool parser.
        self._tool_texts: dict[tuple[str, str, str], int] = {}
        self._model_name = model_name
        if has_tool_parser:
            modes, outcomes = ("streaming", "non_streaming"), ("tool_call", "no_tool_call")
            kinds = ("chat_completions", "responses", "other")
            self._tool_texts = dict.fromkeys(product(modes, outcomes, kinds), 0)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def count_request(
        self,
        handler: str | None,
        method: str,
        status: int,
        *,
        sizes: tuple[int, int],
        seconds: float,
    ) -> None:
        """Count one answered request; `handler` is its route, None where none matched.

        `sizes` are the bytes of request and response where their headers tell, else 0.
        """
        route = "none" if handler is None else handler
        if route in UNCOUNTED:
            return
        known = method if method in METHODS else "OTHER"
        key = (route, f"{status // 100}xx", known)
        self._requests[key] = self._requests.get(key, 0) + 1
        self._request_sizes.setdefault(route, _Sizes()).add(sizes[0])
        self._response_sizes.setdefault(route, _Sizes()).add(sizes[1])
        self._duration.observe(seconds)
        durations = self._durations.get((route, known))
        if durations is None:
            durations = self._durations[route, known] = Histogram(COARSE_DURATION)
        durations.observe(seconds)

    def count_tool_parsing(
        self, request_type: RequestType, *, is_streaming: bool, found: bool
    ) -> None:
        """Count a text that a tool parser read, and whether it held calls."""
        mode = "streaming" if is_streaming else "non_streaming"
        outcome = "tool_call" if found else "no_tool_call"
        key = (mode, outcome, request_type)
        if key in self._tool_texts:
            self._tool_texts[key] += 1

    def collect(self) -> Iterator[Metric]:
        """Every metric as the library's family, for one scrape."""
        requests = CounterMetricFamily(
            "http_requests", "HTTP requests answered.", labels=["handler", "status", "method"]
        )
        for key, count in self._requests.items():
            requests.add_metric(key, count, created=self._created)
        yield requests
        for name, text, sizes in (
            ("http_request_size_bytes", "Bytes of requests.", self._request_sizes),
            ("http_response_size_bytes", "Bytes of responses, but streams.", self._response_sizes),
        ):
            summary = SummaryMetricFamily(name, text, labels=["handler"])
            for handler, size in sizes.items():
                summary.add_metric([handler], size.count, size.total)
                summary.add_sample(f"{name}_created", {"handler": handler}, self._created)
            yield summary
        yield from self._duration_families()
        if self._tool_texts:
            yield self._tool_family()

    def _duration_families(self) -> Iterator[Metric]:
        name = "http_request_duration_highr_seconds"
        fine = HistogramMetricFamily(name, "Seconds of all requests.")
        fine.add_metric([], self._duration.buckets(), self._duration.total)
        fine.add_sample(f"{name}_created", {}, self._created)
        yield fine
        name = "http_request_duration_seconds"
        coarse = HistogramMetricFamily(
            name, "Seconds of requests by route.", labels=["handler", "method"]
        )
        for (handler, method), seconds in self._durations.items():
            coarse.add_metric([handler, method], seconds.buckets(), seconds.total)
            labels = {"handler": handler, "method": method}
            coarse.add_sample(f"{name}_created", labels, self._created)
        yield coarse

    def _tool_family(self) -> Metric:
        family = CounterMetricFamily(
            "vllm:tool_call_parser_invocations",
            "Texts that the tool parser read, by whether they held calls.",
            labels=["model_name", "mode", "outcome", "request_type"],
        )
        for key, count in self._tool_texts.items():
            family.add_metric([self._model_name, *key], count, created=self._created)
        return family
