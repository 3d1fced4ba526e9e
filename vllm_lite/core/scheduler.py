"""Plans each step and keeps the state of all requests.

There are no phases: a request has computed tokens and tokens it should have, and a step closes part
of that gap. Invariants: scheduling never changes tokens; a request that leaves, at whatever moment,
frees all its blocks; a step advances at least one request unless others are in flight. A step may
be planned on tokens that steps in flight are to sample: it counts them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from copy import deepcopy
from typing import TYPE_CHECKING

from vllm_lite.core.block_events import BlockEvents
from vllm_lite.core.drafting import Drafting
from vllm_lite.core.kv_manager import KVCacheManager, Reserve
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.pace import StepPace
from vllm_lite.core.prefill_limit import PrefillLimit, Verdict
from vllm_lite.core.queue import choose_victim, request_queue
from vllm_lite.core.request import Request, RequestStatus
from vllm_lite.core.step import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from vllm_lite.core.step_builder import StepBudget, StepBuilder
from vllm_lite.core.stopping import append_tokens
from vllm_lite.errors import RequestError
from vllm_lite.metrics.stats import SchedulerStats

if TYPE_CHECKING:
    from vllm_lite.config.scheduler import SchedulerConfig
    from vllm_lite.config.vllm import VllmConfig


class Scheduler:
    """Continues running requests, admits waiting ones, preempts where memory is short."""

    def __init__(
        self, config: VllmConfig, plan: KVCachePlan, events: BlockEvents | None = None
    ) -> None:
        self.config = config
        self.kv_manager = KVCacheManager(
            plan,
            enable_caching=config.cache.enable_prefix_caching,
            max_step_tokens=config.scheduler.step_tokens,
            reserve=_reserve(config.scheduler),
            events=events,
        )
        self.requests: dict[str, Request] = {}
        # In order of admission.
        self.running: list[Request] = []
        self._policy = config.scheduler.scheduling_policy
        is_whole = config.facts.pooling is not None and not config.facts.pooling.is_causal
        self.waiting = request_queue(self._policy, config.scheduler.step_tokens * is_whole)
        self._prefill_limit = PrefillLimit(config)
        self.pace = StepPace(config.scheduler)
        self._drafting = Drafting(config.speculative)
        # Requests that left since the last step; the next one tells the workers.
        self._departed: list[str] = []
        # The requests of each step in flight, the oldest first.
        self._unanswered: deque[list[Request]] = deque()
        # Memory ran short while a step is in flight, whose requests cannot be preempted.
        self._is_short = False
        self._num_queries = self._num_hits = self._num_preemptions = 0

    def add_request(self, request: Request) -> None:
        """Queue a request, whose prompt fits into the context. Raises RequestError."""
        if request.request_id in self.requests:
            raise RequestError(f"request id {request.request_id!r} is in use", "request_id")
        limit = self.config.model.max_model_len
        request.max_total_tokens = min(request.max_total_tokens, limit)
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def finish_requests(self, request_ids: str | Iterable[str], status: RequestStatus) -> None:
        """Finish requests, whatever they are doing; unknown ids are ignored.

        A step in flight may still name them.
        """
        ids = (request_ids,) if isinstance(request_ids, str) else request_ids
        found = [self.requests[i] for i in dict.fromkeys(ids) if i in self.requests]
        for request in found:
            was_running = request.status is RequestStatus.RUNNING
            self._finish(request, status)
            if not was_running:
                self.waiting.remove(request)
        self._drop_finished_from_running()

    def schedule(self) -> SchedulerOutput:
        """Plan the next step.

        Answer every call, in order, by update_from_output or fail_step.
        """
        self._is_short = False
        config = self.config.scheduler
        budget = StepBudget(
            tokens=config.step_tokens,
            prompts=self.pace.prompt_tokens(self.running, self.requests.values()),
            seqs=config.active_seqs - len(self.running),
            states=self.kv_manager.states.num_unused,
        )
        step = StepBuilder(budget)
        self._prefill_limit.share_among(len(self.requests))
        self._drafting.begin_step(len(self.running))
        self._continue_running(step)
        if not (step.has_preempted or self._is_short):  # memory is tight: admit no one
            self._admit_waiting(step)
        departed, self._departed = self._departed, []
        planned = step.build(departed)
        requests = [self.requests[request_id] for request_id in planned.num_scheduled_tokens]
        self._drafting.hand_over(requests, planned)
        planned.states = self.kv_manager.plan_states(requests, planned.num_scheduled_tokens)
        for request, count, verified in zip(requests, *_counts(planned), strict=True):
            request.plan(count, verified)
        self._unanswered.append(requests)
        return planned

    @property
    def can_plan_ahead(self) -> bool:
        """Whether another step can be planned before those in flight are answered."""
        must_wait = self.requests and all(r.must_wait for r in self.requests.values())
        return not (self._is_short or must_wait)

    def update_from_output(
        self, step: SchedulerOutput, output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Apply a step's results; requests that left since schedule() are skipped."""
        outputs = []
        num_before = len(self.requests)
        planned = self._unanswered.popleft()
        for request, count, verified in zip(planned, *_counts(step), strict=True):
            if request.status is not RequestStatus.RUNNING:
                continue
            result = self._advance(request, count, verified, output)
            if result is not None:
                outputs.append(result)
        if len(self.requests) != num_before:
            self._drop_finished_from_running()
        return outputs

    def fail_step(self, step: SchedulerOutput, message: str) -> list[EngineCoreOutput]:
        """Finish a failed step's requests with the cause; the others go on.

        The workers may not know of the step's departures: they are repeated, unless a later step
        in flight has admitted the request anew.
        """
        outputs = []
        for request in self._unanswered.popleft():
            if request.status is RequestStatus.RUNNING:
                outputs.append(self._fail(request, message))
        self._drop_finished_from_running()
        gone = step.finished_request_ids + step.preempted_request_ids
        back = {request.request_id for request in self.running}
        self._departed += [request_id for request_id in gone if request_id not in back]
        return outputs

    def learn(self, step: SchedulerOutput, output: ModelRunnerOutput, seconds: float) -> None:
        self.pace.observe(step, seconds)
        self._drafting.learn(step, output, seconds)

    def has_requests(self) -> bool:
        """Whether a step is due: for requests, or to tell the workers of departures."""
        return bool(self.requests or self._departed)

    def make_stats(self) -> SchedulerStats:
        """The state now; the counters are totals since the start."""
        pool = self.kv_manager.pool
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_cache_usage=self.kv_manager.usage,
            prefix_cache_queries=self._num_queries,
            prefix_cache_hits=self._num_hits,
            num_preemptions=self._num_preemptions,
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_total_blocks=pool.num_total,
            spec_decoding=deepcopy(self._drafting.stats),
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, with nothing done, while requests hold blocks."""
        return self.kv_manager.try_reset_prefix_cache()

    def _continue_running(self, step: StepBuilder) -> None:
        chunk_limit = self._prefill_limit.chunk_limit
        allocate, count_drafts = self.kv_manager.try_allocate_slots, self._drafting.count
        budget, index = step.budget, 0
        # A preemption shortens the list, possibly before `index`.
        while index < len(self.running) and budget.tokens > 0:
            request = self.running[index]
            num_new = missing = request.num_missing_tokens
            if request.must_wait or (missing > 1 and not budget.prompts):
                index += 1
                continue
            if num_new > 1:
                num_new = min(num_new, budget.tokens, budget.prompts, chunk_limit)
            num_verified = int(num_new == missing)
            if missing == 1:
                most = budget.tokens - 1
                num_verified = num_new = 1 + count_drafts(request, most)
            blocks = allocate(request, num_new)
            if blocks is None and self._unanswered:
                self._is_short = True
                return
            while blocks is None:
                victim, place = choose_victim(self.running, self._policy)
                del self.running[place]
                index -= place < index
                self._preempt(victim, step)
                if victim is request:
                    break
                blocks = allocate(request, num_new)
            else:
                step.continue_request(request, num_new, num_verified, blocks)
                index += 1

    def _admit_waiting(self, step: StepBuilder) -> None:
        config, limit, waiting = self.config.scheduler, self._prefill_limit, self.waiting
        budget = step.budget
        limit.begin_step(self.running, step.num_scheduled_tokens)
        passed_over: list[Request] = []
        while waiting and budget.admits and len(passed_over) < config.max_num_seqs:
            request = waiting.peek()
            hits = self.kv_manager.get_computed_blocks(request)
            missing = request.num_tokens - hits.num_tokens
            chunk = min(missing, budget.tokens, budget.prompts, limit.chunk_limit)
            verdict = limit.judge(request, missing, chunk)
            if verdict is Verdict.PASS_OVER:
                waiting.remove(request)
                passed_over.append(request)
                continue
            if verdict is Verdict.STOP or not self.kv_manager.try_admit(request, hits, chunk):
                break
            limit.count(missing, chunk)
            self._admit(request, request.num_tokens - missing)
            blocks = self.kv_manager.block_ids(request)
            step.admit_request(request, chunk, int(chunk == missing), blocks)
        for request in reversed(passed_over):
            waiting.put_back(request)

    def _admit(self, request: Request, num_cached_tokens: int) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_cached_tokens
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_cached_tokens
            request.scheduled_time = time.monotonic()
            if self.kv_manager.enable_caching and request.can_read_prefix_cache:
                self._num_queries += request.num_tokens
                self._num_hits += num_cached_tokens

    def _preempt(self, request: Request, step: StepBuilder) -> None:
        step.preempt_request(request)
        self.kv_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.start_over()
        request.num_preemptions += 1
        self._num_preemptions += 1
        self.waiting.put_back(request)

    def _advance(
        self, request: Request, num_scheduled: int, num_verified: int, output: ModelRunnerOutput
    ) -> EngineCoreOutput | None:
        """Apply a step's results to one request; None where it has no output."""
        request_id = request.request_id
        if output.errors and request_id in output.errors:
            return self._fail_unsound(request, output)
        sampled: list[int] = []
        if num_verified:
            sampled = output.sampled_token_ids.get(request_id, sampled)
            if not sampled:
                return self._fail(request, "the model runner sampled no token for it")
        before, num_known = request.num_computed_tokens, request.num_tokens
        request.answer(num_scheduled, num_verified, len(sampled))
        prompt_logprobs = None
        if output.prompt_logprobs and request_id in output.prompt_logprobs:
            prompt_logprobs = _unsent(request, before, output.prompt_logprobs[request_id])
        status = append_tokens(request, sampled)
        new_token_ids = sampled[: request.num_tokens - num_known]
        result = EngineCoreOutput(request_id, new_token_ids, front_end=request.front_end)
        result.new_prompt_logprobs = prompt_logprobs
        if output.logprobs and request_id in output.logprobs:
            result.new_logprobs = output.logprobs[request_id][: len(new_token_ids)]
        result.drafted = self._drafting.observe(request, num_verified, output, len(sampled))
        block_size = self.kv_manager.block_size
        if request.num_computed_tokens // block_size != before // block_size:
            self.kv_manager.publish_computed(request)
        if output.pooled:
            result.pooled = output.pooled.get(request_id)
        if not (num_verified or prompt_logprobs or status):
            return None
        if request.num_preemptions or not request.has_first_output:
            _describe(request, result)
        if status is not None:
            result.finish_reason = status.finish_reason
            result.stop_reason = request.stop_reason
            self._finish(request, status)
        return result

    def _fail_unsound(self, request: Request, output: ModelRunnerOutput) -> EngineCoreOutput:
        """Fail a request whose logits admit no token."""
        request_id = request.request_id
        fields = request.sampling_params.banning_fields if request_id in output.stuck else ()
        if fields:
            return self._fail(request, f"{' and '.join(fields)} leave no token to generate")
        # The cause of its unsound logits may lie in blocks that earlier steps published.
        self.kv_manager.withdraw(request)
        return self._fail(request, output.errors[request_id])

    def _fail(self, request: Request, cause: str) -> EngineCoreOutput:
        request.stop_reason = cause
        result = EngineCoreOutput(request.request_id, [], front_end=request.front_end)
        result.finish_reason, result.stop_reason = "error", cause
        _describe(request, result)
        self._finish(request, RequestStatus.FINISHED_ERROR)
        return result

    def _finish(self, request: Request, status: RequestStatus) -> None:
        """Free a request's blocks; the caller removes it from `waiting` or `running`."""
        if request.status is RequestStatus.RUNNING:
            self._departed.append(request.request_id)
        self.kv_manager.free(request)
        self._drafting.forget(request)
        request.status = status
        del self.requests[request.request_id]

    def _drop_finished_from_running(self) -> None:
        self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]


def _reserve(config: SchedulerConfig) -> Reserve:
    return Reserve(watermark=config.watermark, whole_prompts=config.scheduler_reserve_full_isl)


def _counts(step: SchedulerOutput) -> tuple[Iterable[int], Iterable[int]]:
    return step.num_scheduled_tokens.values(), step.num_verified.values()


def _describe(request: Request, result: EngineCoreOutput) -> None:
    """Add the preemption count and, to a request's first output, its cached tokens."""
    result.num_preemptions = request.num_preemptions
    if request.has_first_output:
        return
    request.has_first_output = True
    result.num_cached_tokens = request.num_cached_tokens
    result.scheduled_time = request.scheduled_time


def _unsent(
    request: Request, first_position: int, logprobs: list[TokenLogprobs]
) -> list[TokenLogprobs]:
    """Drop the positions that were delivered before a preemption."""
    known = request.num_prompt_logprobs_sent - first_position
    request.num_prompt_logprobs_sent = max(
        request.num_prompt_logprobs_sent, first_position + len(logprobs)
    )
    return logprobs[known:] if known > 0 else logprobs
