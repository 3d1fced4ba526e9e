"""Limits the number of partly computed prompts.

--max-num-partial-prefills and --max-long-partial-prefills with vLLM's meaning: with the
first at 1 (the default) only the token budget limits; above 1 both are kept, and a long
prompt that has to wait lets shorter ones pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from vllm_lite.core.request import Request

if TYPE_CHECKING:
    from vllm_lite.config.vllm import VllmConfig

# Without a threshold a prompt is long from this share of the context on, as in vLLM.
_LONG_SHARE = 0.04


class Verdict(Enum):
    """The decision on the next waiting request."""

    ADMIT = "admit"
    PASS_OVER = "pass over"  # this one waits, the next may go
    STOP = "stop"


class PrefillLimit:
    """Counts partial prefills within one step."""

    def __init__(self, config: VllmConfig) -> None:
        scheduler = config.scheduler
        self._is_chunked = scheduler.enable_chunked_prefill
        self._is_on = scheduler.enable_chunked_prefill and scheduler.max_num_partial_prefills > 1
        self._max_partial = scheduler.max_num_partial_prefills
        self._max_long = scheduler.max_long_partial_prefills
        threshold = (
            scheduler.long_prefill_token_threshold if scheduler.enable_chunked_prefill else 0
        )
        if self._is_on and not threshold:
            threshold = max(1, int(config.model.max_model_len * _LONG_SHARE))
        # Most tokens of one prompt in a step.
        self.chunk_limit = self._threshold = threshold or 1 << 62
        is_adaptive = scheduler.long_prefill_token_threshold_adaptive
        self._shared_tokens = scheduler.step_tokens if is_adaptive else 0
        self._num_partial = self._num_long = 0

    def share_among(self, num_requests: int) -> None:
        """Raise an adaptive limit to each request's share of a step."""
        if self._shared_tokens:
            share = self._shared_tokens // max(1, num_requests)
            self.chunk_limit = max(self._threshold, share)

    def begin_step(self, running: Iterable[Request], num_scheduled: dict[str, int]) -> None:
        """Count what the step's running requests leave unfinished."""
        self._num_partial = self._num_long = 0
        if self._is_on:
            for request in running:
                missing = request.num_missing_tokens
                if missing > num_scheduled.get(request.request_id, 0):
                    self.count(missing, 0)

    def judge(self, request: Request, missing: int, chunk: int) -> Verdict:
        """Whether a request that misses `missing` tokens may start with `chunk` of them.

        Whole prompts that are pooled hold no room for another step: the next one begins with what
        was passed over.
        """
        if not self._is_chunked and chunk < missing:
            return Verdict.STOP if request.is_sampling else Verdict.PASS_OVER
        if not self._is_on or chunk == missing:
            return Verdict.ADMIT
        has_room = self._num_partial < self._max_partial
        if missing > self.chunk_limit:
            return (
                Verdict.ADMIT if has_room and self._num_long < self._max_long else Verdict.PASS_OVER
            )
        return Verdict.ADMIT if has_room else Verdict.STOP

    def count(self, missing: int, chunk: int) -> None:
        if chunk < missing:
            self._num_partial += 1
            self._num_long += missing > self.chunk_limit
