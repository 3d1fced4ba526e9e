"""Prompts of a load with their output lengths, generated or from a local file.

Each dataset is a function of its options, a PromptMaker and a seed; the same seed gives the
same prompts. Knows no server.
"""

from collections.abc import Callable

from vllm_lite.bench.datasets.sample import Prompt, Sample, Source
from vllm_lite.bench.datasets.synthetic import (
    burstgpt_samples,
    prefix_repetition_samples,
    random_rerank_samples,
    random_samples,
    timed_trace_samples,
)
from vllm_lite.bench.datasets.texts import (
    custom_samples,
    sharegpt_samples,
    sonnet_samples,
    spec_bench_samples,
)

__all__ = ["Prompt", "Sample", "Source", "load_samples"]

_LOADERS: dict[str, Callable[[Source], list[Sample]]] = {
    "random": random_samples,
    "random-rerank": random_rerank_samples,
    "prefix_repetition": prefix_repetition_samples,
    "sharegpt": sharegpt_samples,
    "sonnet": sonnet_samples,
    "custom": custom_samples,
    "spec_bench": spec_bench_samples,
    "burstgpt": burstgpt_samples,
    "timed_trace": timed_trace_samples,
}


def load_samples(name: str, source: Source) -> list[Sample]:
    """The requests of dataset `name`; raises UsageError."""
    return _LOADERS[name](source)
