"""From the first request to the exit: a real socket, a real uvicorn, a scripted engine."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, chunks
from tests.server.running import running
from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import EngineDeadError, UnavailableError, UsageError
from vllm_lite.sampling_params import SamplingParams
from vllm_lite.server.generation import Generations
from vllm_lite.server.process.listen import Listener

CHAT = "/v1/chat/completions"


async def read_stream(session: httpx.AsyncClient) -> str:
    async with session.stream("POST", CHAT, json={"messages": HI, "stream": True}) as response:
        return (await response.aread()).decode()


async def until_running(client: FakeEngineClient) -> None:
    while not client.running:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_server_ends_at_a_signal(number: int) -> None:
    client = FakeEngineClient()
    async with running(client) as server:
        assert (await server.http.get("/health")).status_code == 200
        os.kill(os.getpid(), number)
        await asyncio.wait_for(server.task, 5)
    assert not client.is_running


async def test_without_a_drain_time_running_requests_end_with_abort() -> None:
    client = FakeEngineClient("A" * 50)
    client.gate = asyncio.Event()
    async with running(client) as server:
        streaming = asyncio.create_task(read_stream(server.http))
        await until_running(client)
        os.kill(os.getpid(), signal.SIGTERM)
        text = await asyncio.wait_for(streaming, 5)
        await asyncio.wait_for(server.task, 5)
    assert chunks(text)[-1]["choices"][0]["finish_reason"] == "abort"


async def test_drain_finishes_running_requests_and_refuses_new_ones() -> None:
    client = FakeEngineClient("Hello")
    client.gate = asyncio.Event()
    async with running(client, timeout=20) as server:
        streaming = asyncio.create_task(read_stream(server.http))
        await until_running(client)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        late = await server.http.post(CHAT, json={"messages": HI})
        assert late.status_code == 503
        client.gate.set()
        text = await asyncio.wait_for(streaming, 5)
        await asyncio.wait_for(server.task, 5)
    assert chunks(text)[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_dead_engine_ends_the_server_with_its_cause() -> None:
    client = FakeEngineClient()
    async with running(client) as server:
        client.errored = True
        assert (await server.http.get("/health")).status_code == 503
        with pytest.raises(EngineDeadError, match="signal 9"):
            await asyncio.wait_for(server.task, 5)


async def test_a_client_that_closes_its_socket_frees_its_request() -> None:
    client = FakeEngineClient("A" * 50)
    client.gate = asyncio.Event()
    async with running(client) as server:
        for stream in (False, True):
            body = {"messages": HI, "stream": stream}
            request = asyncio.create_task(server.http.post(CHAT, json=body))
            await until_running(client)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            while client.running:
                await asyncio.sleep(0.01)
    assert len(client.aborted) == 2


async def test_a_unix_socket_goes_with_its_server(tmp_path: Path) -> None:
    path = str(tmp_path / "server.sock")
    async with running(FakeEngineClient(), uds=path) as server:
        assert (await server.http.get("/health")).status_code == 200
        with pytest.raises(UsageError, match="another server"):
            Listener(ServerConfig(uds=path))
    assert not os.path.exists(path)


def test_a_stale_unix_socket_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    stale = Listener(ServerConfig(uds=str(path)))
    stale.socket.close()
    Listener(ServerConfig(uds=str(path))).close()
    path.write_text("precious")
    with pytest.raises(UsageError, match="no socket"):
        Listener(ServerConfig(uds=str(path)))
    assert path.read_text() == "precious"


def test_a_server_listens_on_the_host_and_port_said() -> None:
    def address(host: str | None, port: int) -> tuple[str, int]:
        listener = Listener(ServerConfig(host=host, port=port))
        try:
            found: tuple[str, int] = listener.socket.getsockname()
            assert listener.url == f"http://{host or '0.0.0.0'}:{found[1]}"
            return found
        finally:
            listener.close()

    host, port = address("127.0.0.1", 0)
    assert host == "127.0.0.1" and port > 0
    # An address of the loopback that nobody else listens on.
    assert address("127.8.7.6", port) == ("127.8.7.6", port)
    assert address(None, 0)[0] == "0.0.0.0"


def test_a_port_in_use_is_one_line_that_names_it() -> None:
    first = Listener(ServerConfig(host="127.0.0.1", port=0))
    first.socket.listen()
    port = first.socket.getsockname()[1]
    with pytest.raises(UsageError, match=f"Port {port} .*--port") as error:
        Listener(ServerConfig(host="127.0.0.1", port=port))
    assert "\n" not in str(error.value)
    first.close()


def test_an_unknown_host_is_one_line_that_names_it() -> None:
    with pytest.raises(UsageError, match=r"--host no\.such\.host\.invalid"):
        Listener(ServerConfig(host="no.such.host.invalid"))


def test_several_processes_share_a_port_and_no_other_server_does(tmp_path: Path) -> None:
    first = Listener(ServerConfig(host="127.0.0.1", port=0, api_server_count=3))
    names = [one.getsockname() for one in first.sockets]
    assert len(names) == 3 and len(set(names)) == 1
    first.socket.listen()
    for count in (1, 2):
        with pytest.raises(UsageError, match="cannot be used"):
            Listener(ServerConfig(host="127.0.0.1", port=names[0][1], api_server_count=count))
    first.close()
    path = tmp_path / "s.sock"
    shared = Listener(ServerConfig(uds=str(path), api_server_count=2))
    assert len(shared.sockets) == 2
    shared.close()
    assert not path.exists()


async def test_drain_refuses_requests_that_wait_for_their_constraint() -> None:
    class Compiling(FakeEngineClient):
        async def prepare(self, params: SamplingParams) -> None:
            waits.set()
            await asyncio.Event().wait()

    waits = asyncio.Event()
    generations = Generations(Compiling())
    preparing = asyncio.ensure_future(generations.prepare(SamplingParams()))
    await waits.wait()
    await generations.drain(1.0)
    with pytest.raises(UnavailableError, match="shutting down"):
        await preparing
    leaver = Generations(Compiling())
    preparing = asyncio.ensure_future(leaver.prepare(SamplingParams()))
    await asyncio.sleep(0)
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
