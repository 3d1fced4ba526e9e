"""Answers a batch's lines with an engine; imported while the engine core loads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop
from prometheus_client import CollectorRegistry, start_http_server

from vllm_lite.batch.journal import Journal
from vllm_lite.batch.lines import Scan, read_lines
from vllm_lite.batch.runner import BatchRunner, Endpoints
from vllm_lite.config.batch import BatchConfig
from vllm_lite.config.server import ServerConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.client import EngineClient
from vllm_lite.engine.front.async_llm import AsyncLLM
from vllm_lite.engine.link.core_client import log_ready
from vllm_lite.engine.link.core_handle import CoreHandle
from vllm_lite.errors import UsageError
from vllm_lite.log import init_logger, timeline
from vllm_lite.progress import progress_bar
from vllm_lite.server.context import ServingContext

logger = init_logger(__name__)

_BAR = (
    "{desc}: {percentage:3.0f}% Completed | {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"
)
# Seconds between two progress lines in the log.
_LOGGED_EVERY = 5.0


def answer_all(
    config: VllmConfig,
    core: CoreHandle,
    server_config: ServerConfig,
    batch: BatchConfig,
    path: Path,
    whole: Scan,
    journal: Journal,
) -> None:
    """Wait for the engine core, then answer the lines that the journal lacks."""
    client = AsyncLLM(config, core)
    timeline.mark("waiting for the engine")
    log_ready(config, client.ready)
    logger.info("Ready: %s", timeline)
    uvloop.run(answer_lines(client, server_config, batch, path, whole, journal))


async def answer_lines(
    client: EngineClient,
    server_config: ServerConfig,
    batch: BatchConfig,
    path: Path,
    whole: Scan,
    journal: Journal,
) -> None:
    """Answer the lines that the journal lacks, then shut the engine down."""
    try:
        endpoints = Endpoints(ServingContext(client, server_config))
        # As many wait as run, so that a finished request is replaced at once.
        num_in_flight = min(2 * client.config.scheduler.max_num_seqs, whole.num_lines)
        with (
            _metrics_served(client.registry, batch),
            _Progress(whole.num_lines, journal.num_done) as progress,
        ):
            runner = BatchRunner(endpoints, journal, num_in_flight, progress.add)
            await runner.run(read_lines(path))
    finally:
        await client.shutdown(0)


class _Progress:
    """Progress of a batch: a bar on a terminal, elsewhere a log line now and then."""

    def __init__(self, num_lines: int, num_done: int) -> None:
        self._bar = progress_bar(
            total=num_lines, initial=num_done, desc="Running batch", unit="req", bar_format=_BAR
        )
        self._num_lines, self._num_done = num_lines, num_done
        self._logged = time.monotonic()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self) -> None:
        self._bar.update()
        self._num_done += 1
        now = time.monotonic()
        if self._bar.disable and now - self._logged >= _LOGGED_EVERY:
            self._logged = now
            logger.info("%d of %d lines are done", self._num_done, self._num_lines)


@contextlib.contextmanager
def _metrics_served(registry: CollectorRegistry | None, batch: BatchConfig) -> Iterator[None]:
    if not batch.enable_metrics or registry is None:
        yield
        return
    try:
        server, thread = start_http_server(batch.port, addr=batch.url, registry=registry)
    except OSError as error:
        raise UsageError(
            f"cannot serve metrics at {batch.url}:{batch.port}: {error.strerror}; choose "
            "another --port or --url"
        ) from None
    logger.info("Metrics are at http://%s:%d/metrics", batch.url, server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
