"""ObservabilityConfig: metrics, traces and statistics of the engine."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Literal

from vllm_lite.config.options.option import config, option
from vllm_lite.config.values import Json
from vllm_lite.errors import UsageError

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
    otlp_traces_endpoint: str | None = option(
        None,
        "URL to send a span of each request to, by OpenTelemetry's protocol; needs the extra "
        "vllm-lite[otlp].",
    )
    custom_histogram_buckets: Json | None = option(
        None,
        "JSON: bounds of the histograms of a family, rising: request_latency, "
        "time_to_first_token, inter_token_latency, iteration_tokens, request_params_n, "
        "request_num_preemptions, request_tokens.",
    )
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] = option(
        "none",
        "Count each request's drafts and those that came true, in its reply if it has one choice, "
        "and in LLM's outputs; detailed: also step by step.",
    )
    enable_logging_iteration_details: bool = option(False, "Log the content and time of each step.")

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
