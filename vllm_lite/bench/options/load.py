"""Options of `bench serve`, shape of the load and report, and of the benchmarks of an engine."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any, ClassVar, Literal

from vllm_lite.bench.options.datasets import (
    ALL_DATASETS,
    DATASET_REMEDY,
    DATASETS,
    TEMPLATED,
    DatasetOptions,
    check_dataset,
)
from vllm_lite.bench.options.target import SamplingOptions, TargetOptions, numbers, pairs
from vllm_lite.config.options.absent import rows
from vllm_lite.config.options.option import Option, config, option
from vllm_lite.errors import UsageError

# Names in rows and titles of the table, and in pictures.
METRICS = {
    "ttft": ("TTFT", "Time to First Token", "Time to first token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)", "Time per output token"),
    "itl": ("ITL", "Inter-token Latency", "Inter-token latency"),
    "e2el": ("E2EL", "End-to-end Latency", "End-to-end latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing", "Wait in the client"),
    "e2el_including_client_queue": (
        "E2EL incl. Client Queue",
        "Queue-inclusive End-to-end Latency",
        "End-to-end latency with the wait",
    ),
}
GOODPUT_METRICS = ("ttft", "tpot", "e2el")


@config
class ServeOptions:
    """Shape of the load and report."""

    GROUP: ClassVar[str] = "options"

    target: TargetOptions = field(default_factory=TargetOptions)
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    dataset_name: str = option(
        "random",
        "Where prompts come from.",
        group="dataset",
        choices=ALL_DATASETS,
        works=tuple(DATASETS),
        remedy=DATASET_REMEDY,
    )
    chat_template_kwargs: dict[str, Any] = option(
        {}, "JSON of further variables of the chat template.", group="dataset"
    )
    seed: int = option(0, "Seed of prompts and arrival times.", ge=0)
    request_rate: float = option(
        math.inf, "Requests per second, on average; inf sends all at once.", gt=0, infinite=True
    )
    burstiness: float = option(
        1.0,
        "Shape of the gaps between requests: 1 is Poisson, less is burstier, inf is even.",
        gt=0,
        infinite=True,
    )
    self_timed: bool | None = option(
        None, "timed_trace: send at the trace's times.", auto="with timed_trace"
    )
    max_concurrency: int | None = option(None, "Requests in flight at most.", ge=1)
    ramp_up_strategy: Literal["linear", "exponential"] | None = option(
        None, "Let the rate grow in this way, instead of --request-rate."
    )
    ramp_up_start_rps: int | None = option(None, "Rate to begin with.", ge=1)
    ramp_up_end_rps: int | None = option(None, "Rate to end with.", ge=1)
    probe_request_rate: float = option(
        0.0,
        "Requests for one token to send beside the load, per second, and to report alone.",
        ge=0,
    )
    num_warmups: int = option(0, "Requests to send first that do not count.", ge=0)
    ready_check_timeout_sec: int = option(
        0, "Wait so long for the server to answer a first request; 0: do not ask.", ge=0
    )
    profile: bool = option(False, "Have the server's profiler on, if it has one to switch.")
    percentile_metrics: str | None = option(
        None,
        "Metrics to report, of " + ", ".join(METRICS) + ".",
        auto="ttft,tpot,itl; e2el for embeddings",
    )
    metric_percentiles: str = option("99", "Percentiles to report, such as 50,90,99.")
    goodput: list[str] = option(
        [], "Limits that a good request keeps, in milliseconds, such as ttft:200 tpot:50."
    )
    disable_tqdm: bool = option(False, "Draw no progress bar.")
    save_result: bool = option(False, "Write a JSON file of the results.")
    save_detailed: bool = option(False, "Keep the figures and texts of each request in it.")
    append_result: bool = option(False, "Add a line to the JSON file instead of replacing it.")
    result_dir: str | None = option(None, "Directory for the JSON file.", auto="this one")
    result_filename: str | None = option(
        None, "Name of the JSON file.", auto="made of label, rate, model and time"
    )
    metadata: list[str] = option([], "Notes for the JSON file, each as KEY=VALUE.")
    label: str | None = option(None, "Name of the run in the JSON file.", auto="the backend")
    plot: bool = option(
        False, "Draw the distribution of each metric, and the timeline, to PNG files."
    )
    plot_timeline: bool = option(False, "Draw when each request waited and ran to a PNG file.")
    timeline_itl_thresholds: str = option(
        "25,50", "Milliseconds between two tokens above which the timeline changes its colour."
    )
    plot_dataset_stats: bool = option(
        False, "Draw how long prompts and outputs were to a PNG file."
    )

    def __post_init__(self) -> None:
        self._check_ramp_up()
        if not self.metrics:
            raise UsageError("--percentile-metrics must name one of " + ", ".join(METRICS))
        if not all(0 <= percentile <= 100 for percentile in self.percentiles):
            raise UsageError(f"--metric-percentiles {self.metric_percentiles} must lie in [0, 100]")
        for name in self.metrics:
            if "queue" in name and self.max_concurrency is None:
                raise UsageError(f"--percentile-metrics {name} needs --max-concurrency")
        pairs("--metadata", self.metadata)
        if not all(limit >= 0 for limit in self.goodput_limits.values()):
            raise UsageError("--goodput takes limits of 0 milliseconds or more")
        if len(self.itl_thresholds) != 2:
            raise UsageError("--timeline-itl-thresholds takes two numbers, such as 25,50")
        check_dataset(self.dataset, self.dataset_name)
        self._check_backend()

    def _check_ramp_up(self) -> None:
        ends = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if self.ramp_up_strategy is None:
            if ends != (None, None):
                raise UsageError(
                    "--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy"
                )
            return
        start, end = ends
        if start is None or end is None:
            raise UsageError(
                "--ramp-up-strategy needs both --ramp-up-start-rps and --ramp-up-end-rps"
            )
        if start > end:
            raise UsageError(
                f"--ramp-up-start-rps {start} must not be more than --ramp-up-end-rps {end}"
            )
        if not math.isinf(self.request_rate):
            raise UsageError("--ramp-up-strategy sets the rate; drop --request-rate")

    def _check_backend(self) -> None:
        target, name = self.target, self.dataset_name
        backend, api = target.backend, target.api
        if api.is_pooling and self.sampling.body:
            raise UsageError(f"--backend {backend} samples nothing; drop the sampling options")
        if self.dataset.random_batch_size > 1 and not api.is_pooling:
            raise UsageError("--random-batch-size needs a --backend for embeddings")
        if (name == "random-rerank") != (backend == "vllm-rerank"):
            raise UsageError("--backend vllm-rerank and --dataset-name random-rerank go together")
        if name == "timed_trace" and (api.is_chat or api.is_pooling):
            raise UsageError(
                "--dataset-name timed_trace sends token ids, which only --backend openai takes"
            )
        if name != "timed_trace" and self.self_timed is not None:
            raise UsageError("--self-timed is for --dataset-name timed_trace")
        if self.chat_template_kwargs and self.is_plain:
            raise UsageError(
                "--chat-template-kwargs is for prompts that are put into a template here; a chat "
                "server takes them in --extra-body"
            )
        if target.skip_tokenizer_init:
            if name not in TEMPLATED or name == "sonnet":
                raise UsageError(
                    f"--dataset-name {name} needs a tokenizer; drop --skip-tokenizer-init"
                )
            if not self.is_plain:
                raise UsageError(
                    "--skip-tokenizer-init needs --skip-chat-template or a chat --backend: there "
                    "is no template without a tokenizer"
                )

    @property
    def is_plain(self) -> bool:
        """Whether prompts are sent as they are; a chat server applies its template itself."""
        return (
            self.dataset_name not in TEMPLATED
            or self.dataset.skip_chat_template
            or self.target.api.is_chat
        )

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics to report, in the order of the report."""
        text = self.percentile_metrics
        if text is None:
            text = "e2el" if self.target.api.is_pooling else "ttft,tpot,itl"
        asked = [word.strip() for word in text.split(",") if word.strip()]
        for word in asked:
            if word not in METRICS:
                raise UsageError(f"--percentile-metrics {word} is not one of {', '.join(METRICS)}")
        return tuple(name for name in METRICS if name in asked)

    @property
    def percentiles(self) -> tuple[float, ...]:
        return numbers("--metric-percentiles", self.metric_percentiles, "50,90,99")

    @property
    def itl_thresholds(self) -> tuple[float, ...]:
        return numbers("--timeline-itl-thresholds", self.timeline_itl_thresholds, "25,50")

    @property
    def goodput_limits(self) -> dict[str, float]:
        """Metric to its limit in milliseconds."""
        limits: dict[str, float] = {}
        for text in self.goodput:
            name, _, limit = text.partition(":")
            if name not in GOODPUT_METRICS:
                raise UsageError(f"--goodput {name} is not one of {', '.join(GOODPUT_METRICS)}")
            try:
                limits[name] = float(limit)
            except ValueError:
                raise UsageError(f"--goodput {text!r} is not such as {name}:200") from None
        return limits

    @property
    def notes(self) -> dict[str, str]:
        return pairs("--metadata", self.metadata)


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
        if self.dataset_kind == "random-rerank":
            raise UsageError("--dataset-name random-rerank is for bench serve")
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
