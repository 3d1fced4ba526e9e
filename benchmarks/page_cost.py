"""The cost of the page's Live view: tokens with and without it, and its share of a core.

    python benchmarks/page_cost.py --pairs 16

The same 32 chats stream again and again from one server while the view's stream is open and closed
in turn. The share is processor time of all the server's processes while nothing runs, with the
stream less without. Where others use the machine too, processor time a token compares best.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import mean, median, stdev

import httpx
from token_cost import Server, load

SEED = 1


@asynccontextmanager
async def watched(server: Server, is_watched: bool) -> AsyncIterator[None]:
    """Read the view's stream meanwhile, as a page does, where `is_watched`."""

    async def read() -> None:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=None) as client,
            client.stream("GET", "/web/live") as reply,
        ):
            async for _ in reply.aiter_raw():
                pass

    reader = asyncio.create_task(read()) if is_watched else None
    await asyncio.sleep(0.5)
    try:
        yield
    finally:
        if reader is not None:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader


async def idle_share(server: Server, seconds: float) -> float:
    """Processors that one stream takes while nothing runs."""
    used = {}
    for is_watched in (False, True):
        async with watched(server, is_watched):
            before = sum(server.busy())
            await asyncio.sleep(seconds)
            used[is_watched] = sum(server.busy()) - before
    return (used[True] - used[False]) / seconds


async def pair(server: Server, args: argparse.Namespace) -> dict[str, float]:
    """Watched over unwatched of the same work, in either order."""
    rates, costs = {}, {}
    for is_watched in random.sample((False, True), 2):
        async with watched(server, is_watched):
            found = await load(server, args.streams, args.tokens)
        rates[is_watched] = found["tokens"] / found["seconds"]
        costs[is_watched] = (found["api"] + found["core"]) / found["tokens"]
    ratios = {"tokens/s": rates[True] / rates[False]}
    ratios["processor time a token"] = costs[True] / costs[False]
    print(f"{rates[False]:.0f} tokens/s, watched {rates[True]:.0f}", flush=True)
    return ratios


def interval(ratios: list[float]) -> tuple[float, float]:
    """95 % of the medians of samples drawn with replacement."""
    medians = sorted(median(random.choices(ratios, k=len(ratios))) for _ in range(4000))
    return medians[100], medians[-100]


async def measure(server: Server, args: argparse.Namespace) -> dict[str, object]:
    shares = [await idle_share(server, args.idle_seconds) for _ in range(3)]
    print(f"an idle server's stream: {100 * median(shares):.2f} % of a core", flush=True)
    await load(server, args.streams, args.tokens)
    pairs = [await pair(server, args) for _ in range(args.pairs)]
    for name in pairs[0]:
        ratios = [one[name] for one in pairs]
        low, high = interval(ratios)
        error = 1.96 * stdev(ratios) / len(ratios) ** 0.5
        shown = f"median {median(ratios):.3f} [{low:.3f}, {high:.3f}]"
        print(f"{name}, watched / unwatched: {shown}, mean {mean(ratios):.3f} +- {error:.3f}")
    return {"idle_share": shares, "pairs": pairs}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--options", default="--disable-uvicorn-access-log", help="for serve")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128, help="of each chat")
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.concurrency = [args.streams]
    random.seed(SEED)
    server = Server(args)
    try:
        server.wait_ready()
        found = asyncio.run(measure(server, args))
    finally:
        server.stop()
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
