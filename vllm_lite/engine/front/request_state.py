"""The front end's state of a request and its choices: text, tokens and log-probabilities.

Invariant: the deltas of a choice, joined, are its cumulative output.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from vllm_lite.core.step import EngineCoreOutput, Pooled, TokenLogprobs
from vllm_lite.engine.front.input_processor import ProcessedInput
from vllm_lite.metrics.stats import FinishedGroup, FinishedRequest, StepStats
from vllm_lite.metrics.tracing import TracedRequest
from vllm_lite.outputs import (
    AnyOutput,
    CompletionOutput,
    Logprob,
    PoolingOutput,
    PoolingRequestOutput,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
    RequestSpecDecodeMetrics,
)
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.sampling_params import RequestOutputKind, SamplingParams
from vllm_lite.tokenizer.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from vllm_lite.tokenizer.tokenizer import Tokenizer

# Urgency of a choice's output.
NOTHING, LATER, NOW = range(3)
DecodeToken = Callable[[int], str]
_NO_TEXT = SamplingParams(detokenize=False)


def position_logprobs(
    entry: TokenLogprobs, decode: DecodeToken | None, *, is_ranked: bool = True
) -> PositionLogprobs:
    """One position: the sampled (or prompt) token first, then the best ones in order.

    Those that were chosen by their ids (not `is_ranked`) have no rank. Without `decode`
    (no tokenizer, or detokenize=False) there is no text.
    """
    position: PositionLogprobs = {}
    for index, (token_id, logprob) in enumerate(zip(entry.token_ids, entry.logprobs, strict=True)):
        # The first entry has a rank of its own; after it, candidate i has rank i.
        rank = entry.rank if index == 0 else index if is_ranked else None
        text = None if decode is None else decode(token_id)
        position.setdefault(token_id, Logprob(logprob, rank, text))
    return position


class ChoiceLogprobs:
    """The log-probabilities of one choice's tokens, and their sum."""

    def __init__(self, decode: DecodeToken | None, *, is_ranked: bool = True) -> None:
        self.positions: list[PositionLogprobs] = []
        self.cumulative = 0.0
        self._decode = decode
        self._is_ranked = is_ranked

    def append(self, entries: list[TokenLogprobs]) -> None:
        """Add the positions of a step's new tokens."""
        for entry in entries:
            position = position_logprobs(entry, self._decode, is_ranked=self._is_ranked)
            self.positions.append(position)
            self.cumulative += entry.logprobs[0]

    def truncate(self, num_positions: int) -> None:
        """Keep only the first positions."""
        for position in self.positions[num_positions:]:
            self.cumulative -= next(iter(position.values())).logprob
        del self.positions[num_positions:]


class Sink(Protocol):
    """Takes a request's outputs; neither method may wait."""

    def put(self, output: AnyOutput) -> None:
        """Take the next output."""

    def fail(self, error: BaseException) -> None:
        """End the outputs with an error."""


class ChoiceState:
    """One sequence of a request."""

    def __init__(
        self,
        request: RequestState,
        core_id: str,
        index: int,
        tokenizer: Tokenizer | None,
        params: SamplingParams,
        drafts: RequestSpecDecodeMetrics | None = None,
    ) -> None:
        """`drafts` counts those of the choice, where that is asked for."""
        self.request = request
        self.core_id = core_id
        self.index = index
        self.num_prompt_tokens = len(request.input.sequences[index])
        # Until its first token.
        self.is_waiting = True
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.is_refused = False
        self.num_cached_tokens: int | None = None
        self.num_preemptions = 0
        self.scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.last_token_time: float | None = None
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, request.input.prompt_token_ids, params
        )
        self._logprobs: ChoiceLogprobs | None = None
        if params.reports_logprobs:
            is_ranked = params.logprob_token_ids is None
            self._logprobs = ChoiceLogprobs(request.decode_token, is_ranked=is_ranked)
        self._drafts = drafts
        self._num_shown = 0
        self._is_end_shown = False

    def urgency(self, interval: int) -> int:
        """NOTHING to show, LATER, or NOW: an end, a first token, or `interval` tokens."""
        if self.finish_reason is not None:
            is_shown = self._is_end_shown and len(self.token_ids) == self._num_shown
            return NOTHING if is_shown else NOW
        shown = self._num_shown
        num_new = len(self.token_ids) - shown
        if num_new <= 0:
            return NOTHING
        return NOW if num_new >= interval or shown == 0 else LATER

    def update(self, output: EngineCoreOutput) -> bool:
        """Add a step's output; True where a stop string ended the choice."""
        self.token_ids += output.new_token_ids
        if output.num_cached_tokens is not None:
            self.num_cached_tokens = output.num_cached_tokens
            self.scheduled_time = output.scheduled_time
        if output.drafted and self._drafts is not None:
            self._drafts.observe(*output.drafted)
        if output.new_logprobs and self._logprobs is not None:
            self._logprobs.append(output.new_logprobs)
        stop = self._detokenizer.update(output.new_token_ids, output.finish_reason == "stop")
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        self.is_refused = output.is_refused
        if stop is None:
            return False
        # Tokens after the one that completes the stop string are dropped.
        num_tokens = self._detokenizer.num_tokens
        del self.token_ids[num_tokens:]
        if self._logprobs is not None:
            self._logprobs.truncate(num_tokens)
        is_early = self.finish_reason is None
        self.finish_reason, self.stop_reason = "stop", stop
        return is_early

    def fail(self, cause: str) -> None:
        self.finish_reason, self.stop_reason = "error", cause

    def observe(self, output: EngineCoreOutput, now: float, stats: StepStats) -> None:
        """Count a step's tokens and latencies."""
        self.num_preemptions = output.num_preemptions
        num_tokens = len(output.new_token_ids)
        if not num_tokens:
            return
        stats.num_generation_tokens += num_tokens
        if self.last_token_time is None:
            self.count_prompt(now, stats)
            stats.first_token_latencies.append(now - self.request.arrival_time)
        else:
            stats.inter_token_latencies.append(now - self.last_token_time)
        self.last_token_time = now
        metrics = self.request.metrics
        if metrics is not None and self.index == 0:
            metrics.first_scheduled_time = self.scheduled_time
            metrics.first_token_time = self.first_token_time
            metrics.last_token_time = now

    def count_prompt(self, now: float, stats: StepStats) -> None:
        """Count the prompt, whose computation ended now."""
        self.first_token_time = now
        stats.num_prompt_tokens += self.num_prompt_tokens
        stats.num_cached_tokens += self.num_cached_tokens or 0

    def show(self, is_delta: bool) -> CompletionOutput:
        """The output to show: cumulative, or since the last one."""
        start = self._num_shown if is_delta else 0
        self._num_shown = len(self.token_ids)
        self._is_end_shown = self.finish_reason is not None
        logprobs = self._logprobs
        return CompletionOutput(
            index=self.index,
            text=self._detokenizer.get_next_output_text(self.finish_reason is not None, is_delta),
            token_ids=self.token_ids[start:],
            cumulative_logprob=None if logprobs is None else logprobs.cumulative,
            logprobs=None if logprobs is None else logprobs.positions[start:],
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            spec_decode_metrics=self._drafts,
        )

    def summary(self, now: float) -> FinishedRequest:
        """The finished choice for the metrics."""
        scheduled, first, last = self.scheduled_time, self.first_token_time, self.last_token_time
        arrival = self.request.arrival_time
        return FinishedRequest(
            finish_reason=self.finish_reason or "abort",
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens or 0,
            num_generation_tokens=len(self.token_ids),
            max_tokens=getattr(self.request.input.params, "max_tokens", None),
            num_preemptions=self.num_preemptions,
            e2e_latency=now - arrival,
            queue_time=None if scheduled is None else max(scheduled - arrival, 0.0),
            prefill_time=None if scheduled is None or first is None else first - scheduled,
            decode_time=None if first is None or last is None else last - first,
        )


@dataclass(slots=True, eq=False)
class RequestState:
    """A request with its choices."""

    # The caller's id; need not be unique.
    request_id: str
    input: ProcessedInput
    arrival_time: float
    sink: Sink
    stream_interval: int = 1
    # Of the first choice, if they are kept; every output has the same object.
    metrics: RequestMetrics | None = None
    decode_token: Callable[[int], str] | None = None
    choices: list[ChoiceState] = field(default_factory=list)
    # Choices that have not ended.
    num_open: int = 0
    # Not delivered yet; None unless asked for. The first token has none.
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    # Already in the list of this step's changed requests.
    is_touched: bool = False
    # A choice ended with an error: the others end with it.
    has_failed: bool = False

    @property
    def is_finished(self) -> bool:
        return self.num_open == 0

    def add_prompt_logprobs(self, entries: list[TokenLogprobs]) -> None:
        """Add the prompt positions that a step computed."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs += [
                position_logprobs(entry, self.decode_token) for entry in entries
            ]

    def take_output(self) -> AnyOutput | None:
        """The output that is due after a step; None where none is."""
        kind, finished = self.input.params.output_kind, self.num_open == 0
        if not finished and kind is RequestOutputKind.FINAL_ONLY:
            return None
        most, news = NOTHING, []
        for choice in self.choices:
            urgency = choice.urgency(self.stream_interval)
            if urgency:
                news.append(choice)
                most = max(most, urgency)
        if most != NOW:
            return None
        is_delta = kind is RequestOutputKind.DELTA
        prompt_logprobs = self.prompt_logprobs
        # The first choice scores the prompt, maybe after others have begun.
        if is_delta and prompt_logprobs and (finished or not self.choices[0].is_waiting):
            self.prompt_logprobs = None
        elif is_delta:
            prompt_logprobs = None
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.input.prompt,
            prompt_token_ids=self.input.prompt_token_ids,
            outputs=[choice.show(is_delta) for choice in (news if is_delta else self.choices)],
            finished=finished,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=self.choices[0].num_cached_tokens,
            metrics=self.metrics,
        )

    def summary(self) -> FinishedGroup:
        """The finished request for the metrics."""
        longest = max(len(choice.token_ids) for choice in self.choices)
        return FinishedGroup(self.input.params.n, longest)

    def traced(self) -> TracedRequest:
        """The finished request for a trace span."""
        now = time.monotonic()
        return TracedRequest(
            self.request_id,
            self.input.params,
            self.arrival_time,
            self.choices[0].first_token_time,
            [choice.summary(now) for choice in self.choices],
            self.input.origin.trace_headers,
        )


class PooledChoice(ChoiceState):
    """The answer of a prompt, or of a part of one that is longer than the context."""

    def __init__(self, request: RequestState, core_id: str, index: int = 0) -> None:
        super().__init__(request, core_id, index, None, _NO_TEXT)
        self.pooled = Pooled(b"", 0)

    def update(self, output: EngineCoreOutput) -> bool:
        """Take in a step's output; raises ValueError for an end without an answer."""
        if output.pooled is not None:
            self.pooled = output.pooled
        elif output.finish_reason == "stop":
            raise ValueError("the engine core sent no answer")
        return super().update(output)

    def observe(self, output: EngineCoreOutput, now: float, stats: StepStats) -> None:
        """Count the prompt once it is computed."""
        super().observe(output, now, stats)
        if output.pooled is not None:
            self.count_prompt(now, stats)


@dataclass(slots=True, eq=False)
class PoolingState(RequestState):
    """A pooling request with a choice for each part of its prompt, which mostly is one."""

    def take_output(self) -> PoolingRequestOutput[PoolingOutput] | None:
        """The answer, once it is there; empty where there will be none."""
        if not self.is_finished:
            return None
        params, choices = self.input.params, self.choices
        assert isinstance(params, PoolingParams)
        parts = [choice.pooled for choice in choices if isinstance(choice, PooledChoice)]
        failed = [choice for choice in choices if choice.finish_reason != "stop"]
        numbers, width = parts[0]
        if len(parts) > 1 and not failed:
            lengths = [choice.num_prompt_tokens for choice in choices]
            numbers = weighted_mean(parts, lengths, is_unit=bool(params.use_activation))
        if failed:
            numbers, width = b"", 0
        count = len(numbers) // (4 * width) if width else 0
        return PoolingRequestOutput(
            request_id=self.request_id,
            outputs=PoolingOutput(
                numbers, (count, width) if params.is_per_token else (width,), tensor_of
            ),
            prompt_token_ids=self.input.prompt_token_ids,
            num_cached_tokens=sum(choice.num_cached_tokens or 0 for choice in choices),
            finished=True,
            error=str(failed[0].stop_reason) if failed else None,
        )


def tensor_of(output: PoolingOutput) -> Any:
    """A torch tensor of the numbers."""
    import torch  # here: who takes lists or bytes never loads it

    flat = torch.frombuffer(bytearray(output.numbers or bytes(4)), dtype=torch.float32)
    return flat[: len(output.numbers) // 4].view(output.shape)


def weighted_mean(parts: Sequence[Pooled], weights: Sequence[int], *, is_unit: bool) -> bytes:
    """The mean of vectors, divided by its length where they were."""
    rows = [memoryview(part.numbers).cast("f").tolist() for part in parts]
    total = sum(weights)
    mean = [
        math.fsum(number * weight for number, weight in zip(column, weights, strict=True)) / total
        for column in zip(*rows, strict=True)
    ]
    length = max(math.hypot(*mean), 1e-12) if is_unit else 1.0
    return array("f", (number / length for number in mean)).tobytes()
