"""Prompts from a rule: runs of the vocabulary, suffixes behind common prefixes, and the lengths and
times of a recorded load.

Texts are not recorded, so they are random; shared prefixes stay shared.
"""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np

from vllm_lite.bench.datasets.sample import Sample, Source, read_rows, read_text, whole_number
from vllm_lite.errors import UsageError

_MODEL, _PROMPT, _ANSWER = "Model", "Request tokens", "Response tokens"
_GPT_4 = "GPT-4"
# Keeps the parts of a prompt that no hash stands for apart from all hashes.
_OWN = 1 << 64


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
    texts, lengths = [], []
    for index in source.numbers():
        ids = [*prefix, *maker.run(int(starts[index]) + index, inputs[index])]
        text, real = maker.fit(ids, rng)
        texts.append(text)
        lengths.append(len(real) + maker.num_added)
    size = options.random_batch_size
    if size == 1:
        return [Sample(*one) for one in zip(texts, lengths, outputs, strict=True)]
    return [
        Sample(texts[at : at + size], sum(lengths[at : at + size]), outputs[at])
        for at in range(0, count, size)
    ]


def random_rerank_samples(source: Source) -> list[Sample]:
    """A random query, about half of the length, and random documents, some to a request."""
    options, maker = source.options, source.maker
    rng = np.random.default_rng(source.seed)
    ratio, length = options.range_ratios[0], options.input_len or options.random_input_len
    room = max(length - maker.num_added, 2)
    query, ids = maker.fit(maker.draw(_lengths(room // 2, ratio, 1, rng)[0], rng), rng)
    documents, counts = [], []
    for count in _lengths(max(room - len(ids), 1), ratio, options.num_prompts, rng):
        text, real = maker.fit(maker.draw(count, rng), rng)
        documents.append(text)
        counts.append(len(ids) + len(real) + maker.num_added)
    size = options.random_batch_size
    return [
        Sample([query, *documents[at : at + size]], sum(counts[at : at + size]), 0)
        for at in range(0, len(documents), size)
    ]


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
    for index in source.numbers():
        suffix = maker.draw(options.prefix_repetition_suffix_len, rng)
        text, real = maker.fit([*prefixes[index * num_prefixes // count], *suffix], rng)
        samples.append(Sample(text, len(real) + maker.num_added, output))
    return source.shuffled(samples)


def _lengths(length: int, ratio: float, count: int, rng: np.random.Generator) -> list[int]:
    low = max(math.floor(length * (1 - ratio)), 1)
    high = math.ceil(length * (1 + ratio))
    return [int(value) for value in rng.integers(low, high + 1, size=count)]


def burstgpt_samples(source: Source) -> list[Sample]:
    """Random rows of a BurstGPT file that GPT-4 answered."""
    options, maker = source.options, source.maker
    reader = csv.DictReader(io.StringIO(read_text(source.path)))
    missing = {_MODEL, _PROMPT, _ANSWER} - set(reader.fieldnames or ())
    if missing:
        raise UsageError(f"{source.path} has no column {', '.join(sorted(missing))}")
    lengths = []
    for row in reader:
        if row[_MODEL] != _GPT_4:
            continue
        try:
            prompt, answer = int(row[_PROMPT]), int(row[_ANSWER])
        except (TypeError, ValueError):
            where = f"{source.path}, line {reader.line_num}"
            raise UsageError(f"{where} has no whole numbers of tokens") from None
        if prompt > 0 and answer > 0:
            lengths.append((prompt, answer))
    if not lengths:
        raise UsageError(f"{source.path} holds no answered request to {_GPT_4}")
    rng = np.random.default_rng(source.seed)
    count = options.num_prompts if options.oversample else min(options.num_prompts, len(lengths))
    chosen = rng.choice(len(lengths), size=count, replace=count > len(lengths))
    samples = []
    for index, row_index in enumerate(chosen):
        prompt, answer = lengths[row_index]
        text, real = maker.fit(maker.run(index, max(prompt - maker.num_added, 1)), rng)
        samples.append(Sample(text, len(real) + maker.num_added, options.output_len or answer))
    return samples


def timed_trace_samples(source: Source) -> list[Sample]:
    """The first rows of a JSON-lines trace as token ids: equal hashes become equal tokens."""
    options = source.options
    samples: list[Sample] = []
    first = 0.0
    for where, row in read_rows(source.path):
        if len(samples) == options.num_prompts:
            break
        length = whole_number(row, options.timed_trace_label_input_length, where)
        output = whole_number(row, options.timed_trace_label_output_length, where)
        time = row.get(options.timed_trace_label_timestamp)
        if isinstance(time, bool) or not isinstance(time, int | float):
            raise UsageError(f'{where} has no number under "{options.timed_trace_label_timestamp}"')
        seconds = time * options.timed_trace_sec_multiplier
        if not samples:
            first = seconds
        elif seconds - first < samples[-1].at:
            raise UsageError(f"{where} is earlier than the line before it; sort the trace by time")
        ids = _trace_ids(source, row, length, where, len(samples))
        samples.append(Sample(ids, length, options.output_len or output, seconds - first))
    if not samples:
        raise UsageError(f"{source.path} holds no request")
    return samples


def _trace_ids(
    source: Source, row: dict[str, Any], length: int, where: str, number: int
) -> list[int]:
    label, size = (
        source.options.timed_trace_label_hash_ids,
        source.options.timed_trace_chunk_hash_size,
    )
    hashes = row.get(label, [])
    if not isinstance(hashes, list) or not all(isinstance(one, int) and one >= 0 for one in hashes):
        raise UsageError(f'{where} has no list of whole numbers under "{label}"')
    ids: list[int] = []
    for one in [*hashes, *[_OWN + number] * (-(-length // size) - len(hashes))]:
        wanted = min(size, length - len(ids))
        if wanted < 1:
            break
        # A chunk's beginning is the same however much of it a prompt has.
        rng = np.random.default_rng([source.seed, one, len(ids) if one >= _OWN else 0])
        ids += source.maker.draw(size, rng)[:wanted]
    return ids
