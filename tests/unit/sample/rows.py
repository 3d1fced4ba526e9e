"""Requests in slots, ready to sample: what a worker would keep, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from vllm_lite.core.step import TokenLogprobs
from vllm_lite.sample.sampler import Sampler, rows_without_token
from vllm_lite.sample.states import SamplingStates, TokenTable
from vllm_lite.sample.token_mask import TokenMask
from vllm_lite.sampling_params import SamplingParams

EOS = [2]


class Case(NamedTuple):
    """One request and what it has so far."""

    params: SamplingParams
    prompt: Sequence[int] = (5, 6, 7)
    output: Sequence[int] = ()


class SamplerOutput(NamedTuple):
    """The sampled tokens of rows."""

    token_ids: list[int]
    failed_rows: list[int]
    stuck_rows: list[int]
    logprobs: dict[int, TokenLogprobs]


class Rows:
    """Slots over one vocabulary."""

    def __init__(
        self, vocab_size: int, mode: str = "raw_logprobs", seed: int = 0, num_slots: int = 64
    ) -> None:
        self.table = TokenTable(
            np.zeros((num_slots, 4096), np.int32),
            np.zeros(num_slots, np.int64),
        )
        self.num_tokens = np.zeros(num_slots, np.int64)
        self.states = SamplingStates(self.table, vocab_size, seed, torch.device("cpu"))
        self.sampler = Sampler(self.table, mode)

    def put(self, slot: int, case: Case) -> None:
        """Fill a slot."""
        tokens = [*case.prompt, *case.output]
        self.table.token_ids[slot, : len(tokens)] = tokens
        self.table.num_prompt_tokens[slot] = len(case.prompt)
        self.num_tokens[slot] = len(tokens)
        self.states.add(slot, case.params, EOS)

    def sample(
        self, logits: torch.Tensor, slots: Sequence[int], mask: TokenMask | None = None
    ) -> SamplerOutput:
        """One token for each slot; `logits` are left as they are."""
        chosen = np.array(slots, np.int64)
        batch = self.states.batch(chosen)
        choice = self.sampler.choose(logits.clone(), batch, self.num_tokens[chosen], mask)
        failed, stuck = rows_without_token(choice.largest.numpy())
        found = choice.logprobs.read([tensor.numpy() for tensor in choice.logprobs.tensors])
        logprobs = dict(zip(choice.logprob_rows, found, strict=True))
        return SamplerOutput(choice.token_ids.tolist(), failed, stuck, logprobs)

    def append(self, slots: Sequence[int], token_ids: Sequence[int]) -> None:
        """Make sampled tokens known."""
        for slot, token_id in zip(slots, token_ids, strict=True):
            self.table.token_ids[slot, self.num_tokens[slot]] = token_id
            self.num_tokens[slot] += 1


def sample_once(
    logits: torch.Tensor, cases: Sequence[Case], mode: str = "raw_logprobs"
) -> SamplerOutput:
    """Sample row i of `logits` for case i."""
    rows = Rows(logits.shape[1], mode)
    for slot, case in enumerate(cases):
        rows.put(slot, case)
    return rows.sample(logits, range(len(cases)))
