"""`serve`, from options to exit code: what is started in which order, and what is logged.

The one module of the server that makes an engine. The engine core is started as soon as it has
a config and an address is taken, so that it loads while this process imports the HTTP stack.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vllm_lite import __version__
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.server import ServerConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.link.core_handle import StartedCore
from vllm_lite.engine.link.core_process import launch_core
from vllm_lite.errors import UsageError
from vllm_lite.log import init_logger, set_process_name, timeline
from vllm_lite.metrics.board import Board, NoBoard
from vllm_lite.server.custom_middleware import load_middleware
from vllm_lite.server.parser_choice import check_reply_options
from vllm_lite.server.process.garbage import settle
from vllm_lite.server.process.listen import Listener
from vllm_lite.server.process.peers import NoPeers, Peers
from vllm_lite.server.process.replicas import NoReplicas, Replicas

if TYPE_CHECKING:
    from fastapi import FastAPI

    from vllm_lite.engine.front.async_llm import AsyncLLM
    from vllm_lite.server.process.lifecycle import Beside

logger = init_logger(__name__)

# Seconds of loading after which the log says what is loading.
BANNER_DELAY = 10.0


def run_server(
    engine_args: EngineArgs, server_config: ServerConfig, beside: Beside | None = None
) -> int:
    """Serve until a signal ends it, doing `beside` too; returns the exit code 0.

    Raises UsageError or CheckpointError for what a user can mend, EngineDeadError where the
    engine failed; then nothing of the server is left either.
    """
    timeline.mark("imports")
    set_process_name("APIServer")
    engine_args.configure_logging()
    config = engine_args.create_engine_config("server")
    timeline.mark("config")
    # What a user has got wrong shows now: before anything is logged or loaded.
    load_middleware(server_config.middleware)
    check_reply_options(config, server_config)
    if config.model.runner == "pooling":
        raise UsageError(
            "--runner pooling: no HTTP route gives vectors yet; call "
            "LLM(model, runner='pooling').embed(prompts) from Python, or leave it out"
        )
    with _terminable():
        listener = Listener(server_config)
        banner = _Banner(engine_args.model)
        try:
            _start_and_serve(config, server_config, listener, banner, beside)
        finally:
            banner.cancel()
            listener.close()
    return 0


class _Banner:
    """The first line of the log, after what a user has got wrong would have shown.

    That is when the model is loaded, or is still loading after some seconds.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._timer = threading.Timer(BANNER_DELAY, self._log)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> bool:
        """Log nothing later; whether nothing was logged yet."""
        is_first = not self._timer.finished.is_set()
        self._timer.cancel()
        return is_first

    def show(self) -> None:
        """Log the line now, where it was not."""
        if self.cancel():
            self._log()

    def _log(self) -> None:
        logger.info("vLLM-lite %s, model %s", __version__, self._model)


@contextmanager
def _terminable() -> Iterator[None]:
    """Until the server has handlers of its own, SIGTERM unwinds the stack as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _start_and_serve(
    config: VllmConfig,
    server_config: ServerConfig,
    listener: Listener,
    banner: _Banner,
    beside: Beside | None,
) -> None:
    core = launch_core(
        config,
        in_process=server_config.disable_frontend_multiprocessing,
        num_front_ends=server_config.api_server_count,
    )
    board, peers, replicas = _start_replicas(config, server_config, core, listener)
    # Imported here, while the core loads.
    import uvloop

    from vllm_lite.engine.front.async_llm import AsyncLLM
    from vllm_lite.engine.link.core_client import log_ready
    from vllm_lite.server.app import build_app

    timeline.mark("HTTP imports")
    client = AsyncLLM(config, core, board=board)
    timeline.mark("waiting for the engine")
    app = build_app(client, server_config, peers=peers)
    timeline.mark("app")
    banner.show()
    log_ready(config, client.ready)
    _log_listening(app, listener)
    settle()
    uvloop.run(serve(client, app, server_config, listener, replicas, beside))


def _start_replicas(
    config: VllmConfig, server_config: ServerConfig, core: StartedCore, listener: Listener
) -> tuple[Board | NoBoard, Peers | NoPeers, Replicas | NoReplicas]:
    """The other processes of --api-server-count, and the ways to hear of what they do."""
    count = server_config.api_server_count
    if count == 1:
        return NoBoard(), NoPeers(), NoReplicas()
    board = Board.create(count)
    replicas = Replicas(config, server_config, core, listener, board)
    return board, Peers(0, replicas.peer_fds), replicas


async def serve(
    client: AsyncLLM,
    app: FastAPI,
    server_config: ServerConfig,
    listener: Listener,
    replicas: Replicas | NoReplicas | None = None,
    beside: Beside | None = None,
) -> None:
    """Serve until a signal, or a death in the engine or among the replicas; raises the latter."""
    from vllm_lite.server.process.http_server import http_server
    from vllm_lite.server.process.lifecycle import Lifecycle
    from vllm_lite.server.process.tls import CertificateWatch

    lifecycle = Lifecycle(
        http_server(app, server_config, listener.tls, client.config.logging),
        listener,
        client,
        app.state.context.generations,
        server_config.shutdown_timeout,
        replicas or NoReplicas(),
        beside,
    )
    app.state.context.start()
    if beside is not None:
        beside.start(app.state.context)
    watch = None
    if server_config.enable_ssl_refresh and listener.tls is not None:
        watch = asyncio.create_task(CertificateWatch(listener.tls, server_config).run())
    try:
        await lifecycle.run()
    finally:
        if watch is not None:
            watch.cancel()


def _log_listening(app: FastAPI, listener: Listener) -> None:
    logger.info("Ready: %s", timeline)
    logger.info("Starting vLLM-lite server on %s", listener.url)
    for route in app.routes:
        methods = ", ".join(sorted(getattr(route, "methods", None) or ()))
        logger.debug("Route: %s, Methods: %s", getattr(route, "path", ""), methods)
