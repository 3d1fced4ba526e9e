"""The pace and the limit of a load hold, and a failure costs its request only."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.unit.bench.servers import chunked, scripted_server
from vllm_lite.bench.http_client import HttpClient
from vllm_lite.bench.load import Sender, probes, run_load
from vllm_lite.bench.recorder import PreparedRequest

STREAM = chunked(
    b'data: {"choices":[{"text":"a"}]}\n\n',
    b'data: {"choices":[{"text":"b"}],"usage":{"completion_tokens":4}}\n\ndata: [DONE]\n\n',
)


async def load(
    times: list[float], limit: int | None, answer_seconds: float = 0.0
) -> tuple[list[Any], int, list[str]]:
    """Results, the most requests at a time, and the heads the server saw."""
    running = most = 0

    async def reply(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(answer_seconds)
        running -= 1
        if b"refuse" in body:
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 16\r\n\r\n")
            writer.write(b'{"error":"never"}'[:16])
        elif b"hang up" in body:
            writer.close()
        else:
            writer.write(STREAM)

    texts = [b'"fine"', b'"refuse"', b'"hang up"', b'"fine"']
    async with scripted_server(reply) as server:
        client = HttpClient(server.url, {})
        sender = Sender(client, "/v1/completions", "run-")
        requests = [PreparedRequest(texts[i % len(texts)], i) for i in range(len(times))]
        results, _ = await run_load(sender, requests, times, limit, False)
        client.close()
        return results, most, server.heads


async def test_failures_are_results_and_order_is_kept() -> None:
    results, _, heads = await load([0.0] * 4, None)
    assert [result.prompt_tokens for result in results] == [0, 1, 2, 3]
    assert [result.is_success for result in results] == [True, False, False, True]
    assert results[1].error.startswith("HTTP 400: ")
    assert "closed the connection" in results[2].error
    assert (results[0].output_tokens, results[0].text) == (4, "ab")
    ids = {head.partition("x-request-id: ")[2].partition("\r\n")[0] for head in heads}
    assert ids == {f"run-{number}" for number in range(4)}


async def test_no_more_requests_run_than_the_limit() -> None:
    results, most, _ = await load([0.0] * 9, 2, answer_seconds=0.02)
    assert most == 2
    waits = [result.queue_time for result in results]
    assert max(waits[:2]) < min(waits[2:]) and waits[-1] > 0.05
    assert (await load([0.0] * 9, None, answer_seconds=0.5))[1] == 9


async def test_no_request_goes_out_before_its_time() -> None:
    began = time.perf_counter()
    results, _, _ = await load([0.0, 0.1, 0.1, 0.2], None)
    starts = [result.start_time - began for result in results]
    assert starts == sorted(starts)
    assert all(start >= due for start, due in zip(starts, [0.0, 0.1, 0.1, 0.2], strict=True))


async def test_probes_run_beside_the_load_until_it_ends() -> None:
    answered = asyncio.Event()

    async def reply(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM)
        if "run-2" in head:
            answered.set()

    async with scripted_server(reply) as server:
        client = HttpClient(server.url, {})
        sender = Sender(client, "/v1/completions", "run-")
        async with probes(sender, PreparedRequest(b"{}", 1), rate=1000) as answers:
            await asyncio.wait_for(answered.wait(), 20)
        count = len(answers)
        assert count >= 3 and all(answer.is_success for answer in answers)
        async with probes(sender, PreparedRequest(b"{}", 1), rate=0) as none:
            pass
        assert none == [] and len(server.heads) == count
        client.close()
