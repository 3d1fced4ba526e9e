"""Prompts from a rule: runs of the vocabulary, and suffixes behind common prefixes."""

from __future__ import annotations

import math
import random

import numpy as np

from vllm_lite.bench.datasets.sample import Sample, Source
from vllm_lite.errors import UsageError


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
    if not options.disable_shuffle:
        random.Random(source.seed).shuffle(samples)
    return samples


def _lengths(length: int, ratio: float, count: int, rng: np.random.Generator) -> list[int]:
    low = max(math.floor(length * (1 - ratio)), 1)
    high = math.ceil(length * (1 + ratio))
    return [int(value) for value in rng.integers(low, high + 1, size=count)]
