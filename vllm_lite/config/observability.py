"""ObservabilityConfig: what the engine tells of itself."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any, Literal

from vllm_lite.config.option import config, option
from vllm_lite.errors import UsageError

_NO_SPANS = "leave it out: --otlp-traces-endpoint sends spans of requests, not of the engine"
_ONE_ENGINE = "leave it out: there is one engine, with one line"
_NOTHING_COMPILED = "no kernel is compiled while serving"
HISTOGRAM_FAMILIES = (
    *("request_latency", "time_to_first_token", "inter_token_latency", "iteration_tokens"),
    *("request_params_n", "request_num_preemptions", "request_tokens"),
)


@config
class ObservabilityConfig:
    """Statistics of the engine."""

    disable_log_stats: bool = option(
        False,
        "Collect no engine statistics and print no throughput lines.",
        auto="false for a server, true offline",
        group="options",
    )
    aggregate_engine_logging: bool = option(
        False,
        "Print one line of statistics for all engines.",
        group="options",
        level="absent",
        remedy=_ONE_ENGINE,
    )
    show_hidden_metrics_for_version: str | None = option(
        None,
        "Show metrics that were hidden since a version.",
        level="absent",
        remedy="leave it out: no metric is hidden",
    )
    otlp_traces_endpoint: str | None = option(
        None,
        "Where a span for each request is sent, over OpenTelemetry's protocol; needs the extra "
        "vllm-lite[otlp].",
    )
    collect_detailed_traces: (
        list[
            Literal[
                "model",
                "worker",
                "all",
                "model,worker",
                "model,all",
                "worker,model",
                "worker,all",
                "all,model",
                "all,worker",
            ]
        ]
        | None
    ) = option(
        None,
        "Parts of the engine to trace.",
        level="absent",
        remedy=_NO_SPANS,
    )
    kv_cache_metrics: bool = option(
        False,
        "Measure how long cache blocks live and are reused.",
        level="absent",
        remedy="leave it out; /metrics has the cache's use and hits",
    )
    kv_cache_metrics_sample: float = option(
        0.01,
        "Share of blocks to measure.",
        gt=0,
        le=1,
        level="absent",
        remedy="leave it out; /metrics has the cache's use and hits",
    )
    cudagraph_metrics: bool = option(
        False,
        "Measure how steps fit captured graphs.",
        level="absent",
        remedy="leave it out: no graphs are captured here",
    )
    enable_layerwise_nvtx_tracing: bool = option(
        False,
        "Mark each layer for NVIDIA's profilers.",
        level="absent",
        remedy="leave it out and use nsys from outside: steps are not marked",
    )
    enable_mfu_metrics: bool = option(
        False,
        "Estimate the use of computing power and bandwidth.",
        level="absent",
        remedy="leave it out: use `vllm-lite bench`",
    )
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] = option(
        "none",
        "Report a request's own drafts in its reply.",
        level="idle",
        why="drafts are counted for the engine as a whole, in its metrics and its log",
    )
    custom_histogram_buckets: dict[str, Any] | None = option(
        None,
        "JSON: bounds of the histograms of a family, rising: request_latency, "
        "time_to_first_token, inter_token_latency, iteration_tokens, request_params_n, "
        "request_num_preemptions, request_tokens.",
    )
    enable_logging_iteration_details: bool = option(
        False, "Log what each step held and how long it took."
    )
    jit_monitor_mode: Literal["error", "warn"] = option(
        "warn", "What a kernel compiled while serving causes.", level="idle", why=_NOTHING_COMPILED
    )
    jit_monitor_verbose: bool = option(
        False, "Log every kernel compiled while serving.", level="idle", why=_NOTHING_COMPILED
    )

    def __post_init__(self) -> None:
        for family, bounds in (self.custom_histogram_buckets or {}).items():
            _check_bounds(family, bounds)


def _check_bounds(family: str, bounds: object) -> None:
    flag = f"--custom-histogram-buckets: {family!r}"
    if family not in HISTOGRAM_FAMILIES:
        raise UsageError(f"{flag} is no family; choose from {', '.join(HISTOGRAM_FAMILIES)}")
    if not isinstance(bounds, list) or not bounds:
        raise UsageError(f"{flag} needs a list of bounds")
    for bound in bounds:
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < inf:
            raise UsageError(f"{flag}: {bound!r} is not a number above 0")
    if any(low >= high for low, high in pairwise(bounds)):
        raise UsageError(f"{flag}: each bound must be greater than the one before")
