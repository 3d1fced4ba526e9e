"""From logits to tokens: greedy, by temperature alone, and with the usual filters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from kernels.case import Case, Shape
from vllm_lite.sample.sampler import Sampler
from vllm_lite.sample.states import SamplingStates, TokenTable
from vllm_lite.sampling_params import SamplingParams

ROWS = (1, 64)
LENGTH = 256
CHOICES = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8, seed=1),
    "top-k, top-p": SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=1),
    "top-p": SamplingParams(temperature=0.8, top_p=0.95, seed=1),
    "penalties, top-p": SamplingParams(
        temperature=0.8, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.2, seed=1
    ),
}


def cases(shape: Shape) -> Iterator[Case]:
    for name, params in CHOICES.items():
        for rows in ROWS:
            yield _case(name, params, rows, shape.vocab_size)


def _case(name: str, params: SamplingParams, rows: int, vocab_size: int) -> Case:
    # As peaked as a model's: few tokens are likely, and many are not.
    source = torch.randn(rows, vocab_size) * 3
    logits = source.clone()
    ids = np.random.default_rng(0).integers(vocab_size, size=(rows, LENGTH), dtype=np.int32)
    table = TokenTable(ids, np.full(rows, LENGTH // 2))
    states = SamplingStates(table, vocab_size, 0, torch.device("cpu"))
    for slot in range(rows):
        states.add(slot, params, [0])
    sampler, slots, ends = Sampler(table), np.arange(rows), np.full(rows, LENGTH - 1)
    return Case(
        f"sampling, {name}",
        f"{rows} x {vocab_size}",
        lambda: [lambda: sampler.choose(logits, states.batch(slots), ends)],
        logits.nbytes,
        0.0,
        "float32",
        # The sampler may write into what it is given.
        reset=lambda: logits.copy_(source),
    )
