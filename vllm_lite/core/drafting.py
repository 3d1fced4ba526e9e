"""The drafts of a scheduler's requests: how many each may have, and what came of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_lite.core.request import Request
from vllm_lite.core.step import ModelRunnerOutput, SchedulerOutput
from vllm_lite.metrics.stats import SpecDecodingStats
from vllm_lite.spec_decode.draft_length import make_lengths

if TYPE_CHECKING:
    from vllm_lite.config.speculative import SpeculativeConfig


class Drafting:
    """Numbers of drafts, from the workers' drafter and from constraints."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self._most = config.num_drafts
        self._lengths = make_lengths(config)
        self._num_steps = 0
        # Drafts that constrained requests were given by a model, before the grammar cut them.
        self._asks_workers = self._most > 0 and not config.reads_texts
        self._asked: dict[str, int] = {}
        # Totals; None before anything was drafted without the option.
        self.stats = SpecDecodingStats() if self._most else None

    def begin_step(self, num_running: int) -> None:
        self._num_steps += 1
        self._lengths.begin_step(self._num_steps, num_running)

    def count(self, request: Request, most: int) -> int:
        """How many drafts, up to `most`, a request that awaits its next token gets in the step."""
        most = min(most, len(request.drafts) or self._most)
        if most <= 0:
            return 0
        if (asked := self._asked.pop(request.request_id, 0)) > 0:
            if not request.drafts:  # the grammar forbids the first
                self._lengths.observe(request.request_id, asked, 0)
            return request.num_drafts(min(most, asked))
        most = request.num_drafts(most)
        return self._lengths.choose(request.request_id, request.num_output_tokens, most)

    def hand_over(self, requests: list[Request], step: SchedulerOutput) -> None:
        """Enter the drafts that constraints gave to `requests` in their step, and ask for others.

        The workers cannot draft for a constrained request in the step itself: its masks are made
        before.
        """
        for request in requests:
            request_id = request.request_id
            num_verified = step.num_verified[request_id]
            if request.drafts and num_verified > 1:
                step.drafts[request_id] = list(request.drafts[: num_verified - 1])
            if self._asks_workers and num_verified and not request.can_run_ahead:
                count = self._lengths.choose(request_id, request.num_output_tokens, self._most)
                if count:
                    step.wanted_drafts[request_id] = count

    def observe(
        self, request: Request, num_verified: int, output: ModelRunnerOutput, num_sampled: int
    ) -> tuple[int, int] | None:
        """Learn what came of a request's drafts in a step that sampled so many tokens for it.

        Returns how many it had and how many came true, if it had any.
        """
        if not request.can_run_ahead:
            request.drafts = output.drafts.get(request.request_id, ())
            self._asked[request.request_id] = len(request.drafts)
        if num_verified <= 1:
            return None
        num_drafts, accepted = output.num_draft_tokens.get(request.request_id, 0), num_sampled - 1
        self._lengths.observe(request.request_id, num_drafts, accepted)
        if not num_drafts:
            return None
        self.stats = self.stats or SpecDecodingStats()
        self.stats.observe(num_drafts, accepted)
        return num_drafts, accepted

    def learn(self, step: SchedulerOutput, output: ModelRunnerOutput, seconds: float) -> None:
        num_drafts = sum(output.num_draft_tokens.values())
        # The time of drafts for the next step is no part of a step without any.
        if not step.num_prompt_tokens and (num_drafts or not output.drafts):
            self._lengths.learn(len(step.num_scheduled_tokens), num_drafts, seconds)

    def forget(self, request: Request) -> None:
        self._lengths.forget(request.request_id)
        self._asked.pop(request.request_id, None)
