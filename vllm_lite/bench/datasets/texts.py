"""Prompts that people wrote, from local files: ShareGPT, Spec-Bench, sonnets and one's own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from vllm_lite.bench.datasets.sample import (
    Sample,
    Source,
    read_json,
    read_rows,
    read_text,
    whole_number,
)
from vllm_lite.errors import UsageError

# What ShareGPT's conversations are kept for: neither trivial nor too long for a context of 2048.
_MIN_TOKENS, _MAX_PROMPT, _MAX_TOTAL = 4, 1024, 2048
_SONNET_TASK = "Write a new poem that borrows from as many of these lines as you can:\n"


def sharegpt_samples(source: Source) -> list[Sample]:
    """First question and answer of each conversation of a ShareGPT file."""
    options, maker = source.options, source.maker
    talks = read_json(source.path)
    if not isinstance(talks, list):
        raise UsageError(f"{source.path} is not a list of conversations")
    pairs = [pair for talk in talks if (pair := _first_turns(talk)) is not None]
    fixed = options.output_len or options.sharegpt_output_len
    samples: list[Sample] = []
    for question, answer in source.shuffled(pairs):
        if len(samples) == options.num_prompts:
            break
        length = maker.count(question) + maker.num_added
        output = maker.count(answer) if fixed is None else fixed
        is_short = length < _MIN_TOKENS or (fixed is None and output < _MIN_TOKENS)
        if not is_short and length <= _MAX_PROMPT and length + output <= _MAX_TOTAL:
            samples.append(Sample(question, length, output))
    return source.fill_up(samples)


def custom_samples(source: Source) -> list[Sample]:
    """The prompts of a JSON-lines file: `prompt`, and `output_tokens` where lengths differ."""
    options = source.options
    output = options.output_len or options.custom_output_len
    rows = []
    for where, row in read_rows(source.path):
        if not isinstance(row.get("prompt"), str):
            raise UsageError(f'{where} has no text under "prompt"')
        own = output if output != -1 else whole_number(row, "output_tokens", where)
        rows.append((row["prompt"], own))
    listed = source.shuffled(rows)[: options.num_prompts]
    return source.fill_up([source.text_sample(prompt, length) for prompt, length in listed])


def spec_bench_samples(source: Source) -> list[Sample]:
    """The first turn of each question of a Spec-Bench file, of one category or of all."""
    options = source.options
    wanted = options.spec_bench_category
    prompts, categories = [], set()
    for where, row in read_rows(source.path):
        turns = row.get("turns")
        if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
            raise UsageError(f'{where} has no list of texts under "turns"')
        categories.add(str(row.get("category")))
        if wanted is None or row.get("category") == wanted:
            prompts.append(turns[0])
    if not prompts and categories:
        raise UsageError(
            f"--spec-bench-category {wanted} is not in {source.path}; "
            f"it has {', '.join(sorted(categories))}"
        )
    output = options.output_len or options.spec_bench_output_len
    listed = source.shuffled(prompts)[: options.num_prompts]
    return source.fill_up([source.text_sample(prompt, output) for prompt in listed])


def sonnet_samples(source: Source) -> list[Sample]:
    """Lines of a poem, the first of them the same in all prompts; lengths hold to a line."""
    options, maker = source.options, source.maker
    lines = [line + "\n" for line in read_text(source.path).splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{source.path} holds no lines")
    per_line = sum(maker.count(line) for line in lines) / len(lines)
    wanted = options.input_len or options.sonnet_input_len
    task = source.text_sample(_SONNET_TASK, 1).prompt_tokens
    num_prefix = max(round((options.sonnet_prefix_len - task) / per_line), 0)
    num_own = round((wanted - task) / per_line) - num_prefix
    if num_own < 1:
        raise UsageError(
            f"--sonnet-input-len {wanted} leaves no line after --sonnet-prefix-len "
            f"{options.sonnet_prefix_len} and the {task} tokens of the task; raise it"
        )
    if num_prefix + num_own > len(lines):
        raise UsageError(
            f"{source.path} has {len(lines)} lines, a prompt of {wanted} tokens takes "
            f"{num_prefix + num_own}; lower --sonnet-input-len"
        )
    rng = random.Random(source.seed)
    prefix = lines[:num_prefix]
    output = options.output_len or options.sonnet_output_len
    return [
        source.text_sample(
            _SONNET_TASK + "".join([*prefix, *rng.sample(lines[num_prefix:], num_own)]), output
        )
        for _ in range(options.num_prompts)
    ]


def _first_turns(talk: Any) -> tuple[str, str] | None:
    turns = talk.get("conversations") if isinstance(talk, Mapping) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    question, answer = (t.get("value") if isinstance(t, Mapping) else None for t in turns[:2])
    if not isinstance(question, str) or not isinstance(answer, str):
        return None
    return question, answer
