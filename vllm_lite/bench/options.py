"""What `bench latency`, `bench throughput` and `bench serve` can be told.

Names and defaults are vLLM's. An instance has been checked as a whole, texts of several parts
(percentiles, goodput, headers) included, so their properties cannot fail.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal, TypeVar

from vllm_lite.config.option import config, option, options, sections
from vllm_lite.errors import UsageError

T = TypeVar("T")

METRICS = ("ttft", "tpot", "itl", "e2el")
GOODPUT_METRICS = ("ttft", "tpot", "e2el")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """An instance of a @config class and its sections from one flat mapping; UsageError."""
    declared: type = cls
    fields: dict[str, Any] = {
        name: build(part, values) for name, part in sections(declared).items()
    }
    own = [entry.name for entry in options(declared) if entry.name in values]
    return cls(**fields, **{name: values[name] for name in own})


@config
class DatasetOptions:
    """Where prompts come from."""

    GROUP: ClassVar[str] = "dataset"

    dataset_path: str | None = option(None, "Local file of the dataset.")
    num_prompts: int = option(1000, "How many requests to send.", ge=1)
    input_len: int | None = option(
        None, "Prompt tokens of a request, whatever the dataset calls them.", ge=1
    )
    output_len: int | None = option(
        None, "Output tokens of a request, whatever the dataset calls them.", ge=1
    )
    disable_shuffle: bool = option(False, "Keep the dataset's order.")
    oversample: bool = option(True, "Repeat prompts where the dataset has too few.")
    random_input_len: int = option(1024, "random: prompt tokens.", ge=1)
    random_output_len: int = option(128, "random: output tokens.", ge=1)
    random_range_ratio: str = option(
        "0.0",
        "random: lengths vary uniformly by this share of themselves, a number in [0, 1) or JSON "
        "with input and output.",
    )
    random_prefix_len: int = option(0, "random: tokens that all prompts begin with.", ge=0)
    sharegpt_output_len: int | None = option(
        None, "sharegpt: output tokens; default: as many as the recorded answer.", ge=1
    )
    custom_output_len: int = option(
        256, "custom: output tokens; -1: the dataset's output_tokens.", ge=-1
    )
    skip_chat_template: bool = option(
        False,
        "custom: take prompts as they are. Otherwise each becomes the user's turn of a chat, "
        "written by the tokenizer's template, or by the server's with --backend openai-chat.",
    )
    prefix_repetition_prefix_len: int = option(256, "prefix_repetition: tokens of a prefix.", ge=1)
    prefix_repetition_suffix_len: int = option(
        256, "prefix_repetition: tokens of a prompt after its prefix.", ge=1
    )
    prefix_repetition_num_prefixes: int = option(10, "prefix_repetition: different prefixes.", ge=1)
    prefix_repetition_output_len: int = option(128, "prefix_repetition: output tokens.", ge=1)

    def __post_init__(self) -> None:
        for name, ratio in zip(("input", "output"), self.range_ratios, strict=True):
            if not 0 <= ratio < 1:
                raise UsageError(
                    f"--random-range-ratio must be at least 0 and less than 1, not {ratio} ({name})"
                )
        if self.custom_output_len == 0:
            raise UsageError("--custom-output-len must be -1 or at least 1, not 0")

    @property
    def range_ratios(self) -> tuple[float, float]:
        """How far random prompt and output lengths stray, as shares of themselves."""
        try:
            value = json.loads(self.random_range_ratio)
            both = (value["input"], value["output"]) if isinstance(value, dict) else (value, value)
            return float(both[0]), float(both[1])
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                f"--random-range-ratio {self.random_range_ratio!r} is neither a number nor JSON "
                'such as {"input": 0.1, "output": 0.5}'
            ) from None


@config
class SamplingOptions:
    """What requests ask of the sampler; what is not set is the server's default."""

    GROUP: ClassVar[str] = "sampling"

    temperature: float | None = option(None, "Sampling temperature.", ge=0)
    top_p: float | None = option(None, "Sampling top-p.", gt=0, le=1)
    top_k: int | None = option(None, "Sampling top-k.", ge=-1)
    min_p: float | None = option(None, "Sampling min-p.", ge=0, le=1)
    frequency_penalty: float | None = option(None, "Frequency penalty.", ge=-2, le=2)
    presence_penalty: float | None = option(None, "Presence penalty.", ge=-2, le=2)
    repetition_penalty: float | None = option(None, "Repetition penalty.", gt=0)

    @property
    def body(self) -> dict[str, float | int]:
        """The fields of a request that were set."""
        return {
            entry.name: value
            for entry in options(SamplingOptions)
            if (value := getattr(self, entry.name)) is not None
        }


@config
class TargetOptions:
    """Which server to load, and what it is sent."""

    GROUP: ClassVar[str] = "server"

    backend: Literal["openai", "vllm", "openai-chat"] = option(
        "openai", "Which API to speak: completions (openai, vllm) or chat (openai-chat)."
    )
    base_url: str | None = option(None, "URL of the server, instead of --host and --port.")
    host: str = option("127.0.0.1", "Host of the server.")
    port: int = option(8000, "Port of the server.", ge=1, le=65535)
    endpoint: str | None = option(None, "Path to post to.", auto="the one of --backend")
    header: list[str] = option([], "Further HTTP headers, each as KEY=VALUE.")
    insecure: bool = option(False, "Accept any TLS certificate.")
    model: str | None = option(
        None, "Name of the model, and of its tokenizer.", auto="the first that the server lists"
    )
    served_model_name: str | None = option(
        None, "Name to send in requests, where it is not --model."
    )
    tokenizer: str | None = option(
        None,
        "Tokenizer to make and count prompts with: demo, a directory, a .gguf file or a hub id.",
        auto="the model's",
    )
    trust_remote_code: bool = option(
        False, "Allow Python code that comes with a tokenizer to run here."
    )
    extra_body: dict[str, Any] = option({}, "JSON whose keys are added to every request.")
    logprobs: int | None = option(None, "Log-probabilities to ask for, per token.", ge=0)
    ignore_eos: bool = option(
        False, "Ask for all tokens whatever the model says; always so with --dataset-name random."
    )
    request_id_prefix: str = option(
        "", "What request ids begin with.", auto="bench- and eight random hex digits"
    )

    def __post_init__(self) -> None:
        if self.path.endswith("/chat/completions") != self.is_chat:
            raise UsageError(
                f"--endpoint {self.endpoint} does not fit --backend {self.backend}; "
                f"use one such as {CHAT if self.is_chat else COMPLETIONS}"
            )
        _pairs("--header", self.header)

    @property
    def is_chat(self) -> bool:
        """Whether requests are conversations."""
        return self.backend == "openai-chat"

    @property
    def path(self) -> str:
        """The path that requests are posted to."""
        return self.endpoint or (CHAT if self.is_chat else COMPLETIONS)

    @property
    def url(self) -> str:
        """The server's address without a path of the API."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.base_url or f"http://{host}:{self.port}").rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        """The headers of --header."""
        return _pairs("--header", self.header)


@config
class ServeOptions:
    """How the load is shaped, and what is reported."""

    GROUP: ClassVar[str] = "options"

    target: TargetOptions = field(default_factory=TargetOptions)
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    dataset_name: Literal["random", "sharegpt", "custom", "prefix_repetition"] = option(
        "random", "Where prompts come from.", group="dataset"
    )
    chat_template_kwargs: dict[str, Any] = option(
        {}, "custom: JSON of further variables of the chat template.", group="dataset"
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
    max_concurrency: int | None = option(None, "Requests in flight at most.", ge=1)
    ramp_up_strategy: Literal["linear", "exponential"] | None = option(
        None, "Let the rate grow in this way, instead of --request-rate."
    )
    ramp_up_start_rps: int | None = option(None, "Rate to begin with.", ge=1)
    ramp_up_end_rps: int | None = option(None, "Rate to end with.", ge=1)
    num_warmups: int = option(0, "Requests to send first that do not count.", ge=0)
    ready_check_timeout_sec: int = option(
        0, "Wait so long for the server to answer a first request; 0: do not ask.", ge=0
    )
    percentile_metrics: str = option(
        "ttft,tpot,itl", "Metrics to report, of ttft, tpot, itl and e2el."
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

    def __post_init__(self) -> None:
        self._check_ramp_up()
        if not self.metrics:
            raise UsageError("--percentile-metrics must name one of " + ", ".join(METRICS))
        if not all(0 <= percentile <= 100 for percentile in self.percentiles):
            raise UsageError(f"--metric-percentiles {self.metric_percentiles} must lie in [0, 100]")
        _pairs("--metadata", self.metadata)
        if not all(limit >= 0 for limit in self.goodput_limits.values()):
            raise UsageError("--goodput takes limits of 0 milliseconds or more")
        _check_dataset(self.dataset, self.dataset_name)

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

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics to report, in the order of the report."""
        asked = [word.strip() for word in self.percentile_metrics.split(",") if word.strip()]
        for word in asked:
            if word not in METRICS:
                raise UsageError(f"--percentile-metrics {word} is not one of {', '.join(METRICS)}")
        return tuple(name for name in METRICS if name in asked)

    @property
    def percentiles(self) -> tuple[float, ...]:
        """The percentiles to report."""
        try:
            return tuple(float(word) for word in self.metric_percentiles.split(","))
        except ValueError:
            raise UsageError(
                f"--metric-percentiles {self.metric_percentiles!r} is not a list such as 50,90,99"
            ) from None

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
        return _pairs("--metadata", self.metadata)


@config
class LatencyOptions:
    """What one batch is, and how often it is timed."""

    GROUP: ClassVar[str] = "options"

    input_len: int = option(32, "Prompt tokens of a request.", ge=1)
    output_len: int = option(128, "Output tokens of a request.", ge=1)
    batch_size: int = option(8, "Prompts generated together.", ge=1)
    n: int = option(1, "Sequences generated for each prompt.", ge=1)
    num_iters_warmup: int = option(10, "Batches to run first that do not count.", ge=0)
    num_iters: int = option(30, "Batches to time.", ge=1)
    output_json: str | None = option(None, "File to write the results to.")
    disable_detokenize: bool = option(False, "Leave token ids as they are: no text is made.")


@config
class ThroughputOptions:
    """What is generated, and by which engine."""

    GROUP: ClassVar[str] = "options"

    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    dataset_name: Literal["sharegpt", "random", "custom", "prefix_repetition"] = option(
        "sharegpt",
        "Where prompts come from; sharegpt without --dataset-path is random.",
        group="dataset",
    )
    prefix_len: int = option(
        0, "random: tokens that all prompts begin with.", ge=0, group="dataset"
    )
    num_warmups: int = option(0, "Prompts to run first that do not count.", ge=0)
    n: int = option(1, "Sequences generated for each prompt.", ge=1)
    async_engine: bool = option(False, "Use AsyncLLM instead of LLM.")
    output_json: str | None = option(None, "File to write the results to.")
    disable_detokenize: bool = option(False, "Leave token ids as they are: no text is made.")

    def __post_init__(self) -> None:
        if self.prefix_len and self.dataset.random_prefix_len:
            raise UsageError("--prefix-len and --random-prefix-len are one thing; give one of them")
        _check_dataset(self.dataset, self.dataset_kind)

    @property
    def dataset_kind(self) -> str:
        """The dataset's name once sharegpt without a file has become random."""
        is_default = self.dataset_name == "sharegpt" and self.dataset.dataset_path is None
        return "random" if is_default else self.dataset_name


def new_request_id_prefix() -> str:
    """A prefix that no other run uses."""
    return f"bench-{secrets.token_hex(4)}-"


def _check_dataset(dataset: DatasetOptions, name: str) -> None:
    if name in ("sharegpt", "custom") and dataset.dataset_path is None:
        raise UsageError(f"--dataset-name {name} needs --dataset-path FILE")
    if dataset.input_len is not None and name != "random":
        raise UsageError(f"--input-len is for --dataset-name random, not {name}")


def _pairs(flag: str, words: list[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key.strip() or not equals:
            raise UsageError(f"{flag} {word!r} is not KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs
