"""An API process once its engine core is loading: the application, its server and their end.

Imports the whole HTTP stack, so whoever starts an engine core imports this afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable
from typing import Protocol

import uvloop
from fastapi import FastAPI

from vllm_lite.config.server import ServerConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.client import EngineClient
from vllm_lite.engine.front.async_llm import AsyncLLM
from vllm_lite.engine.link.core_client import log_ready
from vllm_lite.engine.link.core_handle import JoinedCore, StartedCore
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.log import init_logger, timeline
from vllm_lite.metrics.board import Board
from vllm_lite.server.app import build_app
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import Generations
from vllm_lite.server.process.http_server import FLUSH_TIMEOUT, HttpServer, http_server
from vllm_lite.server.process.listen import CertificateWatch, Listener
from vllm_lite.server.process.peers import Peers
from vllm_lite.server.process.replicas import ReplicaJob as ReplicaJob
from vllm_lite.server.process.replicas import Replicas

logger = init_logger(__name__)

# Seconds that other processes of the server may take to end after their last reply.
REPLICA_PATIENCE = 10.0
# Seconds between two looks at the engine.
WATCH_INTERVAL = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Young objects before a collection, and collections before older objects are examined too.
# Reference counts free what a token leaves behind; Python's defaults cost a tenth of the time.
_GC_THRESHOLDS = (10_000, 20, 20)


class Beside(Protocol):
    """Background work of a server."""

    def start(self, context: ServingContext) -> None:
        """Begin; the event loop runs."""

    async def stop(self) -> None:
        """Stop in a state that can be resumed; calling it again does nothing."""


class Lifecycle:
    """Runs one HTTP server until a signal or the engine's death ends it."""

    def __init__(
        self,
        server: HttpServer,
        listener: Listener,
        client: EngineClient,
        generations: Generations,
        shutdown_timeout: float,
        replicas: Replicas | None = None,
        beside: Beside | None = None,
    ) -> None:
        self._server = server
        self._listener = listener
        self._client = client
        self._generations = generations
        self._shutdown_timeout = shutdown_timeout
        self._replicas = replicas or Replicas()
        self._beside = beside
        self._signal: asyncio.Event = asyncio.Event()

    async def run(self) -> None:
        """Serve; returns after a signal, raises EngineDeadError after the engine's death."""
        self.handle_signals()
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener.socket]))
        watching = asyncio.create_task(self._wait_engine_dead())
        signalled = asyncio.create_task(self._signal.wait())
        bereaved = asyncio.create_task(self._replicas.wait_death())
        starting = asyncio.create_task(self._replicas.wait_ready())
        tasks = (serving, watching, signalled, bereaved)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            is_ended = signalled.done() or bereaved.done()
            if is_ended and not (watching.done() or self._client.errored):
                # Let running requests finish first.
                self._replicas.terminate()
                await self._drain()
            self._server.should_exit = True
            await _served(serving)
            await self._replicas.wait_ended(self._shutdown_timeout + REPLICA_PATIENCE)
            self._raise_cause(bereaved)
        finally:
            for task in (*tasks, starting):
                task.cancel()
            await asyncio.gather(*tasks, starting, return_exceptions=True)
            await self._replicas.wait_ended(0)
            await self._stop_beside()
            await self._client.shutdown(0)

    def handle_signals(self) -> None:
        """Let signals end `run()`, also those that come before it begins."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)

    def _raise_cause(self, bereaved: asyncio.Task[str]) -> None:
        """Raise what ended the server, where that was no signal."""
        if self._signal.is_set():
            return
        if self._client.errored:
            raise self._client.dead_error
        if bereaved.done():
            raise EngineDeadError(f"An API server process died: {bereaved.result()}")

    async def _drain(self) -> None:
        num_running = len(self._generations)
        logger.info(
            "Shutting down: %d requests may run on for %g s; a second signal exits at once",
            num_running,
            self._shutdown_timeout if num_running else 0,
        )
        await self._stop_beside()
        await self._generations.drain(self._shutdown_timeout)
        await self._generations.wait_idle(FLUSH_TIMEOUT)

    async def _stop_beside(self) -> None:
        if self._beside is not None:
            await self._beside.stop()

    async def _wait_engine_dead(self) -> None:
        with contextlib.suppress(EngineDeadError):
            while True:
                await self._client.check_health()
                await asyncio.sleep(WATCH_INTERVAL)

    def _on_signal(self, number: int) -> None:
        if self._signal.is_set():
            # Children die with this process; there is nothing else to wait for.
            self._listener.close()
            os._exit(128 + number)
        self._signal.set()


async def _served(serving: asyncio.Task[None]) -> None:
    """Wait for the HTTP server's end; raises UsageError where it could not listen."""
    try:
        await serving
    except OSError as error:
        raise UsageError(
            f"The address was taken while the server started: {error.strerror}; "
            "choose another with --port"
        ) from None


def serve_first(
    config: VllmConfig,
    server_config: ServerConfig,
    listener: Listener,
    core: StartedCore,
    board: Board,
    replicas: Replicas,
    on_built: Callable[[], None],
    beside: Beside | None,
) -> None:
    """Serve in the process that started `core`; calls `on_built` once the engine is ready.

    Raises what ends the server other than a signal.
    """
    timeline.mark("HTTP imports")
    client = AsyncLLM(config, core, board=board)
    timeline.mark("waiting for the engine")
    peers = Peers(0, replicas.peer_fds)
    app = build_app(client, server_config, peers=peers)
    timeline.mark("app")
    on_built()
    log_ready(config, client.ready)
    _log_listening(app, listener)
    _settle_garbage()
    uvloop.run(_serve(client, app, server_config, listener, replicas, beside))


def join_engine(job: ReplicaJob) -> AsyncLLM:
    """The engine of a replica, once it is ready; raises what keeps it from starting."""
    core = JoinedCore(job.channel_fd, job.heartbeat_fd, job.core_exit_fd, job.index)
    return AsyncLLM(job.config, core, board=Board(job.board_fd, job.index, job.count))


def serve_replica(job: ReplicaJob, client: AsyncLLM) -> None:
    """Serve in a replica; raises what ends it other than a signal."""
    app = build_app(client, job.server_config, peers=Peers(job.index, job.peer_fds))
    _settle_garbage()
    os.write(job.ready_fd, b"r")
    listener = Listener.inherited(job.server_config, job.listener_fd, job.url)
    uvloop.run(_serve(client, app, job.server_config, listener, Replicas(), None))


async def _serve(
    client: AsyncLLM,
    app: FastAPI,
    server_config: ServerConfig,
    listener: Listener,
    replicas: Replicas,
    beside: Beside | None,
) -> None:
    lifecycle = Lifecycle(
        http_server(app, server_config, listener.tls, client.config.logging),
        listener,
        client,
        app.state.context.generations,
        server_config.shutdown_timeout,
        replicas,
        beside,
    )
    # First of all: asyncio's own handler would cancel what starts, with a traceback.
    lifecycle.handle_signals()
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


def _settle_garbage() -> None:
    """Exempt all objects of the start from collection, and collect less often from now on."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(*_GC_THRESHOLDS)


def _log_listening(app: FastAPI, listener: Listener) -> None:
    logger.info("Ready: %s", timeline)
    logger.info("Starting vLLM-lite server on %s", listener.url)
    for route in app.routes:
        methods = ", ".join(sorted(getattr(route, "methods", None) or ()))
        logger.debug("Route: %s, Methods: %s", getattr(route, "path", ""), methods)
