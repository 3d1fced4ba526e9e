"""The cost of the page's Live view: tokens with and without it, and its share of a core.

    .venv/bin/python benchmarks/page_cost.py --pairs 8

One server of the demo; 32 chats always stream while the view's stream is open and closed in turn.
The share is processor time of all the server's processes while nothing runs, with it less without.
Where others use the machine too, only processor time a token compares.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from statistics import mean, median, stdev

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.e2e.server_process import ServerProcess

STREAMS = 32


async def chat(client: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "Tell a story."}], "stream": True}
    body |= {"max_tokens": 400, "ignore_eos": True}
    while True:
        async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            async for _ in reply.aiter_raw():
                pass


async def watch(client: httpx.AsyncClient) -> None:
    async with client.stream("GET", "/web/live") as reply:
        async for _ in reply.aiter_raw():
            pass


def tokens(server: ServerProcess) -> float:
    return server.metric("vllm:generation_tokens_total")


def seconds_used(server: ServerProcess) -> float:
    """Processor time of the server's processes so far."""
    whole = [psutil.Process(server.process.pid), *server.children()]
    return sum(one.cpu_times().user + one.cpu_times().system for one in whole)


async def over(server: ServerProcess, client: httpx.AsyncClient, is_watched: bool, span: float):
    """(tokens a second, processors used) over `span` seconds."""
    watcher = asyncio.create_task(watch(client)) if is_watched else None
    await asyncio.sleep(0.5)
    begun, before, used = time.monotonic(), tokens(server), seconds_used(server)
    await asyncio.sleep(span)
    took = time.monotonic() - begun
    found = (tokens(server) - before) / took, (seconds_used(server) - used) / took
    if watcher is not None:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
    return found


async def measure(server: ServerProcess, pairs: int, span: float) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:
        shares = [[await over(server, client, on, span) for on in (False, True)] for _ in range(3)]
        share = median(on[1] - off[1] for off, on in shares)
        print(f"an idle server's stream: {100 * share:.2f} % of a core", flush=True)
        chats = [asyncio.create_task(chat(client)) for _ in range(STREAMS)]
        await asyncio.sleep(span)
        rates, costs = [], []
        for index in range(pairs):
            order = (False, True) if index % 2 else (True, False)
            found = {on: await over(server, client, on, span) for on in order}
            (rate, used), (watched, watched_used) = found[False], found[True]
            rates.append(watched / rate)
            costs.append((watched_used / watched) / (used / rate))
            print(f"{rate:.0f} tokens/s, watched {watched:.0f}", flush=True)
        for name, ratios in (("tokens/s", rates), ("processor time a token", costs)):
            error = 1.96 * stdev(ratios) / len(ratios) ** 0.5
            shown = f"{mean(ratios):.3f} +- {error:.3f}, median {median(ratios):.3f}"
            print(f"{name}, watched / unwatched: {shown}")
        for one in chats:
            one.cancel()
        await asyncio.gather(*chats, return_exceptions=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each half of a pair")
    options = parser.parse_args()
    with ServerProcess("--max-model-len", "1024", "--disable-uvicorn-access-log") as server:
        asyncio.run(measure(server, options.pairs, options.seconds))


if __name__ == "__main__":
    main()
