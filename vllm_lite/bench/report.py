"""How results are shown: the printed table, the JSON of a run and the names of files.

Lines, keys and names are those of vLLM's benchmarks, which other programs read.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from vllm_lite.bench.load import RateChange
from vllm_lite.bench.metrics import LoadMetrics, num_output
from vllm_lite.bench.options.load import METRICS, ServeOptions
from vllm_lite.bench.recorder import RequestResult
from vllm_lite.bench.target_server import DraftCounts
from vllm_lite.errors import UsageError

PERCENTILES = (10, 25, 50, 75, 90, 99)
_WIDTH, _LABEL = 50, 40


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the table with a title of its own: labels, keys of the JSON, and values."""

    title: str
    rows: tuple[tuple[str, str, float], ...]
    # A further key of the JSON, for shares that the table shows in percent by their place.
    shares: tuple[str, list[float]] | None = None

    @property
    def lines(self) -> list[str]:
        lines = [f"{self.title:-^{_WIDTH}}", *(_row(label, value) for label, _, value in self.rows)]
        if self.shares is not None and self.shares[1]:
            lines.append("Per-position acceptance (%):")
            places = enumerate(self.shares[1])
            lines += [_row(f"  Position {place}:", share * 100) for place, share in places]
        return lines

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = {key: value for _, key, value in self.rows}
        return found | dict([self.shares] if self.shares is not None else [])


def table(
    metrics: LoadMetrics, options: ServeOptions, probe: Block | None, drafts: Block | None
) -> str:
    is_pooling = options.target.api.is_pooling
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}"]
    lines += [_row("Successful requests:", metrics.completed)]
    lines += [_row("Failed requests:", metrics.failed)]
    if options.max_concurrency is not None:
        lines.append(_row("Maximum request concurrency:", options.max_concurrency))
    if math.isfinite(options.request_rate):
        lines.append(_row("Request rate configured (RPS):", float(options.request_rate)))
    lines.append(_row("Benchmark duration (s):", metrics.duration))
    lines.append(_row("Total input tokens:", metrics.total_input))
    if not is_pooling:
        lines.append(_row("Total generated tokens:", metrics.total_output))
    lines.append(_row("Request throughput (req/s):", metrics.request_rate))
    if is_pooling:
        lines.append(_row("Input throughput (inputs/s):", metrics.input_rate))
    if metrics.goodput is not None:
        lines.append(_row("Request goodput (req/s):", metrics.goodput))
    if not is_pooling:
        lines.append(_row("Output token throughput (tok/s):", metrics.output_rate))
        lines.append(_row("Peak output token throughput (tok/s):", metrics.peak_output_rate))
        lines.append(_row("Peak concurrent requests:", float(metrics.peak_concurrency)))
    lines.append(_row("Total token throughput (tok/s):", metrics.total_rate))
    lines += probe.lines if probe else []
    for name in options.metrics:
        short, title, _ = METRICS[name]
        spread = metrics.spreads[name]
        lines.append(f"{title:-^{_WIDTH}}")
        lines.append(_row(f"Mean {short} (ms):", spread.mean))
        lines.append(_row(f"Median {short} (ms):", spread.median))
        lines += [_row(f"P{p:g} {short} (ms):", value) for p, value in spread.percentiles]
    lines += drafts.lines if drafts else []
    lines.append("=" * _WIDTH)
    return "\n".join(lines)


def show(text: str) -> None:
    """Print lines of `name: value` and titles; as a table where standard output is a terminal."""
    if not sys.stdout.isatty():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        return
    # Imported here: a pipe needs none of it.
    from rich.console import Console
    from rich.table import Table

    shown = Table(show_header=False)
    shown.add_column()
    shown.add_column(justify="right", style="bold")
    for line in text.splitlines():
        label, _, value = line.strip("=- ").partition(": ")
        if value:
            shown.add_row(label, value.strip())
        elif label:
            shown.add_section()
            shown.add_row(f"[bold cyan]{label.rstrip(':')}", "")
    Console(file=sys.stdout, highlight=False).print(shown)


def _row(label: str, value: float) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label:<{_LABEL}} {shown:<10}"


def run_json(
    metrics: LoadMetrics,
    results: Sequence[RequestResult],
    options: ServeOptions,
    names: Mapping[str, str | None],
    now: datetime,
    changes: Sequence[RateChange] = (),
) -> dict[str, Any]:
    """The JSON of a run; `names` are model_id and tokenizer_id, `now` is when it ended."""
    backend = options.target.backend
    run: dict[str, Any] = {
        "date": _stamp(now),
        "endpoint_type": backend,
        "backend": backend,
        "label": options.label or backend,
        **names,
        "num_prompts": options.dataset.num_prompts,
        **options.notes,
        "request_rate": options.request_rate if math.isfinite(options.request_rate) else "inf",
        "burstiness": options.burstiness if math.isfinite(options.burstiness) else "inf",
        "max_concurrency": options.max_concurrency,
    }
    if options.ramp_up_strategy is not None:
        run["ramp_up_strategy"] = options.ramp_up_strategy
        run["ramp_up_start_rps"] = options.ramp_up_start_rps
        run["ramp_up_end_rps"] = options.ramp_up_end_rps
        began = now - timedelta(seconds=metrics.duration)
        run["rps_change_events"] = [
            {
                "rps": change.rps,
                "timestamp": (began + timedelta(seconds=change.seconds)).isoformat(),
            }
            for change in changes
        ]
    run |= _figures(metrics, options)
    run["latencies"] = [result.latency for result in results]
    run["queue_times"] = [result.queue_time for result in results]
    if options.save_detailed:
        run |= _details(results)
    return run


def probe_block(results: Sequence[RequestResult]) -> Block | None:
    """How the requests beside the load did; None where none succeeded."""
    took = [result.latency * 1000 for result in results if result.is_success]
    if not took:
        return None
    return Block(
        "Probe Requests",
        (
            ("Probe requests completed:", "probe_completed", len(took)),
            ("Probe requests failed:", "probe_failed", len(results) - len(took)),
            ("Median probe E2EL (ms):", "probe_median_e2el_ms", float(np.median(took))),
            ("P99 probe E2EL (ms):", "probe_p99_e2el_ms", float(np.percentile(took, 99))),
            ("Max probe E2EL (ms):", "probe_max_e2el_ms", max(took)),
        ),
    )


def drafts_block(drafts: DraftCounts | None) -> Block | None:
    """How the server's drafts did during the load; None where it drafted nothing."""
    if drafts is None or not drafts.drafts or not drafts.draft_tokens:
        return None
    rate = drafts.accepted_tokens / drafts.draft_tokens * 100
    length = 1 + drafts.accepted_tokens / drafts.drafts
    by_place = [count / drafts.drafts for _, count in sorted(drafts.accepted_at.items())]
    return Block(
        "Speculative Decoding",
        (
            ("Acceptance rate (%):", "spec_decode_acceptance_rate", rate),
            ("Acceptance length:", "spec_decode_acceptance_length", length),
            ("Drafts:", "spec_decode_num_drafts", drafts.drafts),
            ("Draft tokens:", "spec_decode_draft_tokens", drafts.draft_tokens),
            ("Accepted tokens:", "spec_decode_accepted_tokens", drafts.accepted_tokens),
        ),
        ("spec_decode_per_position_acceptance_rates", by_place),
    )


def _figures(metrics: LoadMetrics, options: ServeOptions) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "duration": metrics.duration,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input,
        "total_output_tokens": metrics.total_output,
        "request_throughput": metrics.request_rate,
        "request_goodput": metrics.goodput,
        "output_throughput": metrics.output_rate,
        "total_token_throughput": metrics.total_rate,
        "max_output_tokens_per_s": metrics.peak_output_rate,
        "max_concurrent_requests": metrics.peak_concurrency,
        # Seconds of audio per second of work: there is no audio here.
        "rtfx": 0.0,
    }
    if options.target.api.is_pooling:
        figures["total_input_sequences"] = metrics.total_inputs
        figures["input_sequence_throughput"] = metrics.input_rate
    for name in options.metrics:
        spread = metrics.spreads[name]
        figures[f"mean_{name}_ms"] = spread.mean
        figures[f"median_{name}_ms"] = spread.median
        figures[f"std_{name}_ms"] = spread.std
        figures |= {f"p{p:g}_{name}_ms": value for p, value in spread.percentiles}
    return figures


def _details(results: Sequence[RequestResult]) -> dict[str, Any]:
    return {
        "input_lens": [result.prompt_tokens for result in results],
        "output_lens": [num_output(result) for result in results],
        "ttfts": [result.ttft for result in results],
        "itls": [list(result.itls) for result in results],
        "start_times": [result.start_time for result in results],
        "generated_texts": [result.text for result in results],
        "errors": [result.error for result in results],
    }


def result_path(options: ServeOptions, model_id: str, now: datetime) -> Path:
    name = options.result_filename
    if name is None:
        rate = f"{float(options.request_rate)}qps"
        if options.ramp_up_strategy is not None:
            ends = f"{options.ramp_up_start_rps}qps-{options.ramp_up_end_rps}qps"
            rate = f"ramp-up-{options.ramp_up_strategy}-{ends}"
        label = options.label or options.target.backend
        limit = options.max_concurrency
        concurrency = "" if limit is None else f"-concurrency{limit}"
        model = model_id.rstrip("/").rpartition("/")[2]
        name = f"{label}-{rate}{concurrency}-{model}-{_stamp(now)}.json"
    return Path(options.result_dir or "").expanduser() / name


def check_result_folder(options: ServeOptions) -> None:
    """Raise UsageError where results could not be written; makes their directory."""
    folder = result_path(options, "", datetime.now()).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"cannot write results to {folder}: {error.strerror}") from None


def write_json(file_name: str | Path, content: object, *, append: bool = False) -> None:
    """Write `content` to a file, or as one more line of it; raises UsageError."""
    path = Path(file_name).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a" if append else "w", encoding="utf-8") as file:
            if file.tell():
                file.write("\n")
            json.dump(content, file, indent=None if append else 4)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def percentiles_json(seconds: Sequence[float], wanted: Sequence[float]) -> dict[str, float]:
    """Percentile, written as a whole number, to its value."""
    return {f"{p:g}": float(np.percentile(seconds, p)) for p in wanted}


def _stamp(now: datetime) -> str:
    return now.strftime("%Y%m%d-%H%M%S")
