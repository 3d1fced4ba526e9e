"""ObservabilityConfig: what the engine tells of itself."""

from __future__ import annotations

from typing import Literal

from vllm_lite.config.option import config, option

_NO_SPANS = "leave it out: --otlp-traces-endpoint sends spans of requests, not of the engine"
_ONE_ENGINE = "leave it out: there is one engine, with one line"


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
        remedy="leave it out: there is no GPU backend yet",
    )
    enable_mfu_metrics: bool = option(
        False,
        "Estimate the use of computing power and bandwidth.",
        level="absent",
        remedy="leave it out: use `vllm-lite bench`",
    )
