"""The engine core: scheduler and executor, step after step, driven by the calling thread.

With asynchronous scheduling the next step is planned and submitted while one still runs, whose
sampled tokens are counted but not known yet.

Invariant: a step that throws ends its own requests and leaves the others; where the state of the
scheduler is in doubt, the exception propagates and the core ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.block_events import BlockEvents
from vllm_lite.core.kv_plan import describe_plan, plan_kv_cache
from vllm_lite.core.pending import DoneOutput, FailedOutput, PendingOutput
from vllm_lite.core.request import Request, RequestStatus
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.core.step import (
    EngineCoreOutput,
    EngineCoreRequest,
    LateMasks,
    ModelRunnerOutput,
    SchedulerOutput,
    TokenMasks,
)
from vllm_lite.engine.client import SLEEP_TAGS, PauseMode
from vllm_lite.engine.core.constraints import Constraints
from vllm_lite.engine.core.event_publisher import make_publisher
from vllm_lite.engine.core.observe import Snapshots, StepLog, StepTotals
from vllm_lite.engine.core.patience import Patience
from vllm_lite.engine.core.pause import PauseGate
from vllm_lite.engine.link.messages import CoreReady, StepOutputs
from vllm_lite.errors import EngineDeadError
from vllm_lite.log import init_logger, timeline
from vllm_lite.metrics.stats import EngineSnapshot, SchedulerStats
from vllm_lite.worker.interface import MemoryTag, StepWorker

if TYPE_CHECKING:
    from vllm_lite.executor.executor import Executor

logger = init_logger(__name__)

_MEMORY: dict[MemoryTag, str] = {"weights": "weights", "kv_cache": "the KV cache"}


@dataclass(frozen=True, slots=True)
class _Submitted:
    """A step in flight."""

    step: SchedulerOutput
    pending: PendingOutput
    started: float  # monotonic seconds


class EngineCore:
    """Generates tokens for sequences."""

    # Seconds that a core with nothing else to do waits for a grammar before it looks for messages.
    grammar_patience = 0.005

    def __init__(self, config: VllmConfig, make_executor: Callable[[VllmConfig], Executor]) -> None:
        self.config = config
        self._executor = make_executor(config)
        timeline.mark("weights")
        spec = self._executor.kv_cache_spec()
        self.plan = plan_kv_cache(config, spec, self._executor.available_memory())
        # Processor seconds that the largest step should take; 0: not known.
        self.largest_step = self._executor.initialize_cache(self.plan)
        timeline.mark("KV cache")
        self._publisher = make_publisher(config)
        self._block_events = BlockEvents() if self._publisher is not None else None
        self._scheduler = Scheduler(config, self.plan, self._block_events)
        self._log_stats = not config.observability.disable_log_stats
        is_told = config.observability.enable_logging_iteration_details
        self._step_log = StepLog() if is_told else StepTotals()
        self._snapshots = Snapshots(self._scheduler, self._step_log)
        self._gate = PauseGate()
        # Memory that is given back.
        self._released: set[MemoryTag] = set()
        self.constraints = Constraints(config, masks_come_late=self._executor.asks_for_masks)
        # Steps in flight, the oldest first, and how many there may be.
        self._in_flight: deque[_Submitted] = deque()
        self._max_in_flight = self._executor.max_in_flight
        # When the newest answered step was, in monotonic seconds.
        self._answered = 0.0
        # Outputs that no step has returned yet.
        self._ended: list[EngineCoreOutput] = []
        # Requests left outside a step: the next one reports statistics, even if it is empty.
        self._stats_due = False
        self._patience = Patience()

    def describe(self) -> CoreReady:
        """The core's facts for its front ends; takes the start-up timeline."""
        return CoreReady(
            num_blocks=self.plan.num_blocks,
            block_size=self.plan.block_size,
            kv_cache=describe_plan(self.config, self.plan),
            kernels=self._executor.describe(),
            timeline=timeline.take(),
        )

    def add_requests(self, requests: Iterable[EngineCoreRequest]) -> None:
        """Queue sequences; one that the scheduler refuses fails alone."""
        for request in self._gate.admit(requests):
            try:
                sequence = Request.from_message(request)
                if not self.constraints.hold(sequence):
                    self._scheduler.add_request(sequence)
            except Exception:
                self._refuse(request)

    def refuse(self, request_ids: Iterable[str], reason: str, front_end: int) -> None:
        """End sequences that never started with an error."""
        self._ended += [_error_output(i, reason, front_end) for i in request_ids]

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Drop sequences and free their blocks; unknown ids are ignored."""
        ids = list(request_ids)
        self._gate.drop(ids)
        self.constraints.drop(ids)
        self._scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)
        self._stats_due = self._log_stats

    def has_work(self) -> bool:
        """Whether step() has anything to do."""
        is_due = bool(self._ended) or self._stats_due or self._is_step_due()
        return is_due or bool(self._in_flight) or self.constraints.num_waiting > 0

    def step(self) -> StepOutputs:
        """Plan and submit a step, and return the outputs of the one that is due.

        With asynchronous scheduling that is the step before.
        """
        if self.constraints.num_waiting:
            self._begin_constrained()
        has_news, self._stats_due = self._stats_due, False
        can_plan = self._is_step_due() and self._can_plan()
        if can_plan:
            has_news |= self._submit()
        outputs, self._ended = self._ended, []
        is_full = len(self._in_flight) == self._max_in_flight
        if self._in_flight and (is_full or not can_plan or self._has_failed):
            outputs += self._collect()
        self._publish_events()
        has_news = self._log_stats and (has_news or bool(outputs))
        return StepOutputs(outputs, self.make_stats() if has_news else None)

    def make_stats(self) -> SchedulerStats:
        """The scheduler's counters now."""
        stats = self._scheduler.make_stats()
        stats.is_asleep = bool(self._released)
        stats.num_waiting += self._gate.num_held + self.constraints.num_waiting
        return stats

    def snapshot(self) -> EngineSnapshot:
        """The core's requests and blocks, at most half a second old."""
        return self._snapshots.take(self.make_stats())

    @property
    def is_paused(self) -> bool:
        """Whether new sequences are held."""
        return self._gate.is_closed

    @property
    def is_quiet(self) -> bool:
        """Whether every sequence has ended or is held."""
        can_go_on = self._scheduler.requests or self.constraints.num_waiting
        return not (self._in_flight or (self._gate.may_step and can_go_on))

    def pause(self, mode: PauseMode) -> None:
        """Hold new sequences; running ones are aborted, go on, or stand still."""
        self._gate.close(mode)
        if mode == "abort":
            ended = [*self._scheduler.requests.values(), *self.constraints.waiting]
            self.abort_requests([request.request_id for request in ended])
            self._ended += [
                EngineCoreOutput(r.request_id, [], finish_reason="abort", front_end=r.front_end)
                for r in ended
            ]

    def sleep(self, tags: tuple[MemoryTag, ...]) -> None:
        """Give the memory of `tags` back until the engine wakes up; no request may run."""
        num_bytes = sum(self._executor.call(StepWorker.release, tags))
        self._released.update(tags)
        self._stats_due = self._log_stats
        what = " and ".join(_MEMORY[tag] for tag in tags)
        logger.info("Asleep: %.2f GiB are given back, of %s", num_bytes / (1 << 30), what)

    def wake_up(self, tags: tuple[MemoryTag, ...]) -> None:
        """Take the memory of `tags` back, and go on once nothing is missing.

        Weights are read again; the cache's memory comes back as it is used.
        """
        if "weights" in tags and "weights" in self._released:
            self._executor.call(StepWorker.refill_weights)
        was_whole = not self._released
        self._released.difference_update(tags)
        if not self._released and (not was_whole or "kv_cache" in tags):
            self._stats_due = self._log_stats
            self.add_requests(self._gate.open())

    def save_sharded_state(self, directory: str, pattern: str, max_size: int) -> str:
        """Write each worker's part of the weights to files; why that failed, or ""."""
        failures = self._executor.call(StepWorker.save_sharded_state, directory, pattern, max_size)
        return next(filter(None, failures), "")

    def resume(self) -> None:
        """Wake up, and queue the held sequences."""
        self.wake_up(SLEEP_TAGS)

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False where blocks are in use."""
        is_done = self._scheduler.reset_prefix_cache()
        self._publish_events()
        return is_done

    def _publish_events(self) -> None:
        publisher, made = self._publisher, self._block_events
        if publisher is not None and made is not None and (events := made.take()):
            publisher.publish(events)

    @property
    def failure_fd(self) -> int | None:
        """Readable once check_health() raises, where a worker can end outside a step."""
        return self._executor.failure_fd

    def check_health(self) -> None:
        """Raise EngineDeadError where a worker has ended by itself."""
        self._executor.check_health()

    def shutdown(self) -> None:
        """Release the executor's memory and threads."""
        self.constraints.shutdown()
        self._executor.shutdown()
        if self._publisher is not None:
            self._publisher.shutdown()

    def _is_step_due(self) -> bool:
        return self._gate.may_step and self._scheduler.has_requests()

    def _begin_constrained(self) -> None:
        """Queue the sequences whose grammar is compiled; with nothing else to do, wait for one."""
        is_idle = not (self._ended or self._is_step_due())
        patience = self.grammar_patience if is_idle else 0.0
        for sequence, refusal in self.constraints.take_ready(patience):
            if refusal is not None:
                output = _error_output(sequence.request_id, refusal, sequence.front_end)
                output.is_refused = True
                self._ended.append(output)
                continue
            try:
                self._scheduler.add_request(sequence)
            except Exception:
                self.constraints.drop([sequence.request_id])
                self._refuse(sequence)

    def _refuse(self, request: Request | EngineCoreRequest) -> None:
        """Log the current exception and end the request with an error."""
        logger.exception("Request %s could not be queued", request.request_id)
        reason = "the request could not be queued; see the engine's log"
        self.refuse([request.request_id], reason, request.front_end)

    def _can_plan(self) -> bool:
        """Whether a step can be planned before those in flight are answered."""
        if not self._in_flight:
            return True
        if self._has_failed:
            return False
        return self._scheduler.can_plan_ahead

    @property
    def _has_failed(self) -> bool:
        """Whether the newest step in flight could not be submitted."""
        return isinstance(self._in_flight[-1].pending, FailedOutput)

    def _submit(self) -> bool:
        """Plan a step and submit it to the executor; whether it computes anything."""
        self.constraints.propose(self._scheduler.requests)
        planned = self._scheduler.schedule()
        is_idle = not (planned.total_num_scheduled_tokens or self._in_flight)
        self._patience.count_empty(is_idle and bool(self._scheduler.requests))
        masks: LateMasks | None = None
        if self.constraints.await_answers(planned, self._scheduler.requests):
            masks = partial(self._late_masks, planned)
        else:
            planned.token_masks = self.constraints.masks(planned, self._scheduler.requests)
        pending: PendingOutput = DoneOutput(ModelRunnerOutput({}))
        started = time.monotonic()
        try:
            if planned.says_anything or not self._in_flight:
                pending = self._executor.submit(planned, masks)
        except EngineDeadError:
            raise
        except Exception as error:
            pending = FailedOutput(error)
        except BaseException:
            self._lose(planned)
            raise
        self._in_flight.append(_Submitted(planned, pending, started))
        return planned.total_num_scheduled_tokens > 0

    def _late_masks(self, planned: SchedulerOutput) -> TokenMasks | None:
        """The masks of a step under way, by the answers of those before it."""
        try:
            while self._in_flight:
                self._ended += self._collect()
            return self.constraints.masks(planned, self._scheduler.requests)
        except EngineDeadError:
            raise
        except Exception as error:
            raise EngineDeadError(f"a step's answer could not be taken: {error!r}") from error

    def _collect(self) -> list[EngineCoreOutput]:
        """Wait for the oldest step and update the scheduler."""
        submitted = self._in_flight.popleft()
        planned = submitted.step
        try:
            result = submitted.pending.get()
        except EngineDeadError:
            raise
        except Exception as error:
            outputs = self._fail(planned, error)
        except BaseException:
            self._in_flight.appendleft(submitted)
            self._lose()
            raise
        else:
            if planned.total_num_scheduled_tokens:
                self._patience.forget_failed()
            outputs = self._scheduler.update_from_output(planned, result)
            began, self._answered = max(submitted.started, self._answered), time.monotonic()
            self._scheduler.learn(planned, result, self._answered - began)
        self._step_log.count(planned, submitted.started)
        for request_id, status in self.constraints.advance(outputs, self._scheduler.requests):
            self._scheduler.finish_requests(request_id, status)
        return outputs

    def _lose(self, *planned: SchedulerOutput) -> None:
        """Fail every step in flight: after Ctrl-C the caller may go on."""
        steps = [*(submitted.step for submitted in self._in_flight), *planned]
        self._in_flight.clear()
        for step in steps:
            lost = self._scheduler.fail_step(step, "the engine was interrupted")
            self.constraints.drop(output.request_id for output in lost)
            self._ended += lost

    def _fail(self, planned: SchedulerOutput, error: Exception) -> list[EngineCoreOutput]:
        request_ids = ", ".join(planned.num_scheduled_tokens) or "none"
        logger.exception("A step failed; its requests end here: %s", request_ids)
        self._patience.count_failed(error)
        # The cause stays in the log: it may hold paths or memory addresses.
        reason = f"the model failed in this request's step ({type(error).__name__})"
        return self._scheduler.fail_step(planned, reason)


def _error_output(request_id: str, reason: str, front_end: int) -> EngineCoreOutput:
    return EngineCoreOutput(
        request_id, [], finish_reason="error", stop_reason=reason, front_end=front_end
    )
