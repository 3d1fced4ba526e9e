"""Requests are counted by labels that exist, and several processes make one set of numbers."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.unit.engine.engines import engine_config
from vllm_lite.metrics.exposition import families, merge, render, to_wire
from vllm_lite.metrics.front_end import COARSE_DURATION, DURATION, FrontEndMetrics
from vllm_lite.metrics.prometheus import EngineCollector
from vllm_lite.metrics.stats import SchedulerStats, StepStats


def values(text: bytes) -> dict[str, float]:
    """Samples by their name and labels."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_requests_are_counted_by_route_status_and_method() -> None:
    metrics = FrontEndMetrics("tiny")
    for seconds in (0.02, 0.3):
        metrics.count_request("/v1/models", "GET", 200, sizes=(0, 50), seconds=seconds)
    metrics.count_request(None, "BREW", 404, sizes=(7, 1), seconds=0.001)
    metrics.count_request("/metrics", "GET", 200, sizes=(0, 0), seconds=0.001)
    found = values(render(families([metrics.registry])))
    assert found["http_requests_total{handler=/v1/models,method=GET,status=2xx}"] == 2
    assert found["http_requests_total{handler=none,method=OTHER,status=4xx}"] == 1
    assert found["http_request_size_bytes_sum{handler=none}"] == 7
    assert found["http_response_size_bytes_count{handler=/v1/models}"] == 2
    assert found["http_request_duration_highr_seconds_count{}"] == 3
    name = "http_request_duration_seconds_bucket{handler=/v1/models,le=0.1,method=GET}"
    assert found[name] == 1
    assert not any("handler=/metrics" in key for key in found)
    assert "process_resident_memory_bytes{}" in found
    assert any(key.startswith("python_info") for key in found)
    bounds = [key for key in found if key.startswith("http_request_duration_highr_seconds_bucket")]
    assert len(bounds) == len(DURATION) + 1
    assert COARSE_DURATION == (0.1, 0.5, 1)


def test_unknown_methods_and_paths_add_no_labels() -> None:
    metrics = FrontEndMetrics("tiny")
    for i in range(1000):
        metrics.count_request(None, f"X{i}", 405, sizes=(0, 0), seconds=0.1)
    found = values(render(families([metrics.registry])))
    assert len([key for key in found if key.startswith("http_requests_total")]) == 1


def test_tool_texts_are_counted_where_there_is_a_parser() -> None:
    name = "vllm:tool_call_parser_invocations_total"
    assert name not in render(families([FrontEndMetrics("tiny").registry])).decode()
    metrics = FrontEndMetrics("tiny", has_tool_parser=True)
    metrics.count_tool_parsing("responses", is_streaming=True, found=True)
    found = values(render(families([metrics.registry])))
    key = "mode=streaming,model_name=tiny,outcome=tool_call,request_type=responses"
    assert found[f"{name}{{{key}}}"] == 1
    assert len([key for key in found if key.startswith(name + "{")]) == 12


def test_processes_add_up_what_each_counts_and_take_the_engines_numbers_once() -> None:
    wires = []
    for generated in (4, 6):
        engine = EngineCollector(engine_config(), num_blocks=200)
        scheduler = SchedulerStats(num_running=3, prefix_cache_queries=10, num_preemptions=2)
        step = StepStats(num_generation_tokens=generated, first_token_latencies=[0.03])
        engine.record(scheduler, step)
        http = FrontEndMetrics("tiny")
        http.count_request("/v1/models", "GET", 200, sizes=(0, 5), seconds=0.1)
        wires.append(to_wire(families([engine.registry, http.registry])))
    found = values(render(merge(wires)))
    labels = "{engine=0,model_name=tiny}"
    assert found[f"vllm:generation_tokens_total{labels}"] == 10
    assert found[f"vllm:num_requests_running{labels}"] == 3
    assert found[f"vllm:num_preemptions_total{labels}"] == 2
    assert found[f"vllm:prefix_cache_queries_total{labels}"] == 10
    assert found[f"vllm:time_to_first_token_seconds_count{labels}"] == 2
    assert found["http_requests_total{handler=/v1/models,method=GET,status=2xx}"] == 2
    assert not any(key.startswith("process_") for key in found)
    alone = render(families([engine.registry, http.registry]))
    own = {key for key in values(alone) if not key.startswith(("process_", "python_gc_"))}
    assert set(found) == own
