"""Gaps between a stream's tokens while other prompts arrive, with and without a target.

    python benchmarks/tail_latency.py                        8 and 32 streams of the demo model
    python benchmarks/tail_latency.py --streams 8 --rounds 5 --json FILE

One server cuts prompts to keep its automatic target (--scheduler-target-itl-ms), one has none, and
the two take turns. Streams of long answers never pause: an answer that ends makes room for the
next. Beside them prompts of 64 to 400 tokens arrive at random times, each for a short answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import httpx
from peers.own_server import OwnServer

KINDS = {"off": ["--scheduler-target-itl-ms", "0"], "auto": []}


class Load:
    """Streams and arrivals of one round; notes down what came when."""

    def __init__(self, server: OwnServer, seed: int) -> None:
        self._url = server.url + "/v1/completions"
        self._random = random.Random(seed)
        self.gaps: list[float] = []
        self.first: list[float] = []
        self.num_tokens = 0

    async def run(self, streams: int, seconds: float, per_second: float) -> None:
        """Seconds of load, whose first quarter does not count."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=120) as client:
            self._begin = time.monotonic() + seconds / 4
            tasks = [asyncio.create_task(self._stream(client)) for _ in range(streams)]
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await asyncio.sleep(self._random.expovariate(per_second))
                tasks.append(asyncio.create_task(self._ask(client, self._prompt(64, 400), 16)))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _prompt(self, least: int, most: int) -> list[int]:
        length = self._random.randint(least, most)
        return [self._random.randrange(1000, 40000) for _ in range(length)]

    async def _stream(self, client: httpx.AsyncClient) -> None:
        while True:
            await self._ask(client, self._prompt(16, 32), self._random.randint(100, 300))

    async def _ask(self, client: httpx.AsyncClient, prompt: list[int], tokens: int) -> None:
        body = {"model": "served", "prompt": prompt, "max_tokens": tokens, "stream": True}
        body |= {"temperature": 0, "ignore_eos": True}
        last, begun = 0.0, time.monotonic()
        async with client.stream("POST", self._url, json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now = time.monotonic()
                if now > self._begin:
                    self.num_tokens += 1
                    (self.gaps if last else self.first).append(now - (last or begun))
                last = now


def percentile(values: list[float], share: float) -> float:
    """In milliseconds."""
    return 1e3 * sorted(values)[int(share * (len(values) - 1))]


async def measure(args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Figures of every round by streams and kind."""
    served = ["--served-model-name", "served"]
    servers = {kind: OwnServer(kind, args.model, [*served, *KINDS[kind]]) for kind in KINDS}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    try:
        for server in servers.values():
            await server.wait_ready()
        for turn in range(args.rounds + 1):  # the first is for learning
            for streams in args.streams:
                for kind, server in servers.items():
                    load = Load(server, turn)
                    await load.run(streams, args.seconds, args.per_second)
                    if not turn:
                        continue
                    figures = found[f"{streams} {kind}"]
                    figures["median_ms"].append(percentile(load.gaps, 0.5))
                    figures["p99_ms"].append(percentile(load.gaps, 0.99))
                    figures["max_ms"].append(percentile(load.gaps, 1))
                    figures["ttft_ms"].append(percentile(load.first, 0.5))
                    figures["tokens_per_s"].append(load.num_tokens / (0.75 * args.seconds))
    finally:
        for server in servers.values():
            server.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--per-second", type=float, default=1.5, help="prompts that arrive")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = asyncio.run(measure(args))
    names = ("median_ms", "p99_ms", "max_ms", "ttft_ms", "tokens_per_s")
    print(f"{'streams':<10}" + "".join(f"{name:>14}" for name in names))
    for row, figures in found.items():
        values = [statistics.median(figures[name]) for name in names]
        print(f"{row:<10}" + "".join(f"{value:>14.1f}" for value in values))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
