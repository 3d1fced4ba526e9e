"""The metrics have vLLM's names, types, labels and buckets, and count what happened."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.engine.engines import engine_config
from vllm_lite.metrics.engine_metrics import EngineMetrics, NoMetrics, engine_metrics
from vllm_lite.metrics.exposition import Counter, Gauge, read_metrics
from vllm_lite.metrics.exposition import Histogram as HistogramValue
from vllm_lite.metrics.prometheus import EngineCollector, Histogram, one_two_five
from vllm_lite.metrics.stats import (
    FinishedGroup,
    FinishedRequest,
    SchedulerStats,
    SpecDecodingStats,
    StepStats,
)

LABELS = {"model_name": "tiny", "engine": "0"}
HISTOGRAMS = {
    "time_to_first_token_seconds": (0.001, 2560),
    "inter_token_latency_seconds": (0.01, 80),
    "request_time_per_output_token_seconds": (0.01, 80),
    "e2e_request_latency_seconds": (0.3, 7680),
    "request_queue_time_seconds": (0.3, 7680),
    "request_inference_time_seconds": (0.3, 7680),
    "request_prefill_time_seconds": (0.3, 7680),
    "request_decode_time_seconds": (0.3, 7680),
    "request_prompt_tokens": (1, 200),
    "request_generation_tokens": (1, 200),
    "request_max_num_generation_tokens": (1, 200),
    "request_params_max_tokens": (1, 200),
    "request_prefill_kv_computed_tokens": (1, 200),
    "request_params_n": (1, 20),
    "request_num_preemptions": (1, 20),
    "iteration_tokens_total": (1, 16384),
}
COUNTERS = [
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "prompt_tokens_cached",
    "generation_tokens",
    "prompt_tokens_by_source",
    "prompt_tokens_cached_by_source",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "mm_cache_queries",
    "mm_cache_hits",
    "request_success",
    "admission_rejections",
]
GAUGES = [
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "engine_sleep_state",
    "cache_config_info",
]


def finished(**changes: object) -> FinishedRequest:
    values = {
        "finish_reason": "stop",
        "num_prompt_tokens": 10,
        "num_cached_tokens": 8,
        "num_generation_tokens": 5,
        "max_tokens": 16,
        "num_preemptions": 0,
        "e2e_latency": 2.0,
        "queue_time": 0.5,
        "prefill_time": 0.5,
        "decode_time": 1.0,
    }
    return FinishedRequest(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def collector() -> EngineCollector:
    collector = EngineCollector(engine_config(), num_blocks=200)
    scheduler = SchedulerStats(
        num_running=3, num_waiting=2, kv_cache_usage=0.25, prefix_cache_queries=10,
        prefix_cache_hits=8, num_preemptions=1,
    )  # fmt: skip
    step = StepStats(
        num_generation_tokens=4,
        num_prompt_tokens=10,
        num_cached_tokens=8,
        first_token_latencies=[0.03],
        inter_token_latencies=[0.02, 0.02, 0.3],
        finished=[finished()],
        finished_groups=[FinishedGroup(2, 7)],
    )
    collector.record(scheduler, step)
    collector.count_rejection("max_num_queued_reqs")
    return collector


def sample(collector: EngineCollector, name: str, **labels: str) -> float | None:
    return collector.registry.get_sample_value(f"vllm:{name}", {**LABELS, **labels})


def test_names_types_and_buckets_are_vllms(collector: EngineCollector) -> None:
    text = generate_latest(collector.registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name in GAUGES:
        assert families[f"vllm:{name}"].type == "gauge"
    for name in COUNTERS:
        assert families[f"vllm:{name}"].type == "counter"
        assert f"vllm:{name}_created" in families
    for name, (first, last) in HISTOGRAMS.items():
        family = families[f"vllm:{name}"]
        assert family.type == "histogram"
        bounds = [float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket")]
        assert (bounds[0], bounds[-2], bounds[-1]) == (first, last, float("inf"))
        assert bounds == sorted(bounds)
        assert f"vllm:{name}_created" in families


def test_values_are_what_was_recorded(collector: EngineCollector) -> None:
    assert sample(collector, "num_requests_running") == 3
    assert sample(collector, "num_requests_waiting_by_reason", reason="capacity") == 2
    assert sample(collector, "kv_cache_usage_perc") == 0.25
    assert sample(collector, "engine_sleep_state", sleep_state="awake") == 1
    assert sample(collector, "prompt_tokens_total") == 10
    assert sample(collector, "prompt_tokens_by_source_total", source="local_compute") == 2
    assert sample(collector, "generation_tokens_total") == 4
    assert sample(collector, "request_success_total", finished_reason="stop") == 1
    assert sample(collector, "request_success_total", finished_reason="abort") == 0
    assert sample(collector, "inter_token_latency_seconds_count") == 3
    assert sample(collector, "inter_token_latency_seconds_bucket", le="0.025") == 2
    assert sample(collector, "time_to_first_token_seconds_sum") == 0.03
    assert sample(collector, "request_time_per_output_token_seconds_sum") == 0.25
    assert sample(collector, "request_inference_time_seconds_sum") == 1.5
    assert sample(collector, "request_params_n_sum") == 2
    assert sample(collector, "iteration_tokens_total_sum") == 14
    rejected = {"model_name": "tiny", "reason": "max_num_queued_reqs"}
    name = "vllm:admission_rejections_total"
    assert collector.registry.get_sample_value(name, rejected) == 1


def test_counters_survive_a_step_without_scheduler_stats(collector: EngineCollector) -> None:
    collector.record(None, StepStats())
    assert sample(collector, "num_preemptions_total") == 1
    assert sample(collector, "iteration_tokens_total_count") == 1


def test_a_request_that_never_ran_has_no_times(collector: EngineCollector) -> None:
    aborted = finished(
        finish_reason="abort", queue_time=None, prefill_time=None, decode_time=None,
        num_generation_tokens=0,
    )  # fmt: skip
    collector.record(None, StepStats(finished=[aborted]))
    assert sample(collector, "e2e_request_latency_seconds_count") == 2
    assert sample(collector, "request_queue_time_seconds_count") == 1
    assert sample(collector, "request_inference_time_seconds_count") == 1


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1, 2))
    histogram.observe_all([0.5, 1.0, 1.5, 2.0, 3.0])
    assert histogram.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert histogram.total == 8


def test_token_buckets_end_at_the_context() -> None:
    assert one_two_five(256) == [1, 2, 5, 10, 20, 50, 100, 200]
    assert one_two_five(1) == [1]


def test_the_python_api_reads_the_same_values(collector: EngineCollector) -> None:
    values = read_metrics(collector.registry)
    running = [v for v in values if v.name == "vllm:num_requests_running"]
    assert running == [Gauge("vllm:num_requests_running", LABELS, 3)]
    assert Counter("vllm:generation_tokens", LABELS, 4) in values
    (latency,) = [v for v in values if v.name == "vllm:inter_token_latency_seconds"]
    assert isinstance(latency, HistogramValue)
    assert (latency.count, latency.labels) == (3, LABELS)


def test_statistics_can_be_off() -> None:
    assert isinstance(engine_metrics(engine_config(log_stats=False), 200), NoMetrics)
    assert isinstance(engine_metrics(engine_config(), 200), EngineMetrics)
    with pytest.raises(ValueError, match="disable_log_stats"):
        read_metrics(None)


def test_drafts_are_counted_where_there_are_any(collector: EngineCollector) -> None:
    assert sample(collector, "spec_decode_num_drafts_total") is None
    drafted = SpecDecodingStats()
    drafted.observe(2, 1)
    drafted.observe(3, 3)
    collector.record(SchedulerStats(spec_decoding=drafted), StepStats())
    counts = {"drafts": 2, "draft_tokens": 5, "accepted_tokens": 4}
    for name, count in counts.items():
        assert sample(collector, f"spec_decode_num_{name}_total") == count
    per_place = [
        sample(collector, "spec_decode_num_accepted_tokens_per_pos_total", position=place)
        for place in "012"
    ]
    assert per_place == [2, 1, 1]
