"""Options of the benchmarks: a class for each command, made of shared sections.

Names and defaults are vLLM's. Instances are checked, with texts of several parts
(percentiles, goodput, headers), so their properties cannot fail.
"""

from vllm_lite.bench.options.datasets import (
    DATASETS,
    TEMPLATED,
    DatasetOptions,
    check_dataset,
)
from vllm_lite.bench.options.load import ServeOptions, new_request_id_prefix
from vllm_lite.bench.options.offline import LatencyOptions, StartupOptions, ThroughputOptions
from vllm_lite.bench.options.target import BACKENDS, Backend, SamplingOptions, TargetOptions

__all__ = [
    "BACKENDS",
    "DATASETS",
    "TEMPLATED",
    "Backend",
    "DatasetOptions",
    "LatencyOptions",
    "SamplingOptions",
    "ServeOptions",
    "StartupOptions",
    "TargetOptions",
    "ThroughputOptions",
    "check_dataset",
    "new_request_id_prefix",
]
