"""Bounds the prompt tokens of a step, so that running requests get their tokens at an even pace.

A step takes its time without prompts and a time for each prompt token; both are learned from the
steps that ran. Only how prompts are cut depends on it, never a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from vllm_lite.core.request import Request
from vllm_lite.core.step import SchedulerOutput

if TYPE_CHECKING:
    from vllm_lite.config.scheduler import SchedulerConfig

# The automatic target, in steps without prompts. Prompts get at least (it - 1) / it of the time.
_STRETCH = 2.2
# Steps in which all known prompts are to be computed, at most, whatever the automatic target.
_PATIENCE = 16
_MOST_TOKENS = 1 << 16
# A prompt token takes some time, however long steps without any were.
_LEAST_SECONDS = 1e-7
# Waiting requests whose prompts are counted.
_MOST_COUNTED = 64
# Weight of the newest step in the estimates.
_NEWEST = 0.2
UNLIMITED = 1 << 62


class StepPace:
    """Learns what steps cost and says how many prompt tokens the next may have."""

    # Prompts always advance by so many tokens.
    least_tokens = 16

    def __init__(self, config: SchedulerConfig) -> None:
        target = config.scheduler_target_itl_ms
        self._is_auto = target is None
        self._target = (target or 0.0) / 1e3
        self._is_on = config.enable_chunked_prefill and target != 0
        # What the largest backlog asked of a step, since the last one was done.
        self._least = 0
        # Seconds of a step without prompts, by the bit length of its number of requests.
        self._alone: dict[int, float] = {}
        # Those that a prompt token adds, by the bit length of their number: few cost more each.
        self._added: dict[int, float] = {}

    def prompt_tokens(self, running: list[Request], known: Iterable[Request]) -> int:
        """Most prompt tokens of the next step; `known` are all requests, in order of arrival."""
        if not (self._is_on and self._alone and self._added):
            return UNLIMITED
        num_decoding = sum(request.num_missing_tokens == 1 for request in running)
        if not num_decoding:
            self._least = 0
            return UNLIMITED
        tokens = self.tokens_beside(num_decoding)
        if self._is_auto:
            counted = islice(known, len(running) + _MOST_COUNTED)
            backlog = sum(request.num_missing_tokens for request in counted)
            least = backlog // _PATIENCE
            # Until all of it is done: steps that shrink with it would put off the last prompts.
            self._least = max(self._least, least) if backlog > num_decoding else least
            tokens = max(tokens, self._least)
        return tokens

    def tokens_beside(self, num_decoding: int) -> int:
        """Most prompt tokens that keep a step with so many requests within the target."""
        alone = _nearest(self._alone, num_decoding)
        most = (_STRETCH * alone if self._is_auto else self._target) - alone
        tokens = self.least_tokens
        while tokens < _MOST_TOKENS and _nearest(self._added, 2 * tokens) * 2 * tokens <= most:
            tokens *= 2
        return max(tokens, min(2 * tokens, int(most / _nearest(self._added, tokens))))

    def observe(self, step: SchedulerOutput, seconds: float) -> None:
        if not self._is_on:
            return
        prompts, num_decoding = step.num_prompt_tokens, len(step.num_scheduled_tokens)
        if prompts:
            verified = step.num_verified.items()
            num_decoding = sum(step.num_scheduled_tokens[name] == count for name, count in verified)
        self.learn(num_decoding, prompts, seconds)

    def learn(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        if not num_prompt_tokens:
            _learn(self._alone, num_decoding, seconds)
            return
        alone = _nearest(self._alone, num_decoding) if num_decoding and self._alone else 0.0
        added = max(seconds - alone, _LEAST_SECONDS * num_prompt_tokens)
        if num_prompt_tokens >= self.least_tokens:  # the ends of prompts say little
            _learn(self._added, num_prompt_tokens, added / num_prompt_tokens)


def _nearest(known: dict[int, float], number: int) -> float:
    """The estimate for `number`, or for the nearest number of which something is known."""
    size = number.bit_length()
    return known[min(known, key=lambda other: abs(other - size))]


def _learn(known: dict[int, float], number: int, value: float) -> None:
    size = number.bit_length()
    old = known.get(size, value)
    known[size] = old + _NEWEST * (value - old)
