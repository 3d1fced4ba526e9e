"""Durations and sizes of steps: totals, and a log line for each on demand."""

from __future__ import annotations

import time

from vllm_lite.core.step import SchedulerOutput
from vllm_lite.log import init_logger

logger = init_logger(__name__)


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
