"""How long steps take and what they hold: totals, and a log line for each where it is wanted.

Knows steps by their messages alone.
"""

from __future__ import annotations

import time

from vllm_lite.core.step import SchedulerOutput
from vllm_lite.log import init_logger

logger = init_logger(__name__)


class StepTotals:
    """Adds up the steps that compute something."""

    def __init__(self) -> None:
        self.num_steps = self.num_rows = self.num_tokens = 0
        self.seconds = 0.0

    def tell(self, step: SchedulerOutput, started: float) -> None:
        """Of a step that is answered, and was submitted at `started` monotonic seconds."""
        if step.total_num_scheduled_tokens:
            self.num_steps += 1
            self.num_rows += len(step.num_scheduled_tokens)
            self.num_tokens += step.total_num_scheduled_tokens
            self.seconds += time.monotonic() - started


class StepLog(StepTotals):
    """Tells of every step that computes something."""

    def tell(self, step: SchedulerOutput, started: float) -> None:
        """One line."""
        counts = step.num_scheduled_tokens.values()
        if not counts:
            return
        super().tell(step, started)
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
