"""Sampling state of every slot, and one batch's view of it.

A slot's parameters are unpacked once, when its request arrives. A batch's tensors are built once
and reused until the batch or a slot changes. Features that no request of a batch uses cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vllm_lite.kernels.reference.counter_rng import stream_key
from vllm_lite.kernels.transfer import to_device
from vllm_lite.sample.bias import (
    AllowedTokens,
    BadWords,
    Int32s,
    Int64s,
    LogitBias,
    MinTokens,
    TokenBias,
)
from vllm_lite.sample.logprobs import Candidates
from vllm_lite.sample.penalties import Penalties, PenaltyRow, SeenTokens
from vllm_lite.sampling_params import SamplingParams, SamplingType

Processor = AllowedTokens | BadWords | MinTokens | LogitBias | Penalties


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Every slot's tokens; the arrays belong to the worker and change under this view."""

    token_ids: Int32s  # [slots, L]: prompt, then outputs
    num_prompt_tokens: Int64s  # [slots]

    def outputs(self, slots: Int64s, ends: Int64s) -> list[Int32s]:
        """The generated ids of each of `slots` before the positions `ends`, as views."""
        starts = self.num_prompt_tokens[slots].tolist()
        rows = zip(slots.tolist(), starts, ends.tolist(), strict=True)
        return [self.token_ids[slot, start:end] for slot, start, end in rows]


@dataclass(frozen=True, slots=True)
class RandomRows:
    """Sampling parameters of each row of a batch, greedy rows included."""

    keys: Tensor  # [R] int64, of streams by position
    inverse_temperature: Tensor  # [R] float32; 0: greedy
    min_p: Tensor  # [R] float32; 0: off
    top_k: Tensor  # [R] int64; 0: off
    top_p: Tensor  # [R] float32; 1: off

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """All of it."""
        return self.keys, self.inverse_temperature, self.min_p, self.top_k, self.top_p

    def first(self, count: int) -> RandomRows:
        """The first rows, as views."""
        return RandomRows(*(column[:count] for column in self.columns))


@dataclass(frozen=True, slots=True)
class ReportingRows:
    """The M rows of a batch that want log-probabilities."""

    rows: list[int]
    index: Tensor  # [M] int64: the same, on the device
    candidates: list[Candidates]


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How to sample the R rows of one batch."""

    slots: Int64s  # [R]
    # In the order in which they apply.
    processors: tuple[Processor, ...]
    # None where all rows are greedy.
    random: RandomRows | None
    # None where no row wants log-probabilities.
    reporting: ReportingRows | None

    @property
    def reads_outputs(self) -> bool:
        """Whether a processor has to know the tokens generated so far, not only how many."""
        return any(processor.reads_outputs for processor in self.processors)

    @property
    def is_plain(self) -> bool:
        """Whether tokens alone are asked for, chosen from the model's own logits."""
        return not self.processors and self.reporting is None


@dataclass(frozen=True, slots=True)
class _Rare:
    """Less common sampling parameters of a slot; None where unused."""

    allowed: Int64s | None
    bad_words: list[list[int]] | None
    min_tokens: tuple[int, Int64s] | None
    bias: TokenBias | None
    penalties: tuple[float, float, float, SeenTokens] | None
    candidates: Candidates | None

    def is_used(self) -> bool:
        """Whether any of them is set."""
        fields = (self.allowed, self.bad_words, self.min_tokens, self.bias, self.penalties)
        return self.candidates is not None or any(field is not None for field in fields)


class SamplingStates:
    """Sampling choices by slot.

    `seed` is the engine's: requests without a seed of their own use streams of it.
    """

    def __init__(self, table: TokenTable, vocab_size: int, seed: int, device: torch.device) -> None:
        num_slots = len(table.num_prompt_tokens)
        self.table = table
        self._vocab_size = vocab_size
        self._seed = seed
        self._device = device
        self._num_added = 0
        self._is_random = np.zeros(num_slots, bool)
        self._temperature = np.ones(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int64)
        self._top_p = np.ones(num_slots, np.float32)
        self._min_p = np.zeros(num_slots, np.float32)
        self._keys = np.zeros(num_slots, np.uint64)
        self._rare: dict[int, _Rare] = {}
        self._batch: SamplingBatch | None = None

    def add(self, slot: int, params: SamplingParams, eos_token_ids: Iterable[int]) -> None:
        """Set `slot` up for a request whose tokens are already in the table."""
        self._batch = None
        self._is_random[slot] = params.sampling_type != SamplingType.GREEDY
        self._temperature[slot] = params.temperature
        self._top_k[slot] = min(params.top_k, self._vocab_size)
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._num_added += 1
        seed, stream = params.seed, 0
        if seed is None:
            seed, stream = self._seed, self._num_added
        self._keys[slot] = stream_key(seed, stream, int(self.table.num_prompt_tokens[slot]))
        rare = self._unpack(slot, params, eos_token_ids)
        if rare.is_used():
            self._rare[slot] = rare
        else:
            self._rare.pop(slot, None)

    def remove(self, slot: int) -> None:
        """Clear `slot`, but for its row of numbers, which the next `add` overwrites."""
        self._batch = None
        self._rare.pop(slot, None)

    def batch(self, slots: Int64s) -> SamplingBatch:
        """The sampling of rows 0.. that hold `slots` [R]; the same object while nothing changes."""
        if self._batch is None or self._batch.slots.tobytes() != slots.tobytes():
            self._batch = self._build(slots.copy())
        return self._batch

    def _unpack(self, slot: int, params: SamplingParams, eos: Iterable[int]) -> _Rare:
        allowed, bias, min_tokens, penalties = params.allowed_token_ids, None, None, None
        if params.logit_bias:
            items = {i: b for i, b in params.logit_bias.items() if i < self._vocab_size}
            values = np.fromiter(items.values(), np.float32, len(items))
            bias = TokenBias(np.fromiter(items, np.int64, len(items)), values)
        if params.min_tokens > 0:
            stop_ids = self._in_vocabulary({*eos, *(params.stop_token_ids or [])})
            min_tokens = (params.min_tokens, stop_ids) if len(stop_ids) else None
        factors = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        if factors != (1.0, 0.0, 0.0):
            # Only repetition looks at the prompt.
            length = int(self.table.num_prompt_tokens[slot]) if factors[0] != 1.0 else 0
            seen = SeenTokens(self.table.token_ids[slot, :length], self._vocab_size)
            penalties = (*factors, seen)
        words = [
            word
            for word in params.bad_words_token_ids or []
            if word and max(word) < self._vocab_size
        ]
        chosen = params.logprob_token_ids
        return _Rare(
            allowed=self._in_vocabulary(allowed) if allowed is not None else None,
            bad_words=words or None,
            min_tokens=min_tokens,
            bias=bias,
            penalties=penalties,
            candidates=params.logprobs if chosen is None else chosen,
        )

    def _in_vocabulary(self, token_ids: Iterable[int]) -> Int64s:
        ids = np.array(sorted(set(token_ids)), np.int64)
        return ids[ids < self._vocab_size]

    def _build(self, slots: Int64s) -> SamplingBatch:
        is_random = self._is_random[slots]
        rare = [
            (row, slot, self._rare[slot])
            for row, slot in enumerate(slots.tolist())
            if slot in self._rare
        ]
        candidates = {row: r.candidates for row, _, r in rare if r.candidates is not None}
        return SamplingBatch(
            slots=slots,
            processors=self._processors(rare),
            random=self._random_rows(slots, is_random) if is_random.any() else None,
            reporting=self._reporting_rows(candidates) if candidates else None,
        )

    def _reporting_rows(self, candidates: dict[int, Candidates]) -> ReportingRows:
        index = self._tensor(np.array(list(candidates), np.int64))
        return ReportingRows(list(candidates), index, list(candidates.values()))

    def _random_rows(self, slots: Int64s, is_random: npt.NDArray[np.bool_]) -> RandomRows:
        inverse_temperature = np.zeros(len(slots), np.float32)
        np.divide(1.0, self._temperature[slots], out=inverse_temperature, where=is_random)
        return RandomRows(
            keys=self._tensor(self._keys[slots].view(np.int64)),
            inverse_temperature=self._tensor(inverse_temperature),
            min_p=self._tensor(self._min_p[slots]),
            top_k=self._tensor(self._top_k[slots]),
            top_p=self._tensor(self._top_p[slots]),
        )

    def _processors(self, rare: list[tuple[int, int, _Rare]]) -> tuple[Processor, ...]:
        found: list[Processor] = []
        device = self._device
        allowed = [(row, r.allowed) for row, _, r in rare if r.allowed is not None]
        if allowed:
            found.append(AllowedTokens([r for r, _ in allowed], [i for _, i in allowed], device))
        words = [(row, r.bad_words) for row, _, r in rare if r.bad_words is not None]
        if words:
            found.append(BadWords([r for r, _ in words], [w for _, w in words], device))
        least = [(row, *r.min_tokens) for row, _, r in rare if r.min_tokens is not None]
        if least:
            rows, counts, ids = (list(column) for column in zip(*least, strict=True))
            found.append(MinTokens(rows, counts, ids, device))
        biases = [(row, r.bias) for row, _, r in rare if r.bias is not None]
        if biases:
            found.append(LogitBias([r for r, _ in biases], [b for _, b in biases], device))
        penalised = [
            PenaltyRow(row, slot, *r.penalties) for row, slot, r in rare if r.penalties is not None
        ]
        if penalised:
            found.append(Penalties(penalised))
        return tuple(found)

    def _tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        return to_device(array, self._device)
