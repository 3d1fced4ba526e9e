"""Everything that counts what an engine does, behind one door; nothing where that is off."""

from __future__ import annotations

import asyncio
import time
from itertools import zip_longest

from prometheus_client import CollectorRegistry

from vllm_lite import envs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.log import init_logger
from vllm_lite.metrics.board import Board, Column
from vllm_lite.metrics.prometheus import EngineCollector
from vllm_lite.metrics.stats import SchedulerStats, SpecDecodingStats, StepStats

logger = init_logger(__name__)


class ConsoleStats:
    """Adds up steps and prints them."""

    def __init__(self, device: str, board: Board | None = None) -> None:
        self._board = board or Board()
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


class EngineMetrics:
    """The Prometheus metrics and the throughput line."""

    def __init__(self, config: VllmConfig, num_blocks: int, board: Board, is_first: bool) -> None:
        self._collector = EngineCollector(config, num_blocks)
        self._console = ConsoleStats(config.device, board)
        # One line for the engine, whoever else serves it.
        self._has_line = is_first
        self.registry: CollectorRegistry | None = self._collector.registry

    def record(self, scheduler: SchedulerStats | None, step: StepStats) -> None:
        self._collector.record(scheduler, step)
        self._console.record(scheduler, step)

    def count_rejection(self, reason: str) -> None:
        self._collector.count_rejection(reason)

    def log(self) -> None:
        if self._has_line:
            self._console.log()

    async def log_regularly(self) -> None:
        """Print the throughput line every VLLM_LOG_STATS_INTERVAL seconds, for ever."""
        while True:
            await asyncio.sleep(envs.VLLM_LOG_STATS_INTERVAL)
            self.log()


class NoMetrics:
    """Counts nothing."""

    registry: CollectorRegistry | None = None

    def record(self, scheduler: SchedulerStats | None, step: StepStats) -> None:
        """Nothing."""

    def count_rejection(self, reason: str) -> None:
        """Nothing."""

    def log(self) -> None:
        """Nothing."""

    async def log_regularly(self) -> None:
        """Nothing."""


def engine_metrics(
    config: VllmConfig, num_blocks: int, board: Board | None = None, *, is_first: bool = True
) -> EngineMetrics | NoMetrics:
    """Metrics, unless --disable-log-stats; the first front end on `board` reports for all."""
    if config.observability.disable_log_stats:
        return NoMetrics()
    return EngineMetrics(config, num_blocks, board or Board(), is_first)
