"""Processor time of the API process for a streamed token: detokenising, outputs, SSE, HTTP.

    python benchmarks/token_cost.py                        32 and 64 chats on the demo model
    python benchmarks/token_cost.py --concurrency 32 --rounds 5 --json FILE

A real server streams chats of two lengths to a client in this process; the difference in the
processor time of the server's processes, over the difference in tokens, is what a token costs
without what a request costs. A chunk may carry several tokens where the engine is faster than the
API process, so chunks are counted too: with fewer chunks than tokens the figure flatters.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import psutil
from peers.serving import own_server

from vllm_lite.bench.http_client import HttpClient
from vllm_lite.bench.load import Sender, run_load
from vllm_lite.bench.recorder import PreparedRequest

PATH = "/v1/chat/completions"


def busy(api_pid: int) -> tuple[float, float]:
    """Seconds of processor time so far, user and system: the API process's, the core's."""
    process = psutil.Process(api_pid)
    api = process.cpu_times()
    core = [child.cpu_times() for child in process.children()]
    return api.user + api.system, sum(times.user + times.system for times in core)


def chat(number: int, tokens: int) -> PreparedRequest:
    body = {
        "messages": [{"role": "user", "content": f"Tell a long story about the number {number}."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return PreparedRequest(json.dumps(body).encode(), 1)


async def load(server: tuple[str, int], concurrency: int, tokens: int) -> dict[str, float]:
    """One batch of chats; the processor time, the tokens and the chunks of all."""
    url, pid = server
    client = HttpClient(url, {})
    sender = Sender(client, PATH, "cost-")
    requests = [chat(i, tokens) for i in range(concurrency)]
    api, core = busy(pid)
    results, seconds = await run_load(sender, requests, [0.0] * concurrency, None, False)
    # What the last tokens leave to do is theirs.
    await asyncio.sleep(0.2)
    api_after, core_after = busy(pid)
    failed = [result.error for result in results if not result.is_success]
    if failed:
        raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
    return {
        "tokens": sum(result.output_tokens or 0 for result in results),
        "chunks": sum(len(result.itls) for result in results),
        "seconds": seconds,
        "api": api_after - api,
        "core": core_after - core,
    }


async def measure(
    server: tuple[str, int], concurrency: int, args: argparse.Namespace
) -> dict[str, Any]:
    await load(server, concurrency, args.short)
    rounds = []
    for _ in range(args.rounds):
        short = await load(server, concurrency, args.short)
        long = await load(server, concurrency, args.long)
        more = {name: long[name] - short[name] for name in long}
        rounds.append(
            {
                "api_us_a_token": more["api"] / more["tokens"] * 1e6,
                "core_us_a_token": more["core"] / more["tokens"] * 1e6,
                "tokens_a_chunk": more["tokens"] / more["chunks"],
                "tokens_a_second": more["tokens"] / more["seconds"],
                "api_us_a_request": (short["api"] - short["tokens"] * more["api"] / more["tokens"])
                / concurrency
                * 1e6,
            }
        )
    medians = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    return {"concurrency": concurrency, **medians, "rounds": rounds}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--options", default="", help="for serve")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--short", type=int, default=16, help="tokens of a short chat")
    parser.add_argument("--long", type=int, default=144, help="tokens of a long one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limit-us", type=float, help="exit code 1 if a token costs the API more")
    args = parser.parse_args()
    options = ["--max-model-len", "2048", "--max-num-seqs", str(max(args.concurrency))]
    with own_server(args.model, *options, *args.options.split()) as server:
        results = [asyncio.run(measure(server, count, args)) for count in args.concurrency]
    names = [name for name in results[0] if name not in ("concurrency", "rounds")]
    print(f"{'chats':<8}" + "".join(f"{name:>20}" for name in names))
    for result in results:
        print(f"{result['concurrency']:<8}" + "".join(f"{result[n]:>20.2f}" for n in names))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    worst = max(result["api_us_a_token"] for result in results)
    return int(args.limit_us is not None and worst > args.limit_us)


if __name__ == "__main__":
    sys.exit(main())
