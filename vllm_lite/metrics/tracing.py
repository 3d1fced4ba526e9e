"""OpenTelemetry: one span for each request, with vLLM's name and attributes.

The libraries are optional and imported only where an endpoint is given. Knows no HTTP.
Invariant: a collector that is slow or gone costs requests nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_lite import envs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import Task
from vllm_lite.errors import UsageError
from vllm_lite.metrics.stats import FinishedRequest
from vllm_lite.sampling_params import SamplingParams

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

# Seconds that the last spans may take to leave.
FLUSH_TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """The content of a finished request's span; times are monotonic seconds."""

    request_id: str
    params: Task
    arrival_time: float
    first_token_time: float | None
    # One for each of its choices.
    choices: list[FinishedRequest]
    trace_headers: Mapping[str, str]


class NoTracer:
    """Without --otlp-traces-endpoint."""

    is_on = False

    def record(self, request: TracedRequest) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class RequestTracer:
    """Makes spans and hands them to a processor, which sends them from a thread of its own."""

    is_on = True

    def __init__(self, processor: SpanProcessor, model_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.name": envs.OTEL_SERVICE_NAME})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("vllm_lite.request")
        self._kind = SpanKind.SERVER
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name

    def record(self, request: TracedRequest) -> None:
        end = time.time_ns()
        seconds = time.monotonic() - request.arrival_time
        context = self._propagator.extract(dict(request.trace_headers))
        span = self._tracer.start_span(
            "llm_request",
            context=context,
            kind=self._kind,
            attributes=self._attributes(request, seconds),
            start_time=end - round(seconds * 1e9),
        )
        span.end(end)

    def close(self) -> None:
        """Send what is left, for a bounded time; the processor's thread ends with the process."""
        flush = threading.Thread(target=self._provider.force_flush, daemon=True)
        flush.start()
        flush.join(FLUSH_TIMEOUT)

    def _attributes(self, request: TracedRequest, seconds: float) -> dict[str, Any]:
        params, first = request.params, request.choices[0]
        prefill, decode = first.prefill_time, first.decode_time
        found: dict[str, Any] = {
            "gen_ai.response.model": self._model_name,
            "gen_ai.request.id": request.request_id,
            "gen_ai.request.n": params.n,
            "gen_ai.usage.num_sequences": len(request.choices),
            "gen_ai.usage.prompt_tokens": first.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": sum(c.num_generation_tokens for c in request.choices),
            "gen_ai.latency.e2e": seconds,
            "gen_ai.latency.time_in_queue": first.queue_time,
            "gen_ai.latency.time_in_model_prefill": prefill,
            "gen_ai.latency.time_in_model_decode": decode,
        }
        if isinstance(params, SamplingParams):
            found["gen_ai.request.temperature"] = params.temperature
            found["gen_ai.request.top_p"] = params.top_p
            found["gen_ai.request.max_tokens"] = params.max_tokens
        if prefill is not None and decode is not None:
            found["gen_ai.latency.time_in_model_inference"] = prefill + decode
        if request.first_token_time is not None:
            waited = request.first_token_time - request.arrival_time
            found["gen_ai.latency.time_to_first_token"] = waited
        return {name: value for name, value in found.items() if value is not None}


def make_tracer(config: VllmConfig) -> RequestTracer | NoTracer:
    """The tracer of --otlp-traces-endpoint; raises UsageError if its libraries are missing."""
    endpoint = config.observability.otlp_traces_endpoint
    if endpoint is None:
        return NoTracer()
    names = config.model.served_model_name or [config.model.model]
    return RequestTracer(_processor(endpoint), names[0])


def _processor(endpoint: str) -> SpanProcessor:
    protocol = envs.OTEL_EXPORTER_OTLP_TRACES_PROTOCOL
    try:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

        exporter: SpanExporter
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
                OTLPSpanExporter as GrpcExporter,
            )

            exporter = GrpcExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))
        elif protocol == "http/protobuf":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
                OTLPSpanExporter as HttpExporter,
            )

            exporter = HttpExporter(endpoint=endpoint)
        else:
            raise UsageError(
                f"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL={protocol} is neither grpc nor http/protobuf"
            )
    except ImportError as error:
        raise UsageError(
            f"--otlp-traces-endpoint needs OpenTelemetry ({error}); "
            "install it with: pip install 'vllm-lite[otlp]'"
        ) from None
    return BatchSpanProcessor(exporter)
