"""The throughput line: what an engine did since the last one, once every ten seconds.

Silent while idle, after one line of zeros. Knows no request and no metrics library.
"""

from __future__ import annotations

import time
from itertools import zip_longest

from vllm_lite.log import init_logger
from vllm_lite.metrics.board import Board, Column, NoBoard
from vllm_lite.metrics.request_stats import StepStats
from vllm_lite.metrics.stats import SchedulerStats, SpecDecodingStats

logger = init_logger(__name__)


class ConsoleStats:
    """Adds up steps and prints them."""

    def __init__(self, device: str, board: Board | NoBoard | None = None) -> None:
        self._board = board or NoBoard()
        # What other front ends had counted when the last line was printed.
        self._others = (0, 0)
        self._device = device.upper().replace("CUDA", "GPU")
        self._scheduler = SchedulerStats()
        self._since = time.monotonic()
        self._prompt_tokens = self._generation_tokens = 0
        self._num_preemptions = 0
        self._drafted = SpecDecodingStats()
        self._was_idle = True

    def record(self, scheduler: SchedulerStats | None, step: StepStats) -> None:
        """Count one step; tokens from the prefix cache are not throughput."""
        if scheduler is not None:
            self._scheduler = scheduler
        num_prompt = step.num_prompt_tokens - step.num_cached_tokens
        self._prompt_tokens += num_prompt
        self._generation_tokens += step.num_generation_tokens
        self._board.add(Column.PROMPT_TOKENS, num_prompt)
        self._board.add(Column.GENERATION_TOKENS, step.num_generation_tokens)

    def log(self) -> str | None:
        """Print the line of the time since the last call, and return it; None where silent."""
        now, stats = time.monotonic(), self._scheduler
        seconds = max(now - self._since, 1e-9)
        prompt, generated = (count / seconds for count in self._take_tokens())
        preemptions = stats.num_preemptions - self._num_preemptions
        self._since = now
        self._num_preemptions = stats.num_preemptions
        is_idle = not (prompt or generated or stats.num_running or stats.num_waiting)
        is_silent, self._was_idle = is_idle and self._was_idle, is_idle
        if is_silent:
            return None
        line = (
            f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
            f"Avg generation throughput: {generated:.1f} tokens/s, "
            f"Running: {stats.num_running} reqs, Waiting: {stats.num_waiting} reqs, "
        )
        if preemptions:
            line += f"Preemptions: {preemptions}, "
        line += (
            f"{self._device} KV cache usage: {stats.kv_cache_usage:.1%}, "
            f"Prefix cache hit rate: {stats.prefix_cache_hit_rate:.1%}"
        )
        logger.info("%s", line)
        if stats.spec_decoding is not None:
            self._log_drafts(stats.spec_decoding, seconds)
        return line

    def _log_drafts(self, now: SpecDecodingStats, seconds: float) -> None:
        """Print what was drafted since the last time, if anything was."""
        before, self._drafted = self._drafted, now
        num_drafts = now.num_drafts - before.num_drafts
        if not num_drafts:
            return
        drafted = now.num_draft_tokens - before.num_draft_tokens
        pairs = zip_longest(
            now.num_accepted_tokens_per_pos, before.num_accepted_tokens_per_pos, fillvalue=0
        )
        accepted = [after - earlier for after, earlier in pairs]
        rates = ", ".join(f"{count / num_drafts:.3f}" for count in accepted)
        logger.info(
            "SpecDecoding metrics: Mean acceptance length: %.2f, Accepted throughput: %.2f tokens/s"
            ", Drafted throughput: %.2f tokens/s, Accepted: %d tokens, Drafted: %d tokens, "
            "Per-position acceptance rate: %s, Avg Draft acceptance rate: %.1f%%",
            1 + sum(accepted) / num_drafts,
            sum(accepted) / seconds,
            drafted / seconds,
            sum(accepted),
            drafted,
            rates,
            100 * sum(accepted) / drafted,
        )

    def _take_tokens(self) -> tuple[int, int]:
        """Prompt and generated tokens since the last call, of all front ends."""
        board, before = self._board, self._others
        others = board.others(Column.PROMPT_TOKENS), board.others(Column.GENERATION_TOKENS)
        prompt = self._prompt_tokens + others[0] - before[0]
        generated = self._generation_tokens + others[1] - before[1]
        self._prompt_tokens = self._generation_tokens = 0
        self._others = others
        return prompt, generated
