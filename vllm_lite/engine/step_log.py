"""A log line for each step: what it held and how long it took. Knows steps by their messages alone.

Absent, it costs a call.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from vllm_lite.core.step import SchedulerOutput
from vllm_lite.log import init_logger

logger = init_logger(__name__)


class NoStepLog:
    """Tells nothing."""

    def timed(self, step: SchedulerOutput) -> contextlib.AbstractContextManager[None]:
        """Around the work of one step."""
        return contextlib.nullcontext()


class StepLog(NoStepLog):
    """Tells of every step that computes something."""

    def __init__(self) -> None:
        self._number = 0

    @contextlib.contextmanager
    def timed(self, step: SchedulerOutput) -> Iterator[None]:
        """Time the work of one step and tell of it."""
        counts = step.num_scheduled_tokens.values()
        started = time.monotonic()
        yield
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
