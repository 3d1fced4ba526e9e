"""Many clients at once: nobody starves, whoever leaves frees everything, nothing grows."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator

import httpx
import psutil
import pytest
from openai import AsyncOpenAI

from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow


def client_of(server: ServerProcess) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{server.url}/v1", api_key="EMPTY", max_retries=0)


async def no_request_left(server: ServerProcess, timeout: float = 5.0) -> float:
    """Seconds until the server runs nothing and holds no block."""
    began = time.monotonic()
    while time.monotonic() - began < timeout:
        if (
            server.metric("vllm:num_requests_running")
            == 0
            == server.metric("vllm:num_requests_waiting")
            and server.metric("vllm:kv_cache_usage_perc") == 0
        ):
            return time.monotonic() - began
        await asyncio.sleep(0.02)
    raise AssertionError(f"still busy after {timeout} s")


async def chat(client: AsyncOpenAI, number: int, max_tokens: int) -> tuple[float, int, str]:
    """(seconds to the first token, tokens, finish reason) of one streaming chat."""
    began, first, reason = time.monotonic(), 0.0, ""
    usage = 0
    stream = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": f"Tell me a story about the number {number}."}],
        max_tokens=max_tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content and not first:
            first = time.monotonic() - began
        if chunk.choices and chunk.choices[0].finish_reason:
            reason = chunk.choices[0].finish_reason
        if chunk.usage:
            usage = chunk.usage.completion_tokens
    return first, usage, reason


async def test_sixty_four_streaming_chats_all_finish(demo_server: ServerProcess) -> None:
    async with client_of(demo_server) as client:
        results = await asyncio.gather(*(chat(client, i, 32) for i in range(64)))
    assert [(tokens, reason) for _, tokens, reason in results] == [(32, "length")] * 64
    firsts = sorted(first for first, _, _ in results)
    assert firsts[-1] < 20, f"the last first token came after {firsts[-1]:.1f} s"
    await no_request_left(demo_server)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_leaves_frees_its_blocks(
    demo_server: ServerProcess, stream: bool, n: int
) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Count to one thousand."}],
        "max_tokens": 1500,
        "ignore_eos": True,
        "stream": stream,
        "n": n,
    }
    async with httpx.AsyncClient(timeout=30) as http:
        url = f"{demo_server.url}/v1/chat/completions"
        request = asyncio.create_task(read_some(http, url, body))
        while demo_server.metric("vllm:num_requests_running") < n:
            await asyncio.sleep(0.02)
        request.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await request
    assert await no_request_left(demo_server) < 2.0


async def read_some(http: httpx.AsyncClient, url: str, body: dict[str, object]) -> None:
    async with http.stream("POST", url, json=body) as response:
        async for _ in response.aiter_bytes():
            pass


async def aborting_chats(client: AsyncOpenAI, seed: int, count: int) -> AsyncIterator[str]:
    """`count` chats of random length; about half are left in mid-stream."""
    source = random.Random(seed)
    for number in range(count):
        max_tokens = source.randrange(1, 12)
        leave_after = source.choice([None, 1, 2, 4])
        stream = await client.chat.completions.create(
            model="demo",
            messages=[
                {"role": "user", "content": f"{seed} and {number}: " + "go on " * (number % 9)}
            ],
            max_tokens=max_tokens,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        seen = 0
        async for chunk in stream:
            seen += bool(chunk.choices and chunk.choices[0].delta.content)
            if leave_after is not None and seen >= leave_after:
                break
        await stream.close()
        yield "left" if leave_after is not None else "finished"


async def test_a_thousand_requests_leave_nothing_behind() -> None:
    """Resident memory is compared after the cache has been filled once, when it must be flat."""
    settings = ("--max-model-len", "512", "--num-gpu-blocks-override", "600")
    with ServerProcess(*settings, "--max-num-seqs", "64") as server:
        core = server.core()
        resident: list[float] = []

        async def round_of(first_seed: int) -> None:
            async with client_of(server) as client:

                async def one(seed: int) -> None:
                    async for _ in aborting_chats(client, seed, 5):
                        pass

                await asyncio.gather(*(one(first_seed + i) for i in range(50)))
            await no_request_left(server)
            resident.append(psutil.Process(core.pid).memory_info().rss / 2**20)

        for turn in range(4):
            await round_of(1000 * turn)
        assert resident[-1] - resident[1] < 24, f"resident MiB after each round: {resident}"
        assert server.process.poll() is None
