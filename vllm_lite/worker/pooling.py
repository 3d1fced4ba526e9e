"""Answers of pooling requests: rows of hidden states, gathered step by step, behind a head.

A prompt's row is its last or first hidden state, the largest numbers, or a mean, whose sum is
float32 and taken in order. Each row is computed by itself, so that neither chunks nor the batch
change its bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vllm_lite.config.pooling import BOTH, PoolingFacts
from vllm_lite.core.step import ModelRunnerOutput, Pooled
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.transfer import to_device
from vllm_lite.models.interfaces import PoolingModel
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.worker.request_states import PoolingProgress, RequestStates
from vllm_lite.worker.step_plan import Int32s, StepPlan

UNSOUND_VECTOR = "the model gave this request no usable answer: it is not finite"

Floats = npt.NDArray[np.float32]
# What sums of hidden states are divided by, by the numbers of a prompt's tokens and of the first
# ones that are left out.
_DIVISORS: dict[str, Callable[[int, int], float]] = {
    "MEAN": lambda count, out: count - out,
    "MEAN_SQRT": lambda count, out: math.sqrt(count - out),
    "WEIGHTED_MEAN": lambda count, out: (count * (count + 1) - out * (out + 1)) / 2,
}
# Tokens whose logits of all words are held at a time.
_MOST_LOGITS = 64


@dataclass(slots=True)
class _Step:
    """The requests of a step: lists, since each operation on an array of a few costs more."""

    request_ids: list[str]
    slots: list[int]
    # Position of each request's first token here, its tokens here, and their end in the step.
    starts: list[int]
    counts: list[int]
    ends: list[int]
    # Tokens of whole prompts, and whether they end here.
    lengths: list[int]
    is_last: list[bool]
    # None for a request that does not pool.
    progress: list[PoolingProgress | None]
    # Of whole prompts, the first tokens that their rows leave out, and those of them here.
    left_out: list[int]
    left_out_here: list[int]

    @classmethod
    def of(cls, plan: StepPlan, states: RequestStates) -> _Step:
        slots, starts, counts = plan.slots.tolist(), plan.starts.tolist(), plan.counts.tolist()
        lengths = states.tokens.num_prompt_tokens[plan.slots].tolist()
        is_last = [s + c == n for s, c, n in zip(starts, counts, lengths, strict=True)]
        ends, progress = list(accumulate(counts)), list(map(states.pooling.get, slots))
        left_out = [0 if own is None else own.params.num_uncounted_tokens for own in progress]
        here = [min(max(n - s, 0), c) for n, s, c in zip(left_out, starts, counts, strict=True)]
        request_ids = plan.request_ids
        return cls(
            request_ids, slots, starts, counts, ends, lengths, is_last, progress, left_out, here
        )


@dataclass(slots=True)
class _Rows:
    """Rows of hidden states that requests with equal parameters have in a step."""

    params: PoolingParams
    # Requests of the step, how many hidden states each has here, and their places in the step.
    requests: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


class Pooler:
    """Answers the requests of steps once their prompts are computed."""

    def __init__(self, model: PoolingModel, facts: PoolingFacts) -> None:
        self._model = model
        self._facts = facts

    def collect(
        self, hidden: Tensor, states: RequestStates, plan: StepPlan, output: ModelRunnerOutput
    ) -> None:
        """Take in a step's hidden states [T, N], request by request; enter what is answered.

        The host waits for the numbers.
        """
        step = _Step.of(plan, states)
        prompts = self._prompt_rows(hidden, step)
        kinds: dict[tuple[object, ...], _Rows] = {}
        for row, params, places in self._wanted(states, step):
            if params.task == BOTH:
                values = self._both(hidden, prompts, row, places, params)
                self._enter(values, _Rows(params, [row], [1]), step, output)
                continue
            kind = (
                params.task,
                params.use_activation,
                params.dimensions,
                *(params.returned_token_ids or ()),
            )
            rows = kinds.setdefault(kind, _Rows(params))
            rows.requests.append(row)
            rows.counts.append(len(places))
            rows.places += places
        for rows in kinds.values():
            params = rows.params
            found = hidden if params.is_per_token or prompts is None else prompts
            values = np.empty((0, self._width(params)), np.float32)
            if rows.places and self._takes_largest and not params.is_per_token:
                values = self._largest(hidden, rows)
            elif rows.places:
                values = self._answers(_taken(found, rows.places), params)
            self._enter(values, rows, step, output)

    def _wanted(
        self, states: RequestStates, step: _Step
    ) -> Iterator[tuple[int, PoolingParams, list[int]]]:
        """Requests, by their rows in the step, and the places of the rows that answer them."""
        by_request = self._facts.seq_pooling_type not in ("LAST", "MAX")
        for row, progress in enumerate(step.progress):
            if progress is None:
                continue
            params, end, count = progress.params, step.ends[row], step.counts[row]
            if params.is_per_token or params.task == BOTH:
                start = step.starts[row]
                ids = states.tokens.token_ids[step.slots[row], start : start + count]
                answers = self._answering(ids, params, start == 0, step.is_last[row])
                yield row, params, np.arange(end - count, end)[answers].tolist()
            elif step.is_last[row]:
                whole = list(range(end - count, end)) if self._takes_largest else [end - 1]
                yield row, params, [row] if by_request else whole

    def _answering(
        self, ids: Int32s, params: PoolingParams, is_first: bool, is_last: bool
    ) -> npt.NDArray[np.bool_]:
        """Of a prompt's tokens in the step: whether they have answers, for a task of tokens."""
        facts, tag = self._facts, params.step_tag_id
        if tag is not None or facts.answering_token_ids:
            return np.isin(ids, facts.answering_token_ids if tag is None else tag)
        answers = np.ones(len(ids), np.bool_)
        task = params.task or facts.default_task
        first, last = facts.omitted.get("token_classify" if task == BOTH else task, (-1, -1))
        answers[0] &= not (is_first and ids[0] == first)
        answers[-1] &= not (is_last and ids[-1] == last)
        return answers

    def _both(
        self,
        hidden: Tensor,
        prompts: Tensor | None,
        row: int,
        places: list[int],
        params: PoolingParams,
    ) -> Floats:
        """A prompt's vector, and behind it the weights of its tokens, as one row.

        Of encoders, whose prompts are whole in a step.
        """
        assert prompts is not None
        vector = self._answers(
            prompts[row : row + 1], msgspec.structs.replace(params, task="embed")
        )
        if not places:
            return vector
        own = hidden[_index(places, hidden)]
        weights = self._answers(own, msgspec.structs.replace(params, task="token_classify"))
        return np.concatenate((vector, weights.reshape(1, -1)), axis=1)

    @property
    def _takes_largest(self) -> bool:
        return self._facts.seq_pooling_type == "MAX"

    def _width(self, params: PoolingParams) -> int:
        """Numbers of an answer."""
        if "classify" not in (params.task or self._facts.default_task):
            return params.dimensions or self._facts.size
        return len(params.returned_token_ids or ()) or self._facts.num_labels

    def _largest(self, hidden: Tensor, rows: _Rows) -> Floats:
        """The weight of each word for each of the requests `rows`, of all of their tokens.

        It is log(1 + x) of the largest logit x, or 0 (SPLADE). Few tokens at a time: there is a
        number for each word.
        """
        weights, first = [], 0
        for count in rows.counts:
            largest = np.zeros(self._facts.size, np.float32)
            for start in range(first, first + count, _MOST_LOGITS):
                places = rows.places[start : min(start + _MOST_LOGITS, first + count)]
                logits = self._model.pooled("embed", hidden[_index(places, hidden)])
                largest = np.maximum(largest, logits.amax(0).cpu().numpy())
            weights.append(np.log1p(largest))
            first += count
        rows.counts = [1] * len(rows.counts)
        return np.stack(weights)

    def _prompt_rows(self, hidden: Tensor, step: _Step) -> Tensor | None:
        """Gather a row [R, N] for each request: so far, or whole where its prompt ends here."""
        kind, whose = self._facts.seq_pooling_type, step.progress
        if kind in ("LAST", "MAX") or all(p is None or p.params.is_per_token for p in whose):
            return None
        if kind == "CLS":
            firsts = [end - count for end, count in zip(step.ends, step.counts, strict=True)]
            rows = hidden[_index(firsts, hidden)]
        else:
            empty = -torch.inf if kind == "MAX_STATE" else 0.0
            rows = hidden.new_full((len(whose), hidden.shape[1]), empty, dtype=torch.float32)
        for row, progress in enumerate(whose):
            if progress is not None and progress.row is not None:
                rows[row] = progress.row
        if kind == "MAX_STATE":
            for row, end in enumerate(step.ends):
                first = end - step.counts[row] + step.left_out_here[row]
                if first < end:
                    torch.maximum(rows[row], hidden[first:end].amax(0), out=rows[row])
        elif kind != "CLS":
            _add_states(rows, hidden, step, is_weighted=kind == "WEIGHTED_MEAN")
        for row, progress in enumerate(whose):
            if progress is not None and not step.is_last[row]:
                progress.row = rows[row].clone()
        if (divisor := _DIVISORS.get(kind)) is not None:
            own = zip(step.lengths, step.left_out, strict=True)
            divisors = np.array([[divisor(*numbers)] for numbers in own], np.float32)
            rows /= to_device(divisors, hidden.device)
        return rows

    def _answers(self, rows: Tensor, params: PoolingParams) -> Floats:
        """Hidden states [K, N] -> answers [K, M]."""
        facts, task = self._facts, params.task or self._facts.default_task
        values: Floats = self._model.pooled(task, rows).cpu().numpy()
        if "classify" not in task:
            values = values[:, : params.dimensions]
            return _normalized(values) if params.use_activation else values
        if params.returned_token_ids:
            values = values[:, params.returned_token_ids]
        if (facts.logit_mean, facts.logit_sigma) != (0.0, 1.0):
            shifted = values - np.float32(facts.logit_mean)
            values = shifted / np.float32(facts.logit_sigma)
        if not params.use_activation or facts.activation == "identity":
            return values
        is_softmax = facts.activation == "softmax" and values.shape[1] > 1
        return _softmax(values) if is_softmax else _sigmoid(values)

    def _enter(self, values: Floats, rows: _Rows, step: _Step, output: ModelRunnerOutput) -> None:
        is_sound: list[bool] = np.logical_and.reduce(np.isfinite(values), axis=1).tolist()
        end = 0
        for row, count in zip(rows.requests, rows.counts, strict=True):
            first, end = end, end + count
            request_id, progress = step.request_ids[row], step.progress[row]
            assert progress is not None
            progress.answers.append(values[first:end].tobytes())
            if not all(is_sound[first:end]):
                output.errors[request_id] = UNSOUND_VECTOR
            elif step.is_last[row]:
                output.pooled[request_id] = Pooled(b"".join(progress.answers), values.shape[1])


def _add_states(rows: Tensor, hidden: Tensor, step: _Step, *, is_weighted: bool) -> None:
    """Add to each request's row [N] its hidden states; if weighted, times their places from 1."""
    bounds = np.array([0, *step.ends], np.int32)
    if is_weighted:
        firsts = np.repeat(np.array(step.starts) + 1 - bounds[:-1], step.counts)
        places = (firsts + np.arange(bounds[-1])).astype(np.float32)
        weights = to_device(places, hidden.device).unsqueeze(1)
        hidden = hidden[: len(places)].float() * weights
    if not any(step.left_out_here):
        ops().segment_sum(hidden, to_device(bounds, hidden.device), rows)
        return
    # What is left out is a segment of its own before each request's.
    firsts = bounds[:-1] + np.array(step.left_out_here, np.int32)
    bounds = np.append(np.stack((bounds[:-1], firsts), axis=1).ravel(), bounds[-1:])
    sums = torch.zeros_like(rows).repeat_interleave(2, dim=0)
    sums[1::2] = rows
    rows.copy_(ops().segment_sum(hidden, to_device(bounds, hidden.device), sums)[1::2])


def _taken(found: Tensor, places: list[int]) -> Tensor:
    """Rows of `found`, which mostly are all of them."""
    return found if places == list(range(len(found))) else found[_index(places, found)]


def _index(places: list[int], hidden: Tensor) -> Tensor:
    return to_device(np.array(places, np.int64), hidden.device)


def _normalized(values: Floats) -> Floats:
    squares = np.square(values, dtype=np.float64).sum(axis=1, keepdims=True)
    lengths: Floats = np.maximum(np.sqrt(squares), 1e-12).astype(np.float32)
    return values / lengths


def _softmax(values: Floats) -> Floats:
    powers = np.exp(values.astype(np.float64) - values.max(axis=1, keepdims=True))
    shares: Floats = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares


def _sigmoid(values: Floats) -> Floats:
    # Of the smaller side, whose power does not overflow.
    powers = np.exp(-np.abs(values.astype(np.float64)))
    shares: Floats = (np.where(values >= 0, 1.0, powers) / (1.0 + powers)).astype(np.float32)
    return shares
