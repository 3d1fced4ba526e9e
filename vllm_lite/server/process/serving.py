"""An API process once its engine core is loading: the application, its server and their end.

Imports the whole HTTP stack, so whoever starts an engine core imports this afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from pathlib import Path

import uvloop
from fastapi import FastAPI

from vllm_lite.config.server import ServerConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.front.async_llm import AsyncLLM
from vllm_lite.engine.link.core_client import log_ready
from vllm_lite.engine.link.core_handle import JoinedCore, StartedCore
from vllm_lite.log import init_logger, timeline
from vllm_lite.metrics.board import Board, NoBoard
from vllm_lite.server.app import build_app
from vllm_lite.server.process.http_server import http_server
from vllm_lite.server.process.lifecycle import Beside, Lifecycle
from vllm_lite.server.process.listen import Listener
from vllm_lite.server.process.peers import NoPeers, Peers
from vllm_lite.server.process.replicas import NoReplicas, Replicas
from vllm_lite.server.process.replicas import ReplicaJob as ReplicaJob
from vllm_lite.server.process.tls import CertificateWatch

logger = init_logger(__name__)

# Young objects before a collection, and collections before older objects are examined too.
# Reference counts free what a token leaves behind; Python's defaults cost a tenth of the time.
_GC_THRESHOLDS = (10_000, 20, 20)


def serve_first(
    config: VllmConfig,
    server_config: ServerConfig,
    listener: Listener,
    core: StartedCore,
    board: Board | NoBoard,
    replicas: Replicas | NoReplicas,
    on_built: Callable[[], None],
    beside: Beside | None,
) -> None:
    """Serve in the process that started `core`; calls `on_built` once the engine is ready.

    Raises what ends the server other than a signal.
    """
    timeline.mark("HTTP imports")
    client = AsyncLLM(config, core, board=board)
    timeline.mark("waiting for the engine")
    peers = Peers(0, replicas.peer_fds) if isinstance(replicas, Replicas) else NoPeers()
    app = build_app(client, server_config, peers=peers)
    timeline.mark("app")
    on_built()
    log_ready(config, client.ready)
    _log_listening(app, listener)
    _settle_garbage()
    uvloop.run(_serve(client, app, server_config, listener, replicas, beside))


def join_engine(job: ReplicaJob) -> AsyncLLM:
    """The engine of a replica, once it is ready; raises what keeps it from starting."""
    core = JoinedCore(Path(job.directory), job.heartbeat_fd, job.core_exit_fd, job.index)
    return AsyncLLM(job.config, core, board=Board(job.board_fd, job.index, job.count))


def serve_replica(job: ReplicaJob, client: AsyncLLM) -> None:
    """Serve in a replica; raises what ends it other than a signal."""
    app = build_app(client, job.server_config, peers=Peers(job.index, job.peer_fds))
    _settle_garbage()
    os.write(job.ready_fd, b"r")
    listener = Listener.inherited(job.server_config, job.listener_fd, job.url)
    uvloop.run(_serve(client, app, job.server_config, listener, NoReplicas(), None))


async def _serve(
    client: AsyncLLM,
    app: FastAPI,
    server_config: ServerConfig,
    listener: Listener,
    replicas: Replicas | NoReplicas,
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
    """Exempt all objects of the start from collection, and collect less often."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _log_listening(app: FastAPI, listener: Listener) -> None:
    logger.info("Ready: %s", timeline)
    logger.info("Starting vLLM-lite server on %s", listener.url)
    for route in app.routes:
        methods = ", ".join(sorted(getattr(route, "methods", None) or ()))
        logger.debug("Route: %s, Methods: %s", getattr(route, "path", ""), methods)
