"""vLLM's metrics by name, type, label and bucket, in a registry of their own.

Fed with plain numbers once a step, by additions and bisections; the library's objects are
made only when somebody scrapes. Knows no request.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.metrics.stats import FinishedRequest, SchedulerStats, StepStats

# fmt: off
FIRST_TOKEN = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40,
               80, 160, 640, 2560)
INTER_TOKEN = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920,
           7680)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
# fmt: on
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")
ENGINE = "0"
# Caches that this engine does not have; dashboards ask for them all the same.
_OTHER_CACHES = ("host", "p2p", "disk", "external_unspecified")
_ELSEWHERE = {
    "external_prefix_cache_queries": "Tokens looked up in other machines' caches.",
    "external_prefix_cache_hits": "Tokens found there.",
    "mm_cache_queries": "Items looked up in the cache of processed media.",
    "mm_cache_hits": "Items found there.",
}
# Histograms with their help, by the family of their bounds, by vLLM's names.
_HISTOGRAMS = {
    "time_to_first_token": {
        "time_to_first_token_seconds": "Seconds from arrival to the first token."
    },
    "inter_token_latency": {
        "inter_token_latency_seconds": "Seconds between two tokens of a request.",
        "request_time_per_output_token_seconds": "Mean seconds per token after the first.",
    },
    "request_latency": {
        "e2e_request_latency_seconds": "Seconds from arrival to the end.",
        "request_queue_time_seconds": "Seconds before a request first ran.",
        "request_inference_time_seconds": "Seconds from a request's first run to its last token.",
        "request_prefill_time_seconds": "Seconds from a request's first run to its first token.",
        "request_decode_time_seconds": "Seconds from the first token to the last.",
    },
    "request_tokens": {
        "request_prompt_tokens": "Prompt tokens of finished requests.",
        "request_generation_tokens": "Generated tokens of finished requests.",
        "request_max_num_generation_tokens": "The longest choice of finished requests.",
        "request_params_max_tokens": "max_tokens of finished requests.",
        "request_prefill_kv_computed_tokens": "Prompt tokens computed, without cached ones.",
    },
    "request_params_n": {"request_params_n": "n of finished requests."},
    "request_num_preemptions": {"request_num_preemptions": "Preemptions of finished requests."},
    "iteration_tokens": {"iteration_tokens_total": "Tokens of a step."},
}


# Name, help, and a number, or one for each value of the label named last.
Row = tuple[str, str, float | dict[str, int], str | None]


class Histogram:
    """Counts of observations by upper bound; the bounds end in infinity."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Sequence[float]) -> None:
        for value in values:
            self.observe(value)

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), the last bound being +Inf."""
        names = [str(float(bound)) for bound in self._bounds] + ["+Inf"]
        cumulative, result = 0, []
        for name, count in zip(names, self._counts, strict=True):
            cumulative += count
            result.append((name, float(cumulative)))
        return result


def one_two_five(limit: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... up to `limit`."""
    bounds, power = [], 1
    while power <= limit:
        bounds += [float(m * power) for m in (1, 2, 5) if m * power <= limit]
        power *= 10
    return bounds


class EngineCollector(Collector):
    """All metrics of one engine."""

    def __init__(self, config: VllmConfig, num_blocks: int) -> None:
        names = config.model.served_model_name or [config.model.model]
        self.registry = CollectorRegistry(auto_describe=False)
        self._labels = {"model_name": names[0], "engine": ENGINE}
        self._created = time.time()
        self._cache_info = _cache_info(config, num_blocks)
        self._scheduler = SchedulerStats()
        self._prompt_tokens = self._cached_tokens = self._generation_tokens = 0
        self._finished = dict.fromkeys(FINISH_REASONS, 0)
        self._rejected = dict.fromkeys(REJECTIONS, 0)
        self._histograms = {name: Histogram(bounds) for name, bounds in _bounds(config).items()}
        self.registry.register(self)

    def record(self, scheduler: SchedulerStats | None, step: StepStats) -> None:
        if scheduler is not None:
            self._scheduler = scheduler
        self._prompt_tokens += step.num_prompt_tokens
        self._cached_tokens += step.num_cached_tokens
        self._generation_tokens += step.num_generation_tokens
        histograms = self._histograms
        num_tokens = step.num_prompt_tokens + step.num_generation_tokens
        if num_tokens:
            histograms["iteration_tokens_total"].observe(num_tokens)
        histograms["time_to_first_token_seconds"].observe_all(step.first_token_latencies)
        histograms["inter_token_latency_seconds"].observe_all(step.inter_token_latencies)
        for request in step.finished:
            self._record_finished(request)
        for group in step.finished_groups:
            histograms["request_params_n"].observe(group.n)
            histograms["request_max_num_generation_tokens"].observe(group.max_num_generation_tokens)

    def count_rejection(self, reason: str) -> None:
        self._rejected[reason] += 1

    def collect(self) -> Iterator[Metric]:
        for row in self._gauges():
            yield self._family(GaugeMetricFamily, *row)
        labels = {"engine": ENGINE, **self._cache_info}
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "The cache's configuration.", labels=list(labels)
        )
        info.add_metric(list(labels.values()), 1)
        yield info
        for row in self._counters():
            yield self._family(CounterMetricFamily, *row, created=self._created)
        rejected = CounterMetricFamily(
            "vllm:admission_rejections",
            "Requests refused because too much waits.",
            labels=["model_name", "reason"],
        )
        for reason, count in self._rejected.items():
            rejected.add_metric([self._labels["model_name"], reason], count, created=self._created)
        yield rejected
        for name, text in (pair for one in _HISTOGRAMS.values() for pair in one.items()):
            histogram = self._histograms[name]
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
            values = list(self._labels.values())
            family.add_metric(values, histogram.buckets(), histogram.total)
            family.add_sample(f"vllm:{name}_created", self._labels, self._created)
            yield family

    def _family(
        self, kind: type[Any], name: str, text: str, value: Any, label: str | None, **extra: float
    ) -> Metric:
        """A family with a sample, or one for each value of `label`."""
        names, own = list(self._labels), list(self._labels.values())
        family = kind(f"vllm:{name}", text, labels=[*names, label] if label else names)
        for key, number in value.items() if label else [(None, value)]:
            family.add_metric([*own, key] if label else own, number, **extra)
        return family  # type: ignore[no-any-return]

    def _record_finished(self, request: FinishedRequest) -> None:
        self._finished[request.finish_reason] += 1
        computed = request.num_prompt_tokens - request.num_cached_tokens
        observed: dict[str, float | None] = {
            "e2e_request_latency_seconds": request.e2e_latency,
            "request_queue_time_seconds": request.queue_time,
            "request_prefill_time_seconds": request.prefill_time,
            "request_decode_time_seconds": request.decode_time,
            "request_prompt_tokens": request.num_prompt_tokens,
            "request_generation_tokens": request.num_generation_tokens,
            "request_params_max_tokens": request.max_tokens,
            "request_prefill_kv_computed_tokens": computed,
            "request_num_preemptions": request.num_preemptions,
        }
        decode, prefill = request.decode_time, request.prefill_time
        if prefill is not None:
            # A pooled prompt is followed by nothing.
            observed["request_inference_time_seconds"] = prefill + (decode or 0.0)
        if decode is not None and request.num_generation_tokens > 1:
            per_token = decode / (request.num_generation_tokens - 1)
            observed["request_time_per_output_token_seconds"] = per_token
        for name, value in observed.items():
            if value is not None:
                self._histograms[name].observe(value)

    def _gauges(self) -> Iterator[Row]:
        now = self._scheduler
        yield "num_requests_running", "Requests in the step.", now.num_running, None
        yield "num_requests_waiting", "Requests that wait.", now.num_waiting, None
        waiting = {"capacity": now.num_waiting, "deferred": 0}
        text = "Requests that wait, by what for."
        yield "num_requests_waiting_by_reason", text, waiting, "reason"
        text = "Share of the KV cache in use, 0 to 1."
        yield "kv_cache_usage_perc", text, now.kv_cache_usage, None
        states = {"awake": 1 - now.is_asleep, "weights_offloaded": +now.is_asleep, "discard_all": 0}
        yield "engine_sleep_state", "1 for the state the engine is in.", states, "sleep_state"

    def _counters(self) -> Iterator[Row]:
        now, cached = self._scheduler, self._cached_tokens
        text = "Tokens looked up in the cache."
        yield "prefix_cache_queries", text, now.prefix_cache_queries, None
        yield "prefix_cache_hits", "Tokens found there.", now.prefix_cache_hits, None
        for name, text in _ELSEWHERE.items():
            yield name, text, 0, None
        yield "num_preemptions", "Preemptions.", now.num_preemptions, None
        if (drafted := now.spec_decoding) is not None:
            text = "Times that a request had drafts."
            yield "spec_decode_num_drafts", text, drafted.num_drafts, None
            yield "spec_decode_num_draft_tokens", "Drafts.", drafted.num_draft_tokens, None
            name, text = "spec_decode_num_accepted_tokens", "Drafts that came true"
            yield name, f"{text}.", drafted.num_accepted_tokens, None
            places = {str(at): n for at, n in enumerate(drafted.num_accepted_tokens_per_pos)}
            yield f"{name}_per_pos", f"{text}, by their place.", places, "position"
        yield "prompt_tokens", "Prompt tokens.", self._prompt_tokens, None
        yield "prompt_tokens_cached", "Prompt tokens from the cache.", cached, None
        yield "generation_tokens", "Generated tokens.", self._generation_tokens, None
        computed = self._prompt_tokens - cached
        sources = {"local_compute": computed, "local_cache_hit": cached, "external_kv_transfer": 0}
        text = "Prompt tokens, by where their keys and values came from."
        yield "prompt_tokens_by_source", text, sources, "source"
        caches = {"device": cached, **dict.fromkeys(_OTHER_CACHES, 0)}
        text = "Cached prompt tokens, by where the cache was."
        yield "prompt_tokens_cached_by_source", text, caches, "source"
        yield "request_success", "Finished requests.", self._finished, "finished_reason"


def _bounds(config: VllmConfig) -> dict[str, Sequence[float]]:
    """The bounds of every histogram: its family's, or what the user put in their place."""
    families: dict[str, Sequence[float]] = {
        "time_to_first_token": FIRST_TOKEN,
        "inter_token_latency": INTER_TOKEN,
        "request_latency": LATENCY,
        "request_tokens": one_two_five(config.model.max_model_len),
        "request_params_n": CHOICES,
        "request_num_preemptions": PREEMPTIONS,
        "iteration_tokens": STEP_TOKENS,
        **(config.observability.custom_histogram_buckets or {}),
    }
    return {name: families[family] for family, names in _HISTOGRAMS.items() for name in names}


def _cache_info(config: VllmConfig, num_blocks: int) -> dict[str, str]:
    info = {field.name: str(getattr(config.cache, field.name)) for field in fields(config.cache)}
    # vLLM's name of the option's field.
    return {**info, "cache_dtype": config.cache.kv_cache_dtype, "num_gpu_blocks": str(num_blocks)}
