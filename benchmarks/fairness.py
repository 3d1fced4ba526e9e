"""One tenant's latency under another's flood: first come first served, and fair shares.

    python benchmarks/fairness.py                    the demo model, some minutes
    python benchmarks/fairness.py --model DIR        any model

A server with two API keys runs under each policy. The quiet tenant asks for one answer after
another, first alone, then while the flooding tenant keeps many times more requests in the queue
than the engine runs at once. The two policies take turns, so that a machine that has other work
has it for both; what is printed are medians and their ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time

import httpx
from peers.own_server import OwnServer

QUIET, FLOOD = "quiet-key", "flood-key"


def policy_server(policy: str, options: argparse.Namespace) -> OwnServer:
    """A server with a policy of its own."""
    words = ["--api-key", QUIET, FLOOD, "--scheduling-policy", policy]
    words += ["--max-num-seqs", str(options.max_num_seqs), "--max-model-len", "1024"]
    return OwnServer(policy, options.model, words)


async def ask(client: httpx.AsyncClient, key: str, number: int, tokens: int) -> float:
    """Seconds that one answer of `tokens` tokens takes."""
    body = {
        "prompt": f"Story {number} begins on a cold evening in a town by the sea, where",
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    begun = time.monotonic()
    headers = {"Authorization": f"Bearer {key}"}
    answer = await client.post("/v1/completions", json=body, headers=headers)
    answer.raise_for_status()
    return time.monotonic() - begun


async def quiet_latency(client: httpx.AsyncClient, options: argparse.Namespace) -> list[float]:
    return [await ask(client, QUIET, i, options.tokens) for i in range(options.requests)]


async def measure(
    server: OwnServer, options: argparse.Namespace
) -> tuple[list[float], list[float], int]:
    """The quiet tenant's latencies alone and beside the flood, and how many answers that got."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:
        alone = await quiet_latency(client, options)
        finished = 0

        async def flood(number: int) -> None:
            nonlocal finished
            # Answers of different lengths, as real ones are.
            tokens = max(1, options.tokens // 2 + number * 7 % options.tokens)
            while True:
                await ask(client, FLOOD, number, tokens)
                finished += 1

        tasks = [asyncio.create_task(flood(i)) for i in range(options.flood)]
        while finished < options.max_num_seqs:
            await asyncio.sleep(0.05)
        before = finished
        beside = await quiet_latency(client, options)
        served = finished - before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return alone, beside, served


async def run(options: argparse.Namespace) -> dict[str, float]:
    """The ratio of medians under each policy."""
    servers = [policy_server(policy, options) for policy in options.policies]
    alone: dict[str, list[float]] = {server.name: [] for server in servers}
    beside: dict[str, list[float]] = {server.name: [] for server in servers}
    served = dict.fromkeys(alone, 0)
    try:
        for server in servers:
            await server.wait_ready()
        for _ in range(options.rounds):
            for server in servers:
                one, other, count = await measure(server, options)
                alone[server.name] += one
                beside[server.name] += other
                served[server.name] += count
    finally:
        for server in servers:
            server.stop()
    print(f"{'policy':<10}{'alone':>10}{'flooded':>10}{'ratio':>8}{'flood / s':>11}")
    ratios = {}
    for policy in options.policies:
        before, after = statistics.median(alone[policy]), statistics.median(beside[policy])
        ratios[policy] = after / before
        rate = served[policy] / sum(beside[policy])
        print(f"{policy:<10}{before:>9.3f}s{after:>9.3f}s{ratios[policy]:>7.2f}x{rate:>11.1f}")
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--policies", nargs="+", default=["fcfs", "fair"])
    parser.add_argument("--max-num-seqs", type=int, default=4)
    parser.add_argument("--flood", type=int, default=32, help="requests in flight of the flood")
    parser.add_argument("--requests", type=int, default=6, help="quiet requests in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--limit", type=float, help="exit code 1 if fair's ratio is higher")
    options = parser.parse_args()
    ratios = asyncio.run(run(options))
    return int(options.limit is not None and ratios.get("fair", 0.0) > options.limit)


if __name__ == "__main__":
    sys.exit(main())
