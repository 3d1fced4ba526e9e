"""A registry's metrics as plain values, for callers of the Python API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm_lite.errors import UsageError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


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
