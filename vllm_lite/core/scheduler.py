"""Decides what each step computes, and keeps the books of all requests.

Knows no phases: a request has tokens it has computed and tokens it should have, and a step
closes part of that gap. Invariants: scheduling never changes tokens; a request that leaves,
at whatever moment, leaves no block behind; one step advances at least one request, unless
those before it are unanswered. A step may be planned on tokens that those are to sample: then
it counts them, and differs in nothing else.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vllm_lite.core.kv_manager import KVCacheManager, Reserve
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.prefill_limit import PrefillLimit, Verdict
from vllm_lite.core.queue import request_queue
from vllm_lite.core.step import (
    EngineCoreOutput,
    ModelRunnerOutput,
    SchedulerOutput,
    TokenLogprobs,
)
from vllm_lite.core.step_builder import StepBuilder
from vllm_lite.core.stopping import check_stop
from vllm_lite.errors import RequestError
from vllm_lite.metrics.stats import SchedulerStats
from vllm_lite.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm_lite.config.vllm import VllmConfig


class Scheduler:
    """Continue what runs, admit what waits, preempt where memory is short, finish."""

    def __init__(self, config: VllmConfig, plan: KVCachePlan) -> None:
        self.config = config
        self.kv_manager = KVCacheManager(
            plan,
            enable_caching=config.cache.enable_prefix_caching,
            max_step_tokens=config.scheduler.step_tokens,
            reserve=Reserve(
                watermark=config.scheduler.watermark,
                whole_prompts=config.scheduler.scheduler_reserve_full_isl,
            ),
        )
        self.requests: dict[str, Request] = {}
        # In order of admission.
        self.running: list[Request] = []
        self.waiting = request_queue(config.scheduler.scheduling_policy)
        self._prefill_limit = PrefillLimit(config)
        # Known to the workers, but gone; the next step tells them.
        self._departed: list[str] = []
        # Who is in each step that was planned and not answered, the oldest first.
        self._unanswered: deque[list[Request]] = deque()
        # Memory ran short while a step was unanswered, whose requests cannot be preempted.
        self._is_short = False
        self._num_queries = self._num_hits = self._num_preemptions = 0

    def add_request(self, request: Request) -> None:
        """Queue a request. Raises RequestError where it could never run."""
        limit = self.config.model.max_model_len
        if request.request_id in self.requests:
            raise RequestError(f"request id {request.request_id!r} is in use", "request_id")
        if not 0 < request.num_prompt_tokens < limit:
            raise RequestError(
                f"the prompt has {request.num_prompt_tokens} tokens; it must have at least 1 "
                f"and fewer than the context length of {limit}",
                "prompt",
            )
        request.max_total_tokens = min(request.max_total_tokens, limit)
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def finish_requests(self, request_ids: str | Iterable[str], status: RequestStatus) -> list[str]:
        """Let requests go, whatever they are doing; unknown ids are ignored.

        Returns the ids that were alive. A step in flight may still name them.
        """
        ids = (request_ids,) if isinstance(request_ids, str) else request_ids
        found = [self.requests[i] for i in dict.fromkeys(ids) if i in self.requests]
        for request in found:
            if request.status is not RequestStatus.RUNNING:
                self.waiting.remove(request)
            self._finish(request, status)
        self._drop_finished_from_running()
        return [request.request_id for request in found]

    def schedule(self) -> SchedulerOutput:
        """Decide the next step.

        Every call must be answered, in order, by update_from_output or fail_step.
        """
        self._is_short = False
        step = StepBuilder(self.config.scheduler.step_tokens)
        self._prefill_limit.share_among(len(self.requests))
        self._continue_running(step)
        if not (step.has_preempted or self._is_short):  # memory is tight: admit no one
            self._admit_waiting(step)
        departed, self._departed = self._departed, []
        planned = step.build(departed)
        requests = [self.requests[request_id] for request_id in planned.num_scheduled_tokens]
        for request, count in zip(requests, planned.num_scheduled_tokens.values(), strict=True):
            request.plan(count)
        self._unanswered.append(requests)
        return planned

    @property
    def can_plan_ahead(self) -> bool:
        """Whether another step can be planned well before those unanswered are answered."""
        return not self._is_short

    def update_from_output(
        self, step: SchedulerOutput, output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Enter a step's results; requests that left since schedule() are passed over."""
        outputs = []
        num_before = len(self.requests)
        counts = step.num_scheduled_tokens.values()
        for request, num_scheduled in zip(self._unanswered.popleft(), counts, strict=True):
            if request.status is not RequestStatus.RUNNING:
                continue
            result = self._advance(request, num_scheduled, output)
            if result is not None:
                outputs.append(result)
        if len(self.requests) != num_before:
            self._drop_finished_from_running()
        return outputs

    def fail_step(self, step: SchedulerOutput, message: str) -> list[EngineCoreOutput]:
        """Finish a thrown step's requests with the cause; the others go on.

        What the step told the workers about departures is told again: they may not know. But a
        later step, planned before the failure showed, may have admitted such a request anew.
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

    def has_unfinished_requests(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.requests)

    def has_requests(self) -> bool:
        """Whether a step is due: for requests, or to tell the workers who left."""
        return bool(self.requests or self._departed)

    def get_num_unfinished_requests(self) -> int:
        """Requests that wait or run."""
        return len(self.requests)

    def make_stats(self) -> SchedulerStats:
        """The state now; the counters are totals since the start."""
        pool = self.kv_manager.pool
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_cache_usage=pool.usage,
            prefix_cache_queries=self._num_queries,
            prefix_cache_hits=self._num_hits,
            num_preemptions=self._num_preemptions,
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_total_blocks=pool.num_total,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, with nothing done, while requests hold blocks."""
        return self.kv_manager.try_reset_prefix_cache()

    def _continue_running(self, step: StepBuilder) -> None:
        chunk_limit = self._prefill_limit.chunk_limit
        allocate = self.kv_manager.try_allocate_slots
        index = 0
        # A preemption shortens the list, possibly before `index`.
        while index < len(self.running) and step.budget > 0:
            request = self.running[index]
            if request.is_about_to_end:
                index += 1
                continue
            num_new = request.num_missing_tokens
            if num_new > 1:
                num_new = min(num_new, step.budget, chunk_limit)
            blocks = allocate(request, num_new)
            if blocks is None and self._unanswered:
                self._is_short = True
                return
            while blocks is None:
                victim, place = self._choose_victim()
                del self.running[place]
                index -= place < index
                self._preempt(victim, step)
                if victim is request:
                    break
                blocks = allocate(request, num_new)
            else:
                step.continue_request(request, num_new, blocks)
                index += 1

    def _admit_waiting(self, step: StepBuilder) -> None:
        config, limit, waiting = self.config.scheduler, self._prefill_limit, self.waiting
        limit.begin_step(self.running, step.num_scheduled_tokens)
        passed_over: list[Request] = []
        while (
            waiting
            and step.budget > 0
            and len(self.running) < config.active_seqs
            and len(passed_over) < config.max_num_seqs
        ):
            request = waiting.peek()
            hits = self.kv_manager.get_computed_blocks(request)
            missing = request.num_tokens - hits.num_tokens
            if missing > step.budget and not config.enable_chunked_prefill:
                break
            chunk = min(missing, step.budget, limit.chunk_limit)
            verdict = limit.judge(missing, chunk)
            if verdict is Verdict.PASS_OVER:
                waiting.remove(request)
                passed_over.append(request)
                continue
            if verdict is Verdict.STOP or not self.kv_manager.try_admit(request, hits, chunk):
                break
            limit.count(missing, chunk)
            self._admit(request, request.num_tokens - missing)
            step.admit_request(request, chunk, self.kv_manager.block_ids(request))
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

    def _choose_victim(self) -> tuple[Request, int]:
        """Who gives its blocks back, and its place in `running`: the last, or least urgent."""
        running = self.running
        place = len(running) - 1
        if self.config.scheduler.scheduling_policy == "priority":
            place = max(
                range(len(running)), key=lambda i: (running[i].priority, running[i].arrival_time, i)
            )
        return running[place], place

    def _preempt(self, request: Request, step: StepBuilder) -> None:
        step.preempt_request(request)
        self.kv_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.start_over()
        request.num_preemptions += 1
        self._num_preemptions += 1
        self.waiting.put_back(request)

    def _advance(
        self, request: Request, num_scheduled: int, output: ModelRunnerOutput
    ) -> EngineCoreOutput | None:
        """Enter what a step computed of one request; None where there is nothing to tell."""
        request_id = request.request_id
        if output.errors and request_id in output.errors:
            fields = request.sampling_params.banning_fields if request_id in output.stuck else ()
            if fields:
                return self._fail(request, f"{' and '.join(fields)} leave no token to generate")
            # What made its last logits unsound may lie in blocks that earlier steps published.
            self.kv_manager.withdraw(request)
            return self._fail(request, output.errors[request_id])
        before = request.num_computed_tokens
        request.answer(num_scheduled)
        num_computed = request.num_computed_tokens
        block_size = self.kv_manager.block_size
        if num_computed // block_size != before // block_size:
            self.kv_manager.publish_computed(request)
        prompt_logprobs = None
        if output.prompt_logprobs and request_id in output.prompt_logprobs:
            prompt_logprobs = _unsent(request, before, output.prompt_logprobs[request_id])
        if num_computed < request.num_tokens:
            if not prompt_logprobs:
                return None
            result = EngineCoreOutput(request_id, [], None, prompt_logprobs)
            status = None
        else:
            token_id = output.sampled_token_ids.get(request_id)
            if token_id is None:
                return self._fail(request, "the model runner sampled no token for it")
            request.append_token(token_id)
            status = check_stop(request)
            result = EngineCoreOutput(request_id, [token_id], None, prompt_logprobs)
            if output.logprobs and request_id in output.logprobs:
                result.new_logprobs = [output.logprobs[request_id]]
        result.num_preemptions = request.num_preemptions
        if not request.has_first_output:
            _describe_start(request, result)
        if status is not None:
            result.finish_reason = status.finish_reason
            result.stop_reason = request.stop_reason
            self._finish(request, status)
        return result

    def _fail(self, request: Request, cause: str) -> EngineCoreOutput:
        request.stop_reason = cause
        result = EngineCoreOutput(request.request_id, [], finish_reason="error", stop_reason=cause)
        result.num_preemptions = request.num_preemptions
        if not request.has_first_output:
            _describe_start(request, result)
        self._finish(request, RequestStatus.FINISHED_ERROR)
        return result

    def _finish(self, request: Request, status: RequestStatus) -> None:
        """Take back what a request holds; the caller takes it out of `waiting` or `running`."""
        if request.status is RequestStatus.RUNNING:
            self._departed.append(request.request_id)
        self.kv_manager.free(request)
        request.status = status
        del self.requests[request.request_id]

    def _drop_finished_from_running(self) -> None:
        self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]


def _describe_start(request: Request, result: EngineCoreOutput) -> None:
    """What only a request's first output tells."""
    request.has_first_output = True
    result.num_cached_tokens = request.num_cached_tokens
    result.scheduled_time = request.scheduled_time


def _unsent(
    request: Request, first_position: int, logprobs: list[TokenLogprobs]
) -> list[TokenLogprobs]:
    """Drop the positions that were delivered before a preemption made them run again."""
    known = request.num_prompt_logprobs_sent - first_position
    request.num_prompt_logprobs_sent = max(
        request.num_prompt_logprobs_sent, first_position + len(logprobs)
    )
    return logprobs[known:] if known > 0 else logprobs
