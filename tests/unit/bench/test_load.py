"""What goes over the wire, and that the pace and the limit of a load hold."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.unit.bench.servers import chunked, scripted_server
from vllm_lite.bench.datasets import Sample
from vllm_lite.bench.http_client import HttpClient
from vllm_lite.bench.load import Sender, run_load
from vllm_lite.bench.options import SamplingOptions, TargetOptions
from vllm_lite.bench.requests import PreparedRequest, prepare

SAMPLE = Sample("Hello", 5, 9)
STREAM = chunked(
    b'data: {"choices":[{"text":"a"}]}\n\n',
    b'data: {"choices":[{"text":"b"}],"usage":{"completion_tokens":4}}\n\ndata: [DONE]\n\n',
)


def body(target: TargetOptions, **sampling: Any) -> dict[str, Any]:
    prepared = prepare(SAMPLE, "m", target, SamplingOptions(**sampling))
    assert prepared.prompt_tokens == 5
    content: dict[str, Any] = json.loads(prepared.body)
    return content


def test_a_completion_asks_for_a_stream_with_usage() -> None:
    assert body(TargetOptions()) == {
        "model": "m",
        "prompt": "Hello",
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_chat_is_one_turn_of_the_user() -> None:
    assert body(TargetOptions(backend="openai-chat", logprobs=2)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_completion_tokens": 9,
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_extra_fields_win_over_options_and_these_over_defaults() -> None:
    target = TargetOptions(ignore_eos=True, logprobs=3, extra_body={"top_k": 1, "max_tokens": 2})
    sent = body(target, temperature=0.5, top_k=7)
    assert (sent["ignore_eos"], sent["logprobs"], sent["temperature"]) == (True, 3, 0.5)
    assert (sent["top_k"], sent["max_tokens"]) == (1, 2)


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
    assert max(waits[:2]) < 0.02 and waits[-1] > 0.05
    assert (await load([0.0] * 9, None, answer_seconds=0.1))[1] == 9


async def test_requests_go_out_at_their_times() -> None:
    began = time.perf_counter()
    results, _, _ = await load([0.0, 0.1, 0.1, 0.2], None)
    starts = [result.start_time - began for result in results]
    for start, due in zip(starts, [0.0, 0.1, 0.1, 0.2], strict=True):
        assert start == pytest.approx(due, abs=0.09) and start >= due
