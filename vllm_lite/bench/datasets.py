"""What a load asks: prompts with the lengths to expect, from a rule or from a local file.

Each dataset is a function of its options, a PromptMaker and a seed; the same seed gives the
same prompts. Knows no server.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vllm_lite.bench.options import DatasetOptions
from vllm_lite.bench.prompts import PromptMaker
from vllm_lite.errors import UsageError

# What ShareGPT's conversations are kept for: neither trivial nor too long for a context of 2048.
_MIN_TOKENS, _MAX_PROMPT, _MAX_TOTAL = 4, 1024, 2048


@dataclass(frozen=True, slots=True)
class Sample:
    """One request of a load: its text, and prompt and output length in tokens."""

    prompt: str
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Source:
    """What datasets are made with; `as_chat` writes a prompt as a conversation's first turn."""

    options: DatasetOptions
    maker: PromptMaker
    seed: int
    as_chat: Callable[[str], str] | None = None


def load_samples(name: str, source: Source) -> list[Sample]:
    """The requests of dataset `name`; raises UsageError."""
    return _DATASETS[name](source)


def random_samples(source: Source) -> list[Sample]:
    """Runs of the vocabulary at random places, after a common prefix."""
    options, maker = source.options, source.maker
    rng = np.random.default_rng(source.seed)
    count = options.num_prompts
    input_ratio, output_ratio = options.range_ratios
    length = max((options.input_len or options.random_input_len) - maker.num_added, 1)
    inputs = _lengths(length, input_ratio, count, rng)
    outputs = _lengths(options.output_len or options.random_output_len, output_ratio, count, rng)
    starts = rng.integers(0, len(maker.ids), size=count)
    _, prefix = maker.fit(maker.draw(options.random_prefix_len, rng), rng)
    samples = []
    for index in range(count):
        ids = [*prefix, *maker.run(int(starts[index]) + index, inputs[index])]
        text, real = maker.fit(ids, rng)
        samples.append(Sample(text, len(real) + maker.num_added, outputs[index]))
    return samples


def prefix_repetition_samples(source: Source) -> list[Sample]:
    """Random suffixes behind a few random prefixes, each prefix equally often."""
    options, maker = source.options, source.maker
    count, num_prefixes = options.num_prompts, options.prefix_repetition_num_prefixes
    if count < num_prefixes:
        raise UsageError(
            f"--num-prompts {count} is less than --prefix-repetition-num-prefixes {num_prefixes}"
        )
    rng = np.random.default_rng(source.seed)
    prefixes = [
        maker.fit(maker.draw(options.prefix_repetition_prefix_len, rng), rng)[1]
        for _ in range(num_prefixes)
    ]
    output = options.output_len or options.prefix_repetition_output_len
    samples = []
    for index in range(count):
        suffix = maker.draw(options.prefix_repetition_suffix_len, rng)
        text, real = maker.fit([*prefixes[index * num_prefixes // count], *suffix], rng)
        samples.append(Sample(text, len(real) + maker.num_added, output))
    if not options.disable_shuffle:
        random.Random(source.seed).shuffle(samples)
    return samples


def sharegpt_samples(source: Source) -> list[Sample]:
    """First question and answer of each conversation of a ShareGPT file."""
    options, maker = source.options, source.maker
    path = _path(options)
    talks = _read_json(path)
    if not isinstance(talks, list):
        raise UsageError(f"{path} is not a list of conversations")
    pairs = [pair for talk in talks if (pair := _first_turns(talk)) is not None]
    if not options.disable_shuffle:
        random.Random(source.seed).shuffle(pairs)
    fixed = options.output_len or options.sharegpt_output_len
    samples: list[Sample] = []
    for question, answer in pairs:
        if len(samples) == options.num_prompts:
            break
        length = maker.count(question) + maker.num_added
        output = maker.count(answer) if fixed is None else fixed
        is_short = length < _MIN_TOKENS or (fixed is None and output < _MIN_TOKENS)
        if not is_short and length <= _MAX_PROMPT and length + output <= _MAX_TOTAL:
            samples.append(Sample(question, length, output))
    return _fill_up(samples, source)


def custom_samples(source: Source) -> list[Sample]:
    """The prompts of a JSON-lines file: `prompt`, and `output_tokens` where lengths differ."""
    options, maker = source.options, source.maker
    path = _path(options)
    output = options.output_len or options.custom_output_len
    rows = []
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        if line.strip():
            rows.append(_custom_row(line, output, f"{path}, line {number}"))
    if not options.disable_shuffle:
        random.Random(source.seed).shuffle(rows)
    samples = []
    for prompt, length in rows[: options.num_prompts]:
        # A template writes itself what the tokenizer would add to a bare text.
        text = source.as_chat(prompt) if source.as_chat else prompt
        added = 0 if source.as_chat else maker.num_added
        samples.append(Sample(text, maker.count(text) + added, length))
    return _fill_up(samples, source)


def _custom_row(line: str, output: int, where: str) -> tuple[str, int]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        raise UsageError(f'{where} has no text under "prompt"')
    if output != -1:
        return row["prompt"], output
    own = row.get("output_tokens")
    if isinstance(own, bool) or not isinstance(own, int) or own < 1:
        raise UsageError(f'{where} has no whole number under "output_tokens"; --output-len sets it')
    return row["prompt"], own


def _lengths(length: int, ratio: float, count: int, rng: np.random.Generator) -> list[int]:
    low = max(math.floor(length * (1 - ratio)), 1)
    high = math.ceil(length * (1 + ratio))
    return [int(value) for value in rng.integers(low, high + 1, size=count)]


def _first_turns(talk: Any) -> tuple[str, str] | None:
    turns = talk.get("conversations") if isinstance(talk, Mapping) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    question, answer = (t.get("value") if isinstance(t, Mapping) else None for t in turns[:2])
    if not isinstance(question, str) or not isinstance(answer, str):
        return None
    return question, answer


def _fill_up(samples: Sequence[Sample], source: Source) -> list[Sample]:
    """As many samples as were asked for, some of them repeated at random."""
    if not samples:
        raise UsageError(f"{source.options.dataset_path} holds no prompt that can be used")
    missing = source.options.num_prompts - len(samples)
    if missing <= 0 or not source.options.oversample:
        return list(samples)
    return [*samples, *random.Random(source.seed).choices(samples, k=missing)]


def _path(options: DatasetOptions) -> Path:
    return Path(options.dataset_path or "").expanduser()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"--dataset-path {path}: {reason}") from None


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_text(path))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None


_DATASETS: dict[str, Callable[[Source], list[Sample]]] = {
    "random": random_samples,
    "sharegpt": sharegpt_samples,
    "custom": custom_samples,
    "prefix_repetition": prefix_repetition_samples,
}
