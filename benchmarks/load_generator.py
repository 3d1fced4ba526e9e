"""The times that `bench serve` itself adds, against a server that only sends.

    python benchmarks/load_generator.py                       1,000 streams, a chunk each 50 ms
    python benchmarks/load_generator.py --client httpx        the same with httpx as the client

The null server writes one chunk to every stream in each step, as an engine does, and puts the
time of the write into it. Both clocks are the machine's monotonic one, so that the difference
to what the client notes down is its own delay. Client and server have one core each where the
machine has two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import httpx
import numpy as np
import uvloop

from vllm_lite.bench.http_client import HttpClient, TransportError
from vllm_lite.bench.load import Sender, allow_open_files, run_load
from vllm_lite.bench.recorder import PreparedRequest, RequestResult

STAMP = 20  # digits of a time in nanoseconds
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,'
    '"model":"null","choices":[{"index":0,"text":"%020d","logprobs":null,"finish_reason":null,'
    '"stop_reason":null}],"usage":null}\n\n'
)
LAST = 'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\ndata: [DONE]\n\n'


def framed(text: str) -> bytes:
    return f"{len(text):x}\r\n{text}\r\n".encode()


class NullStream(asyncio.Protocol):
    """One connection; answers each request with the next `tokens` steps."""

    def __init__(self, streams: set[NullStream], tokens: int) -> None:
        self._streams = streams
        self._tokens = tokens
        self._left = 0
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._streams.discard(self)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, end, body = self._seen.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        if end and len(body) >= length:
            self._seen = b""
            if head.startswith(b"GET"):
                self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                return
            self._left = self._tokens
            self._transport.write(HEAD)
            self._streams.add(self)

    def send(self) -> None:
        self._left -= 1
        self._transport.write(framed(EVENT % time.perf_counter_ns()))
        if not self._left:
            self._streams.discard(self)
            self._transport.write(framed(LAST % self._tokens) + b"0\r\n\r\n")


async def serve(args: argparse.Namespace) -> None:
    """Step for ever; prints the port once it listens."""
    allow_open_files(args.streams)
    streams: set[NullStream] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: NullStream(streams, args.tokens), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    due = time.perf_counter()
    while True:
        due = max(due + args.step_ms / 1000, time.perf_counter())
        await asyncio.sleep(due - time.perf_counter())
        for stream in list(streams):
            stream.send()


class HttpxClient:
    """HttpClient's `post` over httpx, to compare with."""

    def __init__(self, url: str, streams: int) -> None:
        limits = httpx.Limits(max_connections=streams, max_keepalive_connections=streams)
        self._client = httpx.AsyncClient(base_url=url, limits=limits, timeout=60)

    async def post(self, path, body, on_body, headers=None):  # type: ignore[no-untyped-def]
        try:
            async with self._client.stream("POST", path, content=body, headers=headers) as reply:
                async for piece in reply.aiter_raw():
                    on_body(piece)
                return reply.status_code, b""
        except httpx.TransportError as error:
            raise TransportError(str(error)) from None


async def load(args: argparse.Namespace, port: int) -> None:
    url = f"http://127.0.0.1:{port}"
    client = HttpxClient(url, args.streams) if args.client == "httpx" else HttpClient(url, {})
    sender = Sender(cast("HttpClient", client), "/v1/completions", "null-")
    body = json.dumps({"prompt": "x" * 4096, "stream": True}).encode()
    requests = [PreparedRequest(body, 1)] * args.streams
    # Once to open the connections.
    await run_load(sender, requests, [0.0] * len(requests), None, False)
    busy = time.process_time()
    results, duration = await run_load(sender, requests, [0.0] * len(requests), None, False)
    report(args, results, duration, time.process_time() - busy)


def report(
    args: argparse.Namespace, results: list[RequestResult], duration: float, busy: float
) -> None:
    failed = [result.error for result in results if not result.is_success]
    good = [result for result in results if result.is_success]
    if not good:
        raise SystemExit(f"every request failed: {failed[0]}")
    came = [r.start_time + r.ttft + np.cumsum([0.0, *r.itls]) for r in good]
    sent = [
        np.array([int(r.text[at : at + STAMP]) for at in range(0, len(r.text), STAMP)]) / 1e9
        for r in good
    ]
    delay = np.concatenate([a - b for a, b in zip(came, sent, strict=True)]) * 1000
    shift = np.concatenate([np.diff(a - b) for a, b in zip(came, sent, strict=True)]) * 1000
    gaps = np.concatenate([np.diff(b) for b in sent]) * 1000
    print(f"{args.client}: {len(good)} streams, {len(failed)} failed, {len(delay)} chunks")
    print(f"  sent ITL (ms):           median {np.median(gaps):8.3f}   p99 {pct(gaps):8.3f}")
    print(f"  delay of a chunk (ms):   median {np.median(delay):8.3f}   p99 {pct(delay):8.3f}")
    print(
        f"  ITL, noted - sent (ms):  mean   {shift.mean():8.3f}   "
        f"p99 of its size {pct(np.abs(shift)):8.3f}"
    )
    print(
        f"  client: {busy / duration:.0%} of a core, {busy / len(delay) * 1e6:.1f} us for a chunk"
    )


def pct(values: np.ndarray) -> float:
    return float(np.percentile(values, 99))


def pin(core: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[core]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--client", choices=("own", "httpx"), default="own")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        pin(1)
        uvloop.run(serve(args))
        return
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    command += ["--streams", str(args.streams), "--tokens", str(args.tokens)]
    command += ["--step-ms", str(args.step_ms)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        pin(0)
        uvloop.run(load(args, port))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
