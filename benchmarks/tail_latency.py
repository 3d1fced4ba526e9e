"""Gaps between a stream's tokens while other prompts arrive, with and without a target.

    python benchmarks/tail_latency.py                        8 and 32 streams of the demo model
    python benchmarks/tail_latency.py --streams 8 --rounds 5 --json FILE
    python benchmarks/tail_latency.py --burst 32             first tokens of 32 prompts at once

One server cuts prompts to keep its automatic target (--scheduler-target-itl-ms), one has none, and
the two take turns. Streams of long answers never pause: an answer that ends makes room for the
next. Beside them prompts of 64 to 400 tokens arrive at random times, each for a short answer.

A burst is such prompts sent at once to an idle server. The last first token cannot come before all
prompts are computed: its floor is their operations at the peak
measured before and after: between the two, as figures are medians of rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from kernels.limits import measure_limits, typical
from peers.machine import describe_machine
from peers.serving import own_server

from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.facts import ModelFacts
from vllm_lite.platform import num_compute_threads

Figures = dict[str, dict[str, list[float]]]

KINDS = {"off": ["--scheduler-target-itl-ms", "0"], "auto": []}
OPTIONS = ("--served-model-name", "served", "--no-enable-prefix-caching")
OPTIONS += ("--num-gpu-blocks-override", "2000")


class Load:
    """Streams and arrivals of one round; notes down what came when."""

    def __init__(self, server: str, seed: int) -> None:
        self._url = server + "/v1/completions"
        self._random = random.Random(seed)
        self.gaps: list[float] = []
        self.first: list[float] = []
        self.num_tokens = 0
        self._begin = 0.0

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

    async def burst(self, number: int, answer: int) -> list[int]:
        """Prompts sent at once, for answers of so many tokens; the prompts' lengths."""
        limits = httpx.Limits(max_connections=None)
        prompts = [self._prompt(64, 400) for _ in range(number)]
        async with httpx.AsyncClient(limits=limits, timeout=600) as client:
            await asyncio.gather(*(self._ask(client, prompt, answer) for prompt in prompts))
        return [len(prompt) for prompt in prompts]

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


def prompt_operations(facts: ModelFacts, lengths: list[int]) -> float:
    """Of prompts up to their first tokens, by a model of Llama's shape."""
    heads = facts.num_heads * facts.head_size
    kv_heads = facts.num_kv_heads * facts.head_size
    inner = facts.hf_config["intermediate_size"]
    layer = facts.hidden_size * (2 * heads + 2 * kv_heads + 3 * inner)
    head = facts.hidden_size * facts.vocab_size
    return sum(
        # A multiplication and an addition each; a token attends to itself and those before it.
        2 * (facts.num_layers * (layer * length + heads * length * (length + 1)) + head)
        for length in lengths
    )


async def measure_streams(args: argparse.Namespace, servers: dict[str, str]) -> Figures:
    """Figures of every round by streams and kind."""
    found: Figures = defaultdict(lambda: defaultdict(list))
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
    return found


async def measure_bursts(args: argparse.Namespace, servers: dict[str, str]) -> Figures:
    """Times to first tokens of every round by prompts, answers and kind; prompts' operations."""
    facts = EngineArgs(model=args.model).create_engine_config().facts
    found: Figures = defaultdict(lambda: defaultdict(list))
    for turn in range(args.rounds + 1):
        for answer in args.answers:
            for kind, server in servers.items():
                load = Load(server, turn)
                lengths = await load.burst(args.burst, answer)
                if not turn:
                    continue
                first, figures = sorted(load.first), found[f"{args.burst}, {answer} {kind}"]
                figures["median_ms"].append(1e3 * statistics.median(first))
                figures["p99_ms"].append(1e3 * first[math.ceil(0.99 * len(first)) - 1])
                figures["prompt_tokens"].append(sum(lengths))
                figures["gflop"].append(prompt_operations(facts, lengths) / 1e9)
    return found


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The JSON file: rounds by streams or prompts and kind, and how they came about."""
    told: dict[str, Any] = {"machine": describe_machine()}
    with ExitStack() as stack:
        servers = {
            kind: stack.enter_context(own_server(args.model, *OPTIONS, *words))[0]
            for kind, words in KINDS.items()
        }
        if not args.burst:
            told |= {"seconds": args.seconds, "per_second": args.per_second}
            return told | {"rounds": await measure_streams(args, servers)}
        threads = num_compute_threads()
        before = measure_limits(threads)
        found = await measure_bursts(args, servers)
        limits = typical([before, measure_limits(threads)])
    if limits is None:
        raise SystemExit("no C++ compiler, so that no peak can be measured")
    peak = max(limits.bfloat16_gflop_s, limits.float32_gflop_s)
    for figures in found.values():
        figures["floor_ms"] = [1e3 * size / peak for size in figures["gflop"]]
        floors = zip(figures["p99_ms"], figures["floor_ms"], strict=True)
        figures["p99_by_floor"] = [p99 / floor for p99, floor in floors]
    return told | {"limits": asdict(limits), "rounds": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--per-second", type=float, default=1.5, help="prompts that arrive")
    parser.add_argument("--burst", type=int, help="prompts at once, instead of streams")
    parser.add_argument("--answers", type=int, nargs="+", default=[16, 128], help="their tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    bursts = [] if args.burst is None else [args.burst]
    counts = {"streams": args.streams, "burst": bursts, "answers": args.answers}
    for name, numbers in (counts | {"rounds": [args.rounds]}).items():
        if any(number < 1 for number in numbers):
            parser.error(f"--{name} is {min(numbers)}: give 1 or more")
    if not (0 < args.seconds < math.inf and 0 < args.per_second < math.inf):
        parser.error("--seconds and --per-second are more than 0")
    told = asyncio.run(measure(args))
    rounds: Figures = told["rounds"]
    names = list(next(iter(rounds.values())))
    what = "prompts, answers" if args.burst else "streams"
    print(f"{what:<18}" + "".join(f"{name:>14}" for name in names))
    for row, figures in rounds.items():
        values = [statistics.median(figures[name]) for name in names]
        digits = [2 if name == "p99_by_floor" else 1 for name in names]
        cells = zip(values, digits, strict=True)
        print(f"{row:<18}" + "".join(f"{value:>14.{most}f}" for value, most in cells))
    if args.json:
        args.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
