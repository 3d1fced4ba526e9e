"""Metrics of the HTTP server: requests by route, and results of tool parsers.

The names, types, labels and buckets are those of vLLM's dashboards. Knows no HTTP library.
Invariant: labels are routes, methods and status classes that exist, never what a client sent.
"""

from __future__ import annotations

from itertools import product
from typing import Literal, NamedTuple, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    Summary,
)

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
_MODES, _OUTCOMES = ("streaming", "non_streaming"), ("tool_call", "no_tool_call")


class _Counters(NamedTuple):
    """The counters of one route with one kind of answer."""

    requests: Counter
    sizes: list[Summary]
    durations: Histogram


class FrontEndMetrics:
    """The counters of one server process, in a registry with Python's and the process's own."""

    def __init__(self, model_name: str, *, has_tool_parser: bool = False) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "http_requests",
            "HTTP requests answered.",
            ("handler", "status", "method"),
            registry=registry,
        )
        sizes = (
            ("http_request_size_bytes", "Bytes of requests."),
            ("http_response_size_bytes", "Bytes of responses, but streams."),
        )
        self._sizes = [Summary(*one, ("handler",), registry=registry) for one in sizes]
        name = "http_request_duration_highr_seconds"
        self._duration = Histogram(
            name, "Seconds of all requests.", registry=registry, buckets=DURATION
        )
        self._durations = Histogram(
            "http_request_duration_seconds",
            "Seconds of requests by route.",
            ("handler", "method"),
            registry=registry,
            buckets=COARSE_DURATION,
        )
        # By route, the status's first digit and method.
        self._counters: dict[tuple[str, int, str], _Counters] = {}
        self._tool_texts: Counter | None = None
        self._model_name = model_name
        if has_tool_parser:
            self._tool_texts = Counter(
                "vllm:tool_call_parser_invocations",
                "Texts that the tool parser read, by whether they held calls.",
                ("model_name", "mode", "outcome", "request_type"),
                registry=registry,
            )
            for mode, outcome, kind in product(_MODES, _OUTCOMES, get_args(RequestType)):
                self._tool_texts.labels(model_name, mode, outcome, kind)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

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
        key = (route, status // 100, known)
        if (counters := self._counters.get(key)) is None:
            # A look-up by labels takes longer than all additions.
            counters = self._counters[key] = _Counters(
                self._requests.labels(route, f"{status // 100}xx", known),
                [summary.labels(route) for summary in self._sizes],
                self._durations.labels(route, known),
            )
        counters.requests.inc()
        for summary, size in zip(counters.sizes, sizes, strict=True):
            summary.observe(size)
        self._duration.observe(seconds)
        counters.durations.observe(seconds)

    def count_tool_parsing(
        self, request_type: RequestType, *, is_streaming: bool, found: bool
    ) -> None:
        """Count a text that a tool parser read, and whether it held calls."""
        if self._tool_texts is not None:
            mode, outcome = _MODES[not is_streaming], _OUTCOMES[not found]
            self._tool_texts.labels(self._model_name, mode, outcome, request_type).inc()
