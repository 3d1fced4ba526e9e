"""Turns the engine core's tokens into callers' outputs, in one loop over a step's outputs.

Owns the states of all unfinished requests. Invariant: a request leaves with its last output,
whoever ended it, and one that cannot be processed fails alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.step import EngineCoreOutput
from vllm_lite.engine.front.input_processor import ProcessedInput
from vllm_lite.engine.front.request_state import (
    ChoiceState,
    PooledChoice,
    PoolingState,
    RequestState,
    Sink,
)
from vllm_lite.log import init_logger
from vllm_lite.metrics.stats import StepStats
from vllm_lite.metrics.tracing import make_tracer
from vllm_lite.outputs import (
    AnyOutput,
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    RequestSpecDecodeMetrics,
)
from vllm_lite.pooling_params import PoolingParams

if TYPE_CHECKING:
    from vllm_lite.tokenizer.tokenizer import Tokenizer

logger = init_logger(__name__)

# Candidates that are processed in about ten milliseconds.
_MOST_CANDIDATES = 8192


@dataclass(slots=True)
class ProcessedStep:
    """Statistics of a step, and the sequences to abort in the core."""

    stats: StepStats
    aborted_ids: list[str] = field(default_factory=list)


def in_turns(outputs: list[EngineCoreOutput]) -> Iterator[list[EngineCoreOutput]]:
    """Split `outputs` so that processing no part blocks the event loop; usually one part.

    A step may score thousands of a prompt's positions: they are split.
    """
    for output in outputs:
        scored = output.new_prompt_logprobs
        if not scored:
            continue
        count = max(1, _MOST_CANDIDATES // len(scored[0].token_ids))
        for start in range(0, len(scored) - count, count):
            yield [EngineCoreOutput(output.request_id, [], None, scored[start : start + count])]
        output.new_prompt_logprobs = scored[(len(scored) - 1) // count * count :]
    yield outputs


class OutputProcessor:
    """Detokenises, finds stop strings, and gives outputs to the requests' sinks."""

    def __init__(self, config: VllmConfig, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._stream_interval = config.scheduler.stream_interval
        self._with_metrics = not config.observability.disable_log_stats
        self._counts_drafts = config.observability.per_request_spec_decode_metrics
        self._most_drafts = config.speculative.num_drafts
        self._choices: dict[str, ChoiceState] = {}
        # Internal ids by the caller's, which need not be unique.
        self._requests: dict[str, list[RequestState]] = {}
        self.tracer = make_tracer(config)
        # Prompt tokens of sequences without an output token yet.
        self.num_waiting_tokens = 0

    @property
    def num_unfinished(self) -> int:
        """Sequences that run or wait."""
        return len(self._choices)

    def has_unfinished_requests(self) -> bool:
        return bool(self._choices)

    def add_request(
        self,
        request_id: str,
        processed: ProcessedInput,
        core_ids: list[str],
        arrival_time: float,
        sink: Sink,
    ) -> RequestState:
        """Expect outputs for the sequences `core_ids`, one for each choice."""
        params, tokenizer = processed.params, self._tokenizer
        if isinstance(params, PoolingParams):
            request: RequestState = PoolingState(request_id, processed, arrival_time, sink)
            request.choices = [
                PooledChoice(request, core_id, index) for index, core_id in enumerate(core_ids)
            ]
        else:
            request = RequestState(
                request_id=request_id,
                input=processed,
                arrival_time=arrival_time,
                sink=sink,
                stream_interval=max(self._stream_interval, params.stream_interval or 1),
                metrics=RequestMetrics(arrival_time) if self._with_metrics else None,
                decode_token=tokenizer.decode_token if tokenizer and params.detokenize else None,
                prompt_logprobs=None if params.prompt_logprobs is None else [None],
            )
            request.choices = [
                ChoiceState(request, core_id, index, tokenizer, params, self._new_counts())
                for index, core_id in enumerate(core_ids)
            ]
        request.num_open = len(core_ids)
        for choice in request.choices:
            self._choices[choice.core_id] = choice
        self._requests.setdefault(request_id, []).append(request)
        self.num_waiting_tokens += sum(choice.num_prompt_tokens for choice in request.choices)
        return request

    def _new_counts(self) -> RequestSpecDecodeMetrics | None:
        level = self._counts_drafts
        if level == "none":
            return None
        steps: list[tuple[int, int]] | None = [] if level == "detailed" else None
        return RequestSpecDecodeMetrics(self._most_drafts, steps=steps)

    def process(self, outputs: list[EngineCoreOutput]) -> ProcessedStep:
        """Process a step's outputs; sinks are called before this returns."""
        now = time.monotonic()
        step = ProcessedStep(StepStats())
        touched: list[RequestState] = []
        for output in outputs:
            choice = self._choices.get(output.request_id)
            if choice is None:  # aborted since
                continue
            self._update(choice, output, now, step)
            request = choice.request
            if not request.is_touched:
                request.is_touched = True
                touched.append(request)
        for request in touched:
            request.is_touched = False
            self._show(request, now, step)
        return step

    def abort(self, request_ids: Iterable[str], *, show: bool = True) -> ProcessedStep:
        """End requests by the caller's ids; with `show` they get a last output."""
        requests = [r for i in dict.fromkeys(request_ids) for r in self._requests.get(i, ())]
        return self.abort_states(requests, show=show)

    def abort_all(self) -> ProcessedStep:
        return self.abort(list(self._requests))

    def fail_all(self, error: BaseException) -> None:
        """Fail every request: the engine is dead."""
        requests = [request for same_id in self._requests.values() for request in same_id]
        self._requests.clear()
        self._choices.clear()
        self.num_waiting_tokens = 0
        for request in requests:
            for choice in request.choices:
                choice.finish_reason = choice.finish_reason or "error"
            request.num_open = 0
            request.sink.fail(error)

    def abort_states(self, requests: Iterable[RequestState], *, show: bool) -> ProcessedStep:
        """End these requests; finished ones are left alone."""
        now = time.monotonic()
        step = ProcessedStep(StepStats())
        for request in requests:
            if request.is_finished:
                continue
            self._end_open_choices(request, now, step)
            self._forget(request, step)
            output = request.take_output()
            if show and output is not None:
                request.sink.put(output)
        return step

    def _update(
        self, choice: ChoiceState, output: EngineCoreOutput, now: float, step: ProcessedStep
    ) -> None:
        if choice.is_waiting and output.new_token_ids:
            self._leave_queue(choice)
        try:
            if output.new_prompt_logprobs:
                choice.request.add_prompt_logprobs(output.new_prompt_logprobs)
            is_stopped_here = choice.update(output)
        except Exception:
            logger.exception("The output of request %s failed", choice.request.request_id)
            choice.fail("the request's output could not be processed")
            is_stopped_here = output.finish_reason is None
        choice.observe(output, now, step.stats)
        if is_stopped_here:
            step.aborted_ids.append(choice.core_id)
        if choice.finish_reason is not None:
            choice.request.has_failed |= choice.finish_reason == "error"
            self._end(choice, now, step)

    def _show(self, request: RequestState, now: float, step: ProcessedStep) -> None:
        if request.has_failed:
            self._end_open_choices(request, now, step)
        if not request.num_open:
            self._forget(request, step)
        output = request.take_output()
        if output is not None:
            request.sink.put(output)

    def _end_open_choices(self, request: RequestState, now: float, step: ProcessedStep) -> None:
        for choice in request.choices:
            if choice.finish_reason is None:
                choice.finish_reason = "abort"
                step.aborted_ids.append(choice.core_id)
                self._end(choice, now, step)

    def _end(self, choice: ChoiceState, now: float, step: ProcessedStep) -> None:
        self._leave_queue(choice)
        choice.request.num_open -= 1
        self._choices.pop(choice.core_id, None)
        step.stats.finished.append(choice.summary(now))

    def _leave_queue(self, choice: ChoiceState) -> None:
        if choice.is_waiting:
            choice.is_waiting = False
            self.num_waiting_tokens -= choice.num_prompt_tokens

    def _forget(self, request: RequestState, step: ProcessedStep) -> None:
        same_id = self._requests[request.request_id]
        same_id.remove(request)
        if not same_id:
            del self._requests[request.request_id]
        step.stats.finished_groups.append(request.summary())
        if self.tracer.is_on:
            self.tracer.record(request.traced())


class OutputCollector:
    """The outputs of one request for the one task that reads them; both on the event loop.

    At most one output waits: later deltas are merged into it, so a slow reader costs the engine
    neither time nor memory.
    """

    def __init__(self, *, is_delta: bool) -> None:
        self._is_delta = is_delta
        self._output: AnyOutput | None = None
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: AnyOutput) -> None:
        """Take an output; never waits."""
        earlier = self._output if self._is_delta else None
        if isinstance(earlier, RequestOutput) and isinstance(output, RequestOutput):
            _merge_delta(earlier, output)
        else:
            self._output = output
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Let the reader raise `error` once it has read what came before."""
        self._error = error
        self._wake()

    async def get(self) -> AnyOutput:
        while self._output is None:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        output, self._output = self._output, None
        return output

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _merge_delta(earlier: RequestOutput, later: RequestOutput) -> None:
    """Append the delta `later` to `earlier`."""
    earlier.finished |= later.finished
    earlier.metrics = later.metrics
    if earlier.prompt_logprobs is None:
        earlier.prompt_logprobs = later.prompt_logprobs
    known = {choice.index: choice for choice in earlier.outputs}
    for choice in later.outputs:
        before = known.get(choice.index)
        if before is None:
            earlier.outputs.append(choice)
        else:
            _merge_choice(before, choice)


def _merge_choice(earlier: CompletionOutput, later: CompletionOutput) -> None:
    earlier.text += later.text
    earlier.token_ids += later.token_ids
    earlier.cumulative_logprob = later.cumulative_logprob
    if later.logprobs:
        earlier.logprobs = (earlier.logprobs or []) + later.logprobs
    earlier.finish_reason = later.finish_reason
    earlier.stop_reason = later.stop_reason
