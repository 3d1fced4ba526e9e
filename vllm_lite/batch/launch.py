"""`run-batch`, from options to exit code: what is opened in which order, and what is logged.

The one module of the package that makes an engine. Whatever the user can have got wrong with
files is found before the model loads.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_lite import __version__
from vllm_lite.batch.journal import Journal
from vllm_lite.batch.lines import Scan, read_lines, scan
from vllm_lite.batch.places import local_input, target_of
from vllm_lite.batch.urls import Reach
from vllm_lite.config.batch import BatchConfig
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.server import ServerConfig
from vllm_lite.engine.link.core_process import launch_core
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.log import init_logger, timeline
from vllm_lite.progress import progress_bar
from vllm_lite.server.parser_choice import check_reply_options

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from vllm_lite.config.vllm import VllmConfig
    from vllm_lite.engine.client import EngineClient
    from vllm_lite.engine.front.async_llm import AsyncLLM

logger = init_logger(__name__)

_BAR = (
    "{desc}: {percentage:3.0f}% Completed | {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}]"
)
# Seconds between two lines of a log that say how far the batch is.
_LOGGED_EVERY = 5.0


def run_batch(engine_args: EngineArgs, server_config: ServerConfig, batch: BatchConfig) -> int:
    """Answer every line of the input and store the answers; returns the exit code 0.

    Raises UsageError for what a user can mend and EngineDeadError where the engine failed;
    what was answered until then is in the journal.
    """
    timeline.mark("imports")
    engine_args.configure_logging()

    def answer(path: Path, whole: Scan, journal: Journal) -> None:
        config = engine_args.create_engine_config("llm")
        timeline.mark("config")
        check_reply_options(config, server_config)
        logger.info("vLLM-lite %s, model %s", __version__, engine_args.model)
        if journal.num_done:
            logger.info("%d of %d lines are done already", journal.num_done, whole.num_lines)
        client = _start_engine(config)
        # Imported before there is a loop, and after there is an engine that loads meanwhile.
        import uvloop

        uvloop.run(answer_lines(client, server_config, batch, path, whole, journal))

    with _terminable():
        process(batch, engine_args.model, answer)
    return 0


def process(batch: BatchConfig, model: str, answer: Callable[[Path, Scan, Journal], None]) -> None:
    """Open the files, have `answer` fill the journal with what it lacks, store the output.

    Raises UsageError, and whatever `answer` raises.
    """
    reach = Reach(batch.allowed_url_domains)
    target = target_of(batch.output_file, batch.input_file, batch.output_tmp_dir, reach)
    with local_input(batch.input_file, batch.output_tmp_dir, reach) as path:
        whole = scan(path)
        timeline.mark("input")
        with Journal(
            target.journal, whole.digest, model, whole.last_number, resume=batch.resume
        ) as journal:
            if journal.num_done < whole.num_lines:
                with _told_what_is_kept(journal, whole):
                    answer(path, whole, journal)
            target.store(journal.records())
            journal.remove()
    logger.info(
        "Wrote %d answers to %s, %d of them errors",
        journal.num_done,
        target.name,
        journal.num_failed,
    )


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Have SIGTERM do what Ctrl-C does, so that downloads and the engine are cleared away."""
    previous = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def _told_what_is_kept(journal: Journal, whole: Scan) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, EngineDeadError):
        if journal.num_done:
            logger.warning(
                "Not finished: %d of %d results are in %s; continue with --resume",
                journal.num_done,
                whole.num_lines,
                journal.path,
            )
        raise


def _start_engine(config: VllmConfig) -> AsyncLLM:
    core = launch_core(config)
    # Imported here, while the core loads.
    from vllm_lite.engine.front.async_llm import AsyncLLM
    from vllm_lite.engine.link.core_client import log_ready

    client = AsyncLLM(config, core)
    timeline.mark("waiting for the engine")
    log_ready(config, client.ready)
    logger.info("Ready: %s", timeline)
    return client


async def answer_lines(
    client: EngineClient,
    server_config: ServerConfig,
    batch: BatchConfig,
    path: Path,
    whole: Scan,
    journal: Journal,
) -> None:
    """Run the input's lines that the journal lacks, then shut the engine down."""
    from vllm_lite.batch.endpoints import Endpoints
    from vllm_lite.batch.runner import BatchRunner
    from vllm_lite.server.context import ServingContext

    try:
        endpoints = Endpoints(ServingContext(client, server_config))
        # As many again as can run at once wait, so that a finished one has a successor.
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
    """How far the batch is: a bar on a terminal, elsewhere a line of the log now and then."""

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
        """One more line is answered."""
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
    from prometheus_client import start_http_server

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
