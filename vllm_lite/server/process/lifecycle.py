"""A server from its first request to its exit: signals, drain, and the engine's death.

Knows an engine only as an EngineClient. Invariant: every way out ends in bounded time, and the
engine is shut down on each of them but the second signal, where the kernel ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Protocol

from vllm_lite.engine.client import EngineClient
from vllm_lite.errors import EngineDeadError, UsageError
from vllm_lite.log import init_logger
from vllm_lite.server.context import ServingContext
from vllm_lite.server.generation import Generations
from vllm_lite.server.process.http_server import FLUSH_TIMEOUT, HttpServer
from vllm_lite.server.process.listen import Listener
from vllm_lite.server.process.replicas import NoReplicas, Replicas

logger = init_logger(__name__)

# Seconds that other processes of the server may take to end after their last reply.
REPLICA_PATIENCE = 10.0
# Seconds between two looks at the engine.
WATCH_INTERVAL = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
        replicas: Replicas | NoReplicas | None = None,
        beside: Beside | None = None,
    ) -> None:
        self._server = server
        self._listener = listener
        self._client = client
        self._generations = generations
        self._shutdown_timeout = shutdown_timeout
        self._replicas = replicas or NoReplicas()
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
