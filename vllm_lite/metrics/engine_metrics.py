"""Everything that counts what an engine does, behind one door; nothing where that is off."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from vllm_lite import envs
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.metrics.board import Board, NoBoard
from vllm_lite.metrics.console import ConsoleStats
from vllm_lite.metrics.prometheus import EngineCollector
from vllm_lite.metrics.request_stats import StepStats
from vllm_lite.metrics.stats import SchedulerStats


class EngineMetrics:
    """The Prometheus metrics and the throughput line."""

    def __init__(
        self, config: VllmConfig, num_blocks: int, board: Board | NoBoard, is_first: bool
    ) -> None:
        self._collector = EngineCollector(config, num_blocks)
        self._console = ConsoleStats(config.device, board)
        # One line for the engine, whoever else serves it.
        self._has_line = is_first
        self.registry: CollectorRegistry | None = self._collector.registry

    def record(self, scheduler: SchedulerStats | None, step: StepStats) -> None:
        """Count one step, or what happened between two."""
        self._collector.record(scheduler, step)
        self._console.record(scheduler, step)

    def count_rejection(self, reason: str) -> None:
        """Count a request that was refused because too much waits."""
        self._collector.count_rejection(reason)

    def log(self) -> None:
        """Print the throughput line now."""
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
    config: VllmConfig,
    num_blocks: int,
    board: Board | NoBoard | None = None,
    *,
    is_first: bool = True,
) -> EngineMetrics | NoMetrics:
    """Metrics, unless --disable-log-stats; the first front end on `board` reports for all."""
    if config.observability.disable_log_stats:
        return NoMetrics()
    return EngineMetrics(config, num_blocks, board or NoBoard(), is_first)
