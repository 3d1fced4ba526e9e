"""Metric families to Prometheus' text, from one process or from several that share an engine.

Knows no counter. Invariant: what only the engine core counts, and each process repeats, is
taken once; what each process counts is added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from vllm_lite.errors import UsageError

# Counters that every process repeats from the engine core's reports; so are all gauges.
ENGINE_WIDE = frozenset(
    (
        "vllm:prefix_cache_queries",
        "vllm:prefix_cache_hits",
        "vllm:num_preemptions",
        "vllm:spec_decode_num_drafts",
        "vllm:spec_decode_num_draft_tokens",
        "vllm:spec_decode_num_accepted_tokens",
        "vllm:spec_decode_num_accepted_tokens_per_pos",
    )
)
# Of one process alone; with several there is nothing true to say under these names.
_OF_A_PROCESS = ("process_", "python_gc_")


class _Sample(msgspec.Struct, array_like=True):
    name: str
    labels: dict[str, str]
    value: float


class _Family(msgspec.Struct, array_like=True):
    name: str
    kind: str
    help: str
    samples: list[_Sample]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Family])


class _Collected(Collector):
    """Families that were collected already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def families(registries: Iterable[CollectorRegistry | None]) -> list[Metric]:
    return [
        family for registry in registries if registry is not None for family in registry.collect()
    ]


def render(collected: Iterable[Metric]) -> bytes:
    """The text of /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(collected))
    return generate_latest(registry)


def to_wire(collected: Iterable[Metric]) -> bytes:
    """The families as another process can read them."""
    return _encoder.encode(
        [
            _Family(
                family.name,
                family.type,
                family.documentation,
                [_Sample(s.name, dict(s.labels), s.value) for s in family.samples],
            )
            for family in collected
            if not family.name.startswith(_OF_A_PROCESS)
        ]
    )


def merge(processes: Sequence[bytes]) -> list[Metric]:
    """One set of families from those of several processes, the first of which hears most of
    the engine core.
    """
    merged: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for data in processes:
        for family in _decoder.decode(data):
            seen = family.name in merged
            if not seen:
                merged[family.name] = Metric(family.name, family.help, family.kind)
                values[family.name] = {}
            is_shared = family.kind == "gauge" or family.name in ENGINE_WIDE
            if seen and is_shared:
                continue
            _add(values[family.name], family.samples)
    for name, metric in merged.items():
        for (sample, labels), value in values[name].items():
            metric.add_sample(sample, dict(labels), value)
    return list(merged.values())


def _add(
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float], samples: Iterable[_Sample]
) -> None:
    for sample in samples:
        key = (sample.name, tuple(sample.labels.items()))
        if key not in values:
            values[key] = sample.value
        elif sample.name.endswith("_created"):
            values[key] = min(values[key], sample.value)
        else:
            values[key] += sample.value


@dataclass(slots=True)
class MetricValue:
    """One metric with one set of labels; counters are named without `_total`."""

    name: str
    labels: dict[str, str]


@dataclass(slots=True)
class Counter(MetricValue):
    """A number that only grows."""

    value: float = 0.0


@dataclass(slots=True)
class Gauge(MetricValue):
    """A number that comes and goes."""

    value: float = 0.0


@dataclass(slots=True)
class Histogram(MetricValue):
    """Observations by upper bound, cumulative."""

    count: float = 0.0
    sum: float = 0.0
    buckets: dict[str, float] = field(default_factory=dict)


def read_metrics(registry: CollectorRegistry | None) -> list[MetricValue]:
    """Every metric in the registry; UsageError where statistics are off."""
    if registry is None:
        raise UsageError("statistics are off: pass disable_log_stats=False to have metrics")
    return [value for family in registry.collect() for value in _values_of(family)]


def _values_of(family: Metric) -> list[MetricValue]:
    if family.type == "histogram":
        return [_histogram(family)]
    kind = Counter if family.type == "counter" else Gauge
    return [
        kind(family.name, dict(sample.labels), sample.value)
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]


def _histogram(family: Metric) -> Histogram:
    """Ours have one set of labels each."""
    result = Histogram(family.name, {})
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            result.buckets[sample.labels["le"]] = sample.value
            result.labels = {k: v for k, v in sample.labels.items() if k != "le"}
        elif sample.name.endswith("_count"):
            result.count = sample.value
        elif sample.name.endswith("_sum"):
            result.sum = sample.value
    return result
