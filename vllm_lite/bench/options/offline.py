"""Options of the benchmarks that run an engine themselves."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from vllm_lite.bench.options.datasets import (
    ALL_DATASETS,
    DATASET_REMEDY,
    DATASETS,
    DatasetOptions,
    check_dataset,
)
from vllm_lite.config.absent import rows
from vllm_lite.config.option import Option, config, option
from vllm_lite.errors import UsageError


@config
class LatencyOptions:
    """One batch, and how often it is timed."""

    ROWS: ClassVar[tuple[Option, ...]] = (*rows("bench"), *rows("latency"))

    GROUP: ClassVar[str] = "options"

    input_len: int = option(32, "Prompt tokens of a request.", ge=1)
    output_len: int = option(128, "Output tokens of a request.", ge=1)
    batch_size: int = option(8, "Prompts generated together.", ge=1)
    n: int = option(1, "Sequences generated for each prompt.", ge=1)
    use_beam_search: bool = option(False, "Search with n beams instead of sampling.")
    num_iters_warmup: int = option(10, "Batches to run first that do not count.", ge=0)
    num_iters: int = option(30, "Batches to time.", ge=1)
    output_json: str | None = option(None, "File to write the results to.")
    disable_detokenize: bool = option(False, "Leave token ids as they are: no text is made.")
    plot: str | None = option(None, "PNG file to draw the distribution of the times to.")


@config
class ThroughputOptions:
    """Prompts to generate from, and how."""

    ROWS: ClassVar[tuple[Option, ...]] = (*rows("bench"), *rows("throughput"))

    GROUP: ClassVar[str] = "options"

    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    backend: str = option(
        "vllm",
        "What is generated from: prompts as they are (vllm), or as chats (vllm-chat).",
        choices=("vllm", "hf", "mii", "vllm-chat"),
        works=("vllm", "vllm-chat"),
        remedy="use vllm or vllm-chat, and time other engines with bench serve",
    )
    dataset_name: str = option(
        "sharegpt",
        "Where prompts come from; sharegpt without --dataset-path is random.",
        group="dataset",
        choices=ALL_DATASETS,
        works=tuple(DATASETS),
        remedy=DATASET_REMEDY,
    )
    prefix_len: int = option(
        0, "random: tokens that all prompts begin with.", ge=0, group="dataset"
    )
    num_warmups: int = option(0, "Prompts to run first that do not count.", ge=0)
    n: int = option(1, "Sequences generated for each prompt.", ge=1)
    async_engine: bool = option(False, "Use AsyncLLM instead of LLM.")
    prequeue_requests: bool = option(
        False, "With --async-engine: let the engine begin once it has all requests."
    )
    output_json: str | None = option(None, "File to write the results to.")
    disable_detokenize: bool = option(False, "Leave token ids as they are: no text is made.")

    def __post_init__(self) -> None:
        if self.prefix_len and self.dataset.random_prefix_len:
            raise UsageError("--prefix-len and --random-prefix-len are one thing; give one of them")
        if self.dataset.random_batch_size > 1:
            raise UsageError("--random-batch-size is for bench serve with embeddings")
        check_dataset(self.dataset, self.dataset_kind)
        if self.prequeue_requests and not self.async_engine:
            raise UsageError("--prequeue-requests needs --async-engine")

    @property
    def dataset_kind(self) -> str:
        """The dataset's name once sharegpt without a file has become random."""
        is_default = self.dataset_name == "sharegpt" and self.dataset.dataset_path is None
        return "random" if is_default else self.dataset_name


@config
class StartupOptions:
    """Numbers of cold and warm starts."""

    ROWS: ClassVar[tuple[Option, ...]] = rows("bench")

    GROUP: ClassVar[str] = "options"

    num_iters_cold: int = option(3, "Cold starts to time.", ge=1)
    num_iters_warmup: int = option(1, "Starts before the warm ones that do not count.", ge=0)
    num_iters_warm: int = option(3, "Warm starts to time.", ge=1)
    output_json: str | None = option(None, "File to write the results to.")
