"""Measures a server over HTTP: its start, its rest, chats side by side, a shared system prompt.

The client is the one of `bench serve`, on the same machine: it takes its part of the cores from
every engine alike. Every text is new to the server, but for the system prompt that is meant to
be known.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import uvloop

from peers.engines import Engine
from peers.processes import Process, cpu_share, resident_bytes, running
from peers.workloads import CHAT_OUTPUT, CHATS, PROMPT, SYSTEM_PROMPT
from vllm_lite.bench.http_client import HttpClient
from vllm_lite.bench.load import Sender, run_load
from vllm_lite.bench.metrics import measure
from vllm_lite.bench.prompts import PromptMaker, open_tokenizer
from vllm_lite.bench.recorder import PreparedRequest, RequestResult

POLL_SECONDS = 0.05
READY_SECONDS = 600.0
# After the start: what it left to do is done, and the idle time begins.
SETTLE_SECONDS, IDLE_SECONDS = 3.0, 5.0
QUESTION = 32
NUM_SYSTEM_PROMPTS = 3
Message = dict[str, str]
# (work, its values)
OnFigures = Callable[[str, dict[str, float]], None]


@dataclass(slots=True)
class Texts:
    """Random texts of wanted lengths; none comes twice."""

    maker: PromptMaker
    rng: np.random.Generator

    @classmethod
    def seeded(cls, seed: int) -> Texts:
        """The same texts for every engine in a round, others in the next."""
        return cls(PromptMaker(open_tokenizer("demo")), np.random.default_rng(seed))

    def text(self, length: int) -> str:
        text, _ = self.maker.fit(self.maker.draw(length, self.rng), self.rng)
        return text

    def chat(self, length: int, output: int, system: str | None = None) -> PreparedRequest:
        """A streaming chat of `output` tokens."""
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": self.text(length)})
        body = {"model": "demo", "messages": messages, "max_completion_tokens": output}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= {"temperature": 0.0, "ignore_eos": True}
        return PreparedRequest(msgspec.json.encode(body), length)


def measure_server(
    engine: Engine, letters: str, limit: float, seed: int, on_figures: OnFigures
) -> str:
    """Start a server, do what of a, e and f `letters` names, stop it; why it failed, or "".

    Returns as well, in `on_figures`, each measurement as soon as it is made.
    """
    port = free_port()
    deadline = time.monotonic() + limit
    begin = time.monotonic()
    with running(engine.server_words(port), engine.environment, reads=False) as server:
        reason = wait_ready(server, port, deadline)
        if reason:
            return reason
        ready = time.monotonic() - begin
        try:
            if "a" in letters:
                on_figures("server", {"ready_s": ready, **_at_rest(engine, server)})
            if "e" in letters or "f" in letters:
                left = deadline - time.monotonic()
                uvloop.run(_load(f"http://127.0.0.1:{port}", letters, seed, left, on_figures))
        except TimeoutError:
            return f"not done within {limit:.0f} s"
        except ServerFailedError as error:
            return str(error)
        code = server.exit_code()
        return f"ended with code {code}: {server.last_words()}" if code is not None else ""


class ServerFailedError(Exception):
    """A server answered a request with an error."""


def free_port() -> int:
    """A port that nobody listens to now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(server: Process, port: int, deadline: float) -> str:
    while True:
        if server.exit_code() is not None:
            return f"ended with code {server.exit_code()}: {server.last_words()}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return ""
        except OSError:
            pass
        if time.monotonic() > deadline:
            return "the server was not ready in time"
        time.sleep(POLL_SECONDS)


@contextmanager
def own_server(model: str, *options: str) -> Iterator[tuple[str, int]]:
    """A ready server of ours on a free port: its URL and process id; ends the program without."""
    # It runs in another directory.
    model, port = str(Path(model).resolve()) if Path(model).exists() else model, free_port()
    words = [sys.executable, "-m", "vllm_lite", "serve", model, "--host", "127.0.0.1"]
    words += ["--port", str(port), "--disable-uvicorn-access-log", *options]
    with running(words, {}, reads=False) as server:
        if reason := wait_ready(server, port, time.monotonic() + READY_SECONDS):
            raise SystemExit(f"the server of {model}: {reason}")
        yield f"http://127.0.0.1:{port}", server.pid


def _at_rest(engine: Engine, server: Process) -> dict[str, float]:
    time.sleep(SETTLE_SECONDS)
    share = cpu_share(server.pid, IDLE_SECONDS)
    resident = resident_bytes(server.pid)
    return {
        "idle_percent": 100 * share,
        "resident_mb": resident / 1e6,
        "over_weights_mb": (resident - engine.weight_bytes()) / 1e6,
    }


async def _load(url: str, letters: str, seed: int, limit: float, on_figures: OnFigures) -> None:
    import asyncio

    texts = Texts.seeded(seed)
    sender = Sender(HttpClient(url, {}), "/v1/chat/completions", f"peers-{seed}-")
    async with asyncio.timeout(limit):
        await _send(sender, [texts.chat(PROMPT, 8) for _ in range(4)], 4)
        if "e" in letters:
            for count in CHATS:
                on_figures(f"chat-{count}", await _chats(sender, texts, count))
        if "f" in letters:
            on_figures("prefix", await _shared_prefix(sender, texts))


async def _send(
    sender: Sender, requests: Sequence[PreparedRequest], concurrency: int
) -> tuple[list[RequestResult], float]:
    """Send all, so many at a time; raises ServerFailedError where one fails."""
    results, duration = await run_load(
        sender, requests, [0.0] * len(requests), concurrency, show_progress=False
    )
    for result in results:
        if not result.is_success:
            raise ServerFailedError(f"a request failed: {result.error}")
    return results, duration


async def _chats(sender: Sender, texts: Texts, count: int) -> dict[str, float]:
    """So many chats at a time, each followed by another."""
    requests = [texts.chat(PROMPT, CHAT_OUTPUT) for _ in range(max(4, 2 * count))]
    results, duration = await _send(sender, requests, count)
    metrics = measure(results, duration, (99,), {})
    return {
        "tokens_per_s": metrics.output_rate,
        "ttft_ms": metrics.spreads["ttft"].median,
        "itl_ms": metrics.spreads["itl"].percentiles[0][1],
    }


async def _shared_prefix(sender: Sender, texts: Texts) -> dict[str, float]:
    """Two different questions after the same long system prompt."""
    pairs = []
    for _ in range(NUM_SYSTEM_PROMPTS):
        system = texts.text(SYSTEM_PROMPT)
        requests = [texts.chat(QUESTION, 8, system) for _ in range(2)]
        results, _ = await _send(sender, requests, 1)
        pairs.append((results[0].ttft, results[1].ttft))
    return {
        "first_ms": 1000 * statistics.median(first for first, _ in pairs),
        "second_ms": 1000 * statistics.median(second for _, second in pairs),
        "share": statistics.median(second / first for first, second in pairs),
    }
