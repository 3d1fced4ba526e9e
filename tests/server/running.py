"""A server in the test's own process: a real socket and a real uvicorn over any engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.server.fake_client import FakeEngineClient
from vllm_lite.batch.stored import StoredBatches
from vllm_lite.config.server import ServerConfig
from vllm_lite.server.app import build_app
from vllm_lite.server.process.http_server import http_server
from vllm_lite.server.process.listen import Listener
from vllm_lite.server.process.serving import Lifecycle


class Running:
    """A server in this process."""

    def __init__(self, client: FakeEngineClient, timeout: float, options: dict[str, Any]) -> None:
        config = ServerConfig(host="127.0.0.1", port=0, **options)
        app = build_app(client, config)
        self.app = app
        self.listener = Listener(config)
        self.server = http_server(app, config, self.listener.tls, client.config.logging)
        generations = app.state.context.generations
        beside = StoredBatches(config) if config.batch_storage_dir else None
        lifecycle = Lifecycle(
            self.server, self.listener, client, generations, timeout, beside=beside
        )
        if beside is not None:
            beside.start(app.state.context)
        self.task = asyncio.create_task(lifecycle.run())
        transport = httpx.AsyncHTTPTransport(uds=options.get("uds"))
        base_url = "http://server" if options.get("uds") else self.listener.url
        self.http = httpx.AsyncClient(base_url=base_url, transport=transport, timeout=10)

    async def send(self, raw: bytes, *, then: bytes = b"") -> bytes:
        """The server's answer to bytes on a new connection, until it closes that."""
        reader, writer = await asyncio.open_connection(*self.listener.socket.getsockname()[:2])
        try:
            writer.write(raw)
            if then:
                await asyncio.sleep(0)
                writer.write(then)
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()

    async def started(self) -> None:
        while not self.server.started:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(
    client: FakeEngineClient, timeout: float = 0.0, **options: Any
) -> AsyncIterator[Running]:
    server = Running(client, timeout, options)
    try:
        await server.started()
        yield server
    finally:
        await server.http.aclose()
        server.server.should_exit = True
        await asyncio.gather(server.task, return_exceptions=True)
        server.listener.close()
