"""Looks at the engine core: totals and log lines of its steps, snapshots of requests and blocks."""

from __future__ import annotations

import time

from vllm_lite.core.request import Request
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.core.step import SchedulerOutput
from vllm_lite.log import init_logger
from vllm_lite.metrics.stats import EngineSnapshot, RequestSnapshot, SchedulerStats

logger = init_logger(__name__)

# Seconds for which a snapshot is reused.
KEPT = 0.45
# Most blocks and requests in a snapshot; of more blocks, every n-th.
MOST_BLOCKS, MOST_REQUESTS = 1024, 200


class StepTotals:
    """Adds up the non-empty steps."""

    def __init__(self) -> None:
        self.num_steps = self.num_rows = self.num_tokens = 0
        self.seconds = 0.0

    def count(self, step: SchedulerOutput, started: float) -> None:
        """Count an answered step that was submitted at `started` monotonic seconds."""
        if step.total_num_scheduled_tokens:
            self.num_steps += 1
            self.num_rows += len(step.num_scheduled_tokens)
            self.num_tokens += step.total_num_scheduled_tokens
            self.seconds += time.monotonic() - started


class StepLog(StepTotals):
    """Logs each non-empty step."""

    def count(self, step: SchedulerOutput, started: float) -> None:
        counts = step.num_scheduled_tokens.values()
        if not counts:
            return
        super().count(step, started)
        # A request that decodes computes a token, and drafts; a prompt's last token looks the same.
        verified = step.num_verified.values()
        prompts = [n for n, v in zip(counts, verified, strict=True) if n > max(v, 1)]
        logger.info(
            "Step %d: %d prompts with %d tokens, %d requests with a token each, %.2f ms",
            self.num_steps,
            len(prompts),
            sum(prompts),
            len(counts) - len(prompts),
            1000 * (time.monotonic() - started),
        )


class Snapshots:
    """Takes snapshots of one scheduler and the steps it planned."""

    def __init__(self, scheduler: Scheduler, steps: StepTotals) -> None:
        self._scheduler = scheduler
        self._steps = steps
        self._last: EngineSnapshot | None = None

    def take(self, stats: SchedulerStats) -> EngineSnapshot:
        """The state now, or the last snapshot if it is recent."""
        now = time.monotonic()
        if self._last is None or now - self._last.time >= KEPT:
            self._last = self._look(now, stats)
        return self._last

    def _look(self, now: float, stats: SchedulerStats) -> EngineSnapshot:
        scheduler, steps = self._scheduler, self._steps
        stride = -(-stats.num_total_blocks // MOST_BLOCKS) or 1
        shown = scheduler.kv_manager.pool.blocks[1::stride]
        states = {b.block_id: -1 if b.content_hash else -2 for b in shown if not b.ref_count}
        running = {request.request_id for request in scheduler.running}
        requests = []
        # Running requests first, then waiting ones, in order of arrival.
        listed = sorted(scheduler.requests.values(), key=lambda one: one.request_id not in running)
        for index, request in enumerate(listed[:MOST_REQUESTS]):
            tables: list[list[int]] = []
            if request.request_id in running:
                tables = scheduler.kv_manager.block_ids(request)
                states.update(
                    (i, index) for table in tables for i in table if i % stride == 1 % stride
                )
            requests.append(_describe(request, now, sum(map(len, tables)) if tables else 0))
        return EngineSnapshot(
            time=now,
            stats=stats,
            num_steps=steps.num_steps,
            step_seconds=steps.seconds,
            num_rows=steps.num_rows,
            num_tokens=steps.num_tokens,
            blocks=[states.get(block.block_id, MOST_REQUESTS) for block in shown],
            stride=stride,
            requests=requests,
        )


def _describe(request: Request, now: float, num_blocks: int) -> RequestSnapshot:
    begun = request.scheduled_time
    return RequestSnapshot(
        request_id=request.request_id,
        tenant=request.tenant,
        age=now - request.arrival_time,
        waited=(now if begun is None else begun) - request.arrival_time,
        is_running=num_blocks > 0,
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens or 0,
        num_computed_tokens=request.num_computed_tokens,
        num_output_tokens=request.num_output_tokens,
        num_blocks=num_blocks,
    )
