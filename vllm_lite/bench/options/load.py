"""Options of `bench serve`: shape of the load and report."""

from __future__ import annotations

import math
import secrets
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
from vllm_lite.config.option import config, option
from vllm_lite.errors import UsageError

METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue")
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
    def follows_trace(self) -> bool:
        """Whether requests are sent at the times of a trace."""
        return self.dataset_name == "timed_trace" and self.self_timed is not False

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
        """Milliseconds where the timeline changes its colour."""
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
        """The pairs of --metadata."""
        return pairs("--metadata", self.metadata)


def new_request_id_prefix() -> str:
    return f"bench-{secrets.token_hex(4)}-"
