"""One span for each request, under its caller's trace, sent by OpenTelemetry's own protocol."""

from __future__ import annotations

import builtins
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.unit.engine.engines import engine_config
from tests.unit.metrics.test_prometheus import finished
from vllm_lite.config.observability import ObservabilityConfig
from vllm_lite.errors import UsageError
from vllm_lite.metrics.tracing import NoTracer, RequestTracer, TracedRequest, make_tracer
from vllm_lite.sampling_params import SamplingParams

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def traced(**changes: Any) -> TracedRequest:
    now = time.monotonic()
    values: dict[str, Any] = {
        "request_id": "r1",
        "params": SamplingParams(n=2, temperature=0.5, max_tokens=16),
        "arrival_time": now - 2.0,
        "first_token_time": now - 1.5,
        "choices": [finished(), finished()],
        "trace_headers": {"traceparent": f"00-{TRACE}-{PARENT}-01"},
    }
    return TracedRequest(**{**values, **changes})


def config_of(endpoint: str | None) -> Any:
    observability = ObservabilityConfig(otlp_traces_endpoint=endpoint)
    return replace(engine_config(), observability=observability)


def test_a_span_tells_of_its_request() -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    tracer = RequestTracer(export.SimpleSpanProcessor(exporter), "tiny")
    tracer.record(traced())
    (span,) = exporter.get_finished_spans()
    assert span.name == "llm_request" and span.kind.name == "SERVER"
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(2.0, abs=0.5)
    found = dict(span.attributes)
    assert found["gen_ai.request.id"] == "r1"
    assert (found["gen_ai.request.n"], found["gen_ai.usage.num_sequences"]) == (2, 2)
    assert found["gen_ai.usage.prompt_tokens"] == 10
    assert found["gen_ai.usage.completion_tokens"] == 10
    assert found["gen_ai.latency.time_to_first_token"] == pytest.approx(0.5)
    assert found["gen_ai.latency.time_in_model_inference"] == 1.5
    # One that never ran has no times, and one without a trace begins its own.
    never = finished(queue_time=None, prefill_time=None, decode_time=None)
    tracer.record(traced(choices=[never], first_token_time=None, trace_headers={}))
    last = exporter.get_finished_spans()[-1]
    assert last.parent is None
    assert "gen_ai.latency.time_in_queue" not in last.attributes


def test_spans_reach_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    came: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    tracer = make_tracer(config_of(f"http://127.0.0.1:{server.server_port}/v1/traces"))
    tracer.record(traced())
    tracer.close()
    server.shutdown()
    server.server_close()
    ((path, body),) = came
    assert path == "/v1/traces"
    assert b"llm_request" in body and bytes.fromhex(TRACE) in body and b"vllm-lite" in body


def test_without_an_endpoint_nothing_is_made() -> None:
    tracer = make_tracer(config_of(None))
    assert isinstance(tracer, NoTracer) and not tracer.is_on


def test_without_the_libraries_the_option_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"pip install 'vllm-lite\[otlp\]'"):
        make_tracer(config_of("http://localhost:4317"))


def test_an_unknown_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "carrier-pigeon")
    with pytest.raises(UsageError, match="carrier-pigeon"):
        make_tracer(config_of("http://localhost:4317"))
