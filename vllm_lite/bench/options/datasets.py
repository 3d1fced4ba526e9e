"""Options of datasets, the sources of a benchmark's prompts."""

from __future__ import annotations

import json
from typing import ClassVar

from vllm_lite.config.options.absent import rows
from vllm_lite.config.options.option import Option, config, option
from vllm_lite.errors import UsageError

# Name -> whether it needs --dataset-path.
DATASETS = {
    "random": False,
    "random-rerank": False,
    "sharegpt": True,
    "sonnet": True,
    "custom": True,
    "burstgpt": True,
    "prefix_repetition": False,
    "spec_bench": True,
    "timed_trace": True,
}
# vLLM's others.
ALL_DATASETS = (
    *DATASETS,
    *("random-mm", "hf", "custom_audio", "custom_image", "speed_bench"),
)
# Whose prompts become the first turn of a chat.
TEMPLATED = ("custom", "spec_bench", "sonnet")
DATASET_REMEDY = "use one of " + ", ".join(DATASETS) + " with a local file"
_WITH_INPUT_LEN = ("random", "random-rerank", "sonnet")


@config
class DatasetOptions:
    """The source of prompts."""

    ROWS: ClassVar[tuple[Option, ...]] = rows("datasets")

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
    random_batch_size: int = option(
        1,
        "random: prompts in one request, for a --backend that embeds; random-rerank: documents.",
        ge=1,
    )
    sharegpt_output_len: int | None = option(
        None, "sharegpt: output tokens; default: as many as the recorded answer.", ge=1
    )
    sonnet_input_len: int = option(550, "sonnet: prompt tokens, about.", ge=1)
    sonnet_output_len: int = option(150, "sonnet: output tokens.", ge=1)
    sonnet_prefix_len: int = option(200, "sonnet: tokens that all prompts begin with, about.", ge=0)
    custom_output_len: int = option(
        256, "custom: output tokens; -1: the dataset's output_tokens.", ge=-1
    )
    skip_chat_template: bool = option(
        False,
        "custom, spec_bench, sonnet: take prompts as they are. Otherwise each becomes the user's "
        "turn of a chat, written by the tokenizer's template, or by a chat backend's server.",
    )
    prefix_repetition_prefix_len: int = option(256, "prefix_repetition: tokens of a prefix.", ge=1)
    prefix_repetition_suffix_len: int = option(
        256, "prefix_repetition: tokens of a prompt after its prefix.", ge=1
    )
    prefix_repetition_num_prefixes: int = option(10, "prefix_repetition: different prefixes.", ge=1)
    prefix_repetition_output_len: int = option(128, "prefix_repetition: output tokens.", ge=1)
    spec_bench_output_len: int = option(256, "spec_bench: output tokens.", ge=1)
    spec_bench_category: str | None = option(
        None, "spec_bench: take this category only, such as coding.", auto="all"
    )
    timed_trace_chunk_hash_size: int = option(
        16, "timed_trace: tokens that one hash stands for.", ge=1
    )
    timed_trace_sec_multiplier: float = option(
        1.0, "timed_trace: seconds in one unit of its timestamps.", gt=0
    )
    timed_trace_label_timestamp: str = option("timestamp", "timed_trace: key of the time.")
    timed_trace_label_input_length: str = option(
        "input_length", "timed_trace: key of the prompt's length."
    )
    timed_trace_label_output_length: str = option(
        "output_length", "timed_trace: key of the output's length."
    )
    timed_trace_label_hash_ids: str = option("hash_ids", "timed_trace: key of the hashes.")

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


def check_dataset(dataset: DatasetOptions, name: str) -> None:
    """Raise UsageError where the options do not fit the dataset `name`."""
    if DATASETS[name] and dataset.dataset_path is None:
        raise UsageError(f"--dataset-name {name} needs --dataset-path FILE")
    if not DATASETS[name] and dataset.dataset_path is not None:
        raise UsageError(
            f"--dataset-name {name} reads no file; drop --dataset-path, or name the file's format"
        )
    if dataset.input_len is not None and name not in _WITH_INPUT_LEN:
        raise UsageError(
            f"--input-len is for --dataset-name {' and '.join(_WITH_INPUT_LEN)}, not {name}"
        )
    if dataset.random_batch_size > 1 and name not in ("random", "random-rerank"):
        raise UsageError(
            f"--random-batch-size is for --dataset-name random and random-rerank, not {name}"
        )
