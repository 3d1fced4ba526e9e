"""A log line for each step: what it held and how long it took. Knows steps by their messages alone.

Absent, it costs a call.
"""

from __future__ import annotations

import time

from vllm_lite.core.step import SchedulerOutput
from vllm_lite.log import init_logger

logger = init_logger(__name__)


class NoStepLog:
    """Tells nothing."""

    def tell(self, step: SchedulerOutput, started: float) -> None:
        """Of a step that is answered, and was submitted at `started` monotonic seconds."""


class StepLog(NoStepLog):
    """Tells of every step that computes something."""

    def __init__(self) -> None:
        self._number = 0

    def tell(self, step: SchedulerOutput, started: float) -> None:
        """One line."""
        counts = step.num_scheduled_tokens.values()
        if not counts:
            return
        self._number += 1
        # A step gives a request that decodes one token; a prompt's last token looks the same.
        prompts = [count for count in counts if count > 1]
        logger.info(
            "Step %d: %d prompts with %d tokens, %d requests with a token each, %.2f ms",
            self._number,
            len(prompts),
            sum(prompts),
            len(counts) - len(prompts),
            1000 * (time.monotonic() - started),
        )
