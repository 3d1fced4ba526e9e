"""Requests good and broken over every route of a real server, clients that leave, and a soak.

    python -m tests.attack.fuzz_routes --requests 10000 --aborts 2000 --soak-minutes 20

starts a server with the demo model (or --model), sends what the seed says and prints one JSON
object: answers by status, server errors, and the resident memory of its processes before and
after. Exits 1 where a request got a 5xx or none, the server ended, or memory grew by more than 5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from tests.e2e.server_process import ServerProcess

MOST_GROWTH = 1.05
CONCURRENCY = 8
# Sent before memory is looked at: caches fill, and threads start, with the first ones.
WARM_UP = 400
KEPT_RESPONSES = 1000
HI = [{"role": "user", "content": "Say hi."}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Once", "max_tokens": 4},
    "/v1/chat/completions": {"messages": HI, "max_tokens": 4},
    "/v1/chat/completions/batch": {"messages": [HI, HI], "max_tokens": 3},
    "/v1/responses": {"input": "Say hi.", "max_output_tokens": 4},
    "/v1/messages": {"model": "demo", "messages": HI, "max_tokens": 4},
    "/v1/messages/count_tokens": {"model": "demo", "messages": HI},
    "/tokenize": {"prompt": "a b c", "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/invocations": {"prompt": "Once", "max_tokens": 3},
    "/v1/batches": {
        "input_file_id": "file-x",
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    },
    "/ping": {},
}
GETS = (
    *("/health", "/ping", "/version", "/metrics", "/load", "/v1/models", "/v1/models/demo"),
    *("/v1/models/no", "/v1/responses/resp_no", "/openapi.json", "/no", "/v1/completions", "/%00"),
)
FIELDS: dict[str, list[Any]] = {
    "n": [1, 2, 0, -1, 65, 10**30],
    "temperature": [0, 0.7, 2, -1, "hot", 1e300],
    "top_p": [0.1, 1, 0, 2],
    "top_k": [1, -1, 50, -2, 2**40],
    "min_p": [0, 0.5, 2],
    "seed": [1, -1, 2**63 - 1, 2**70, "s"],
    "stop": ["a", [".", "b"], [""], ["x"] * 9, 5],
    "stop_token_ids": [[1], [-1], [10**9], ["a"]],
    "logit_bias": [{"5": 100}, {"5": -100}, {"x": 1}, {"99999999": 1}, {"1": "a"}],
    "allowed_token_ids": [[5, 6], [], [10**9], [True]],
    "bad_words": [["a", "the"], [""], [1]],
    "max_tokens": [1, 8, 0, -1, 10**9],
    "min_tokens": [0, 3, 99, -1],
    "ignore_eos": [True, "no"],
    "logprobs": [True, 2, 0, 5, -1, 99, "2"],
    "top_logprobs": [0, 2, 99],
    "prompt_logprobs": [0, 1, 99],
    "echo": [True],
    "stream": [True],
    "stream_options": [{"include_usage": True}, {}, 3],
    "presence_penalty": [1, -2, 9],
    "frequency_penalty": [1, -2, 9],
    "repetition_penalty": [1.1, 0, 1e-300, 1e6],
    "truncate_prompt_tokens": [-1, 2, 0, 10**9],
    "use_beam_search": [True],
    "best_of": [1, 3],
    "priority": [0, 2**31],
    "cache_salt": ["s", "", "s" * 200],
    "request_id": ["r", "\n", "r" * 300],
    "return_token_ids": [True],
    "return_tokens_as_token_ids": [True],
    "model": ["demo", "no", 3],
    "user": ["u", 3],
    "tools": [[TOOL], [], [{}], 3],
    "tool_choice": ["required", "none", "auto", {"type": "function", "function": {"name": "f"}}],
    "response_format": [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}},
        {"type": "structural_tag"},
        {"type": 3},
    ],
    "structured_outputs": [
        {"choice": ["yes", "no"]},
        {"regex": "[ab]{2}"},
        {"regex": {"type": "object"}},
        {"grammar": {"type": "object"}},
        {"grammar": 'root ::= "a" | "b"'},
        {"grammar": "root ::= ("},
        {"json": {"type": "integer"}},
        {"json": '{"const": "\\ud800"}'},
        {"json": {"$ref": "#/no"}},
        {"structural_tag": 3},
        {"regex": "(((", "choice": []},
    ],
    "prompt": ["", "x", [1, 2], [[1], [2]], ["a", "b"], [-1], [10**9], [], 5, None, "é語😀" * 99],
    "messages": [
        [],
        [{"role": "user"}],
        [{"role": 3, "content": "a"}],
        [{"role": "tool", "content": "a", "tool_call_id": "x"}],
        [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "hi",
    ],
    "input": ["", "x", [{"role": "user", "content": "a"}], [{"type": "no"}], 3],
    "tokens": [[], [0], [-1], [10**9], "a"],
    "thinking": [{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, 3],
    "system": ["s", [{"type": "text", "text": "a"}], 3],
    "metadata": [{"user_id": "u"}, {"k": 1}, 3],
    "previous_response_id": ["resp_no", 3],
    "background": [True],
    "chat_template": ["{{ 1 }}", 3],
    "chat_template_kwargs": [{"a": 1}, {"messages": 1}, 3],
    "continue_final_message": [True],
    "add_generation_prompt": [False],
    "repetition_detection": [{"max_pattern_size": 2, "min_count": 2}, {"min_count": "x"}],
    "unknown_field": [1],
}
BROKEN = (
    *(b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a": NaN}', b'{"prompt": "\\ud800"}'),
    *(b"[" * 5000, b'{"a":' * 300, b'{"prompt": 1e999}', b"{" + b'"a":1,' * 60000 + b'"b":1}'),
)


@dataclass
class Report:
    """The results of the whole run."""

    statuses: Counter[str] = field(default_factory=Counter)
    # Method and path of all that the server's own document knows.
    operations: list[tuple[str, str]] = field(default_factory=list)
    # The first server errors, with what caused them.
    faults: list[str] = field(default_factory=list)
    aborts: int = 0
    memory: list[dict[str, int]] = field(default_factory=list)

    def count(self, status: str, told: Callable[[], str]) -> None:
        """One answer."""
        self.statuses[status] += 1
        if (total := self.statuses.total()) % 1000 == 0:
            print(f"{total} answers, {self.aborts} left early", file=sys.stderr, flush=True)
        if (status.startswith("5") or status == "none") and len(self.faults) < 20:
            self.faults.append(f"{status} {told()}"[:600])

    @property
    def growth(self) -> float:
        """By how much the process that grew most did, from the first look to the last."""
        first, last = self.memory[0], self.memory[-1]
        return max(last[name] / size for name, size in first.items())


def body_of(rng: random.Random, path: str) -> bytes:
    """A body for `path`: a good one, one with a few other fields, or no JSON at all."""
    if rng.random() < 0.06:
        return rng.choice(BROKEN)
    body = dict(GOOD.get(path, {}))
    for name in rng.sample(list(FIELDS), rng.choice((0, 0, 1, 1, 2, 3))):
        body[name] = rng.choice(FIELDS[name])
    if rng.random() < 0.1 and body:
        body.pop(rng.choice(list(body)))
    return json.dumps(body).encode()


async def one_request(client: httpx.AsyncClient, rng: random.Random, report: Report) -> None:
    """Whatever `rng` says; the answer is counted."""
    which = rng.random()
    if which < 0.05:
        method, path = rng.choice(report.operations)
        body = body_of(rng, path) if method == "POST" else b""
    elif which < 0.16:
        method, path, body = rng.choice(("GET", "GET", "DELETE", "PUT")), rng.choice(GETS), b""
    else:
        path = rng.choice(list(GOOD))
        method, body = "POST", body_of(rng, path)
    kind = "text/plain" if rng.random() < 0.02 else "application/json"
    told = f"{method} {path} {body[:300]!r}"
    try:
        answer = await client.request(method, path, content=body, headers={"content-type": kind})
    except httpx.HTTPError as error:
        cause = repr(error)
        report.count("none", lambda: f"{told}: {cause}")
        return
    status = str(answer.status_code)
    if "InternalServerError" in answer.text[-4000:]:
        status = "500"
    report.count(status, lambda: f"{told}: {answer.text[:200]}")


async def one_abort(url: httpx.URL, rng: random.Random, report: Report) -> None:
    """A request whose client leaves: before the answer, in the prompt, or in mid-stream.

    Each has a client of its own: one that is cancelled may keep its place in httpx's pool.
    """
    path = rng.choice(("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"))
    name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {**GOOD[path], name: 90, "ignore_eos": True, "stream": rng.random() < 0.7}
    if path == "/v1/completions" and rng.random() < 0.5:
        body |= {"n": 2, "temperature": 1.0, "prompt": "word " * rng.choice((1, 100, 400))}

    async def read() -> None:
        num_parts = rng.randrange(12)
        async with (
            httpx.AsyncClient(base_url=url, verify=False, timeout=60) as client,
            client.stream("POST", path, json=body) as answer,
        ):
            report.count(str(answer.status_code), lambda: path)
            async for _ in answer.aiter_raw():
                num_parts -= 1
                if num_parts < 0:
                    return

    try:
        await asyncio.wait_for(read(), rng.choice((0.01, 0.05, 0.3, 1.0)))
    except (TimeoutError, httpx.HTTPError):
        report.statuses["left"] += 1
    report.aborts += 1


async def in_parallel(count: int, act: Callable[[], Any]) -> None:
    """`act` so many times, a few at a time."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await act()

    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))


async def settled(client: httpx.AsyncClient) -> AsyncIterator[None]:
    """Until nothing runs or waits in the engine."""
    while True:
        text = (await client.get("/metrics")).text
        busy = [
            line
            for line in text.splitlines()
            if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting{"))
            and float(line.rpartition(" ")[2])
        ]
        if not busy:
            return
        yield
        await asyncio.sleep(0.2)


async def post_json(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    await client.post(path, content=body, headers={"content-type": "application/json"})


async def fill_memory(client: httpx.AsyncClient) -> None:
    """Make the server hold what it keeps: the largest step's scratch, constraints, responses.

    The heap, too, keeps what the largest bodies made it grow by.
    """
    body = {**GOOD["/v1/responses"], "max_output_tokens": 1}
    await in_parallel(KEPT_RESPONSES, lambda: client.post("/v1/responses", json=body))
    path, good = "/v1/completions", GOOD["/v1/completions"]
    prompts = ({**good, "prompt": [20 + i] * 500} for i in range(4 * CONCURRENCY))
    await asyncio.gather(*(client.post(path, json=body) for body in prompts))
    largest = [(path, max(BROKEN, key=len)) for path in GOOD for _ in range(CONCURRENCY)]
    await in_parallel(len(largest), lambda: post_json(client, *largest.pop()))
    for name in ("structured_outputs", "response_format"):
        for constraint in FIELDS[name]:
            await client.post(path, json={**good, name: constraint})


def memory_of(pid: int) -> dict[str, int]:
    """Resident bytes of the server and of its engine core; compile processes come and go."""
    parent = psutil.Process(pid)
    found = {"api": parent.memory_info().rss}
    for child in parent.children(recursive=True):
        if any("vllm_lite.engine.core" in word for word in child.cmdline()):
            found["core"] = child.memory_info().rss
    return found


async def attack(url: str, pid: int, seed: int, counts: tuple[int, int, float]) -> Report:
    """All of it against the server at `url`; `counts`: requests, aborts, minutes of soak."""
    report, rng = Report(), random.Random(seed)
    num_requests, num_aborts, minutes = counts
    limits = httpx.Limits(max_connections=4 * CONCURRENCY)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def look() -> None:
            async for _ in settled(client):
                pass
            report.memory.append(memory_of(pid))

        paths = (await client.get("/openapi.json")).json()["paths"]
        report.operations = [
            (method.upper(), re.sub(r"{\w+}", "x", path))
            for path, operations in paths.items()
            for method in operations
        ]
        if num_requests > WARM_UP:
            await fill_memory(client)
        warm_up = min(WARM_UP, num_requests // 2)
        await in_parallel(warm_up, lambda: one_request(client, rng, report))
        await in_parallel(min(50, num_aborts // 2), lambda: one_abort(client.base_url, rng, report))
        await look()
        await in_parallel(num_requests - warm_up, lambda: one_request(client, rng, report))
        await look()
        await in_parallel(
            num_aborts - report.aborts, lambda: one_abort(client.base_url, rng, report)
        )
        await look()
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            await in_parallel(200, lambda: one_request(client, rng, report))
            await in_parallel(20, lambda: one_abort(client.base_url, rng, report))
        if minutes:
            await look()
        answer = await client.post("/v1/completions", json=GOOD["/v1/completions"])
        report.count(str(answer.status_code), lambda: answer.text)
    return report


def main() -> int:
    """Run, print the report, say by the exit code whether the server held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--aborts", type=int, default=2_000)
    parser.add_argument("--soak-minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="demo")
    # Whatever else is given is the server's.
    arguments, others = parser.parse_known_args()
    counts = (arguments.requests, arguments.aborts, arguments.soak_minutes)
    began = time.monotonic()
    # So few blocks that the warm-up touches all: their pages count as memory from then on.
    flags = ["--served-model-name", "demo", "--max-model-len", "512", "--max-num-seqs", "16"]
    flags += ["--num-gpu-blocks-override", "160", "--disable-uvicorn-access-log", *others]
    with (
        tempfile.TemporaryDirectory() as storage,
        ServerProcess(*flags, "--batch-storage-dir", storage, model=arguments.model) as server,
    ):
        try:
            report = asyncio.run(attack(server.url, server.process.pid, arguments.seed, counts))
        except (httpx.HTTPError, psutil.Error):
            print(server.log()[-4000:], file=sys.stderr)
            raise
        held = server.process.poll() is None
        tail = "" if held else server.log()[-2000:]
    shown = {
        "seconds": round(time.monotonic() - began),
        "statuses": dict(sorted(report.statuses.items())),
        "aborts": report.aborts,
        "memory_mib": [{k: v >> 20 for k, v in look.items()} for look in report.memory],
        "growth": round(report.growth, 3),
        "faults": report.faults,
        "end": tail,
    }
    print(json.dumps(shown, indent=1, ensure_ascii=False))
    return 0 if held and not report.faults and report.growth <= MOST_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
