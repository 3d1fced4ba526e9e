"""Compare two checkouts on the demo model in paired rounds: offline steps, HTTP streams, start.

    python benchmarks/paired.py OTHER/.venv/bin/python --rounds 20

Both checkouts work in turns within each round, so that a slow moment of the machine meets both.
Prints, for each workload, medians and the median of the pairs' ratios with its 95 % interval by
resampling; above 1 this checkout is faster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import httpx

# Requests, tokens of each prompt, tokens of each reply.
OFFLINE = {
    "decode, 1 sequence": (1, 8, 48),
    "decode, 8 sequences": (8, 8, 32),
    "decode, 32 sequences": (32, 8, 16),
    "decode, 64 sequences": (64, 8, 12),
    "prefill of 1,024": (1, 1024, 1),
    "offline, 16 of 100": (16, 100, 16),
}
HTTP_STREAMS = 32
WORKER = """
import random, sys, time
from vllm_lite import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM(model=sys.argv[1], max_model_len=2048, enable_prefix_caching=False)
    def run(count, length, new):
        rng = random.Random(count)
        prompts = [
            {"prompt_token_ids": [rng.randrange(100, 40000) for _ in range(length)]}
            for _ in range(count)
        ]
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
        begun = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - begun
    run(1, 16, 8)
    print("TIME 0", flush=True)
    for line in sys.stdin:
        print("TIME", run(*map(int, line.split())), flush=True)
"""


class Side:
    """One checkout: an offline engine, then a server, one at a time."""

    def __init__(self, python: Path, model: str, port: int) -> None:
        self.python, self.model, self.port = python, model, port
        self.process: subprocess.Popen[str] | None = None

    def start_offline(self) -> None:
        self.process = subprocess.Popen(
            [self.python, "-c", WORKER, self.model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd="/",
        )
        self._time()

    def offline(self, workload: tuple[int, int, int]) -> float:
        assert self.process is not None and self.process.stdin is not None
        print(*workload, file=self.process.stdin, flush=True)
        return self._time()

    def _time(self) -> float:
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("TIME"):
                return float(line.split()[1])
        raise SystemExit(f"the engine of {self.python} ended")

    def start_server(self) -> float:
        """Seconds until /health answers."""
        command = [self.python, "-m", "vllm_lite", "serve", self.model]
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", "2048"]
        quiet = ["--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
        begun = time.perf_counter()
        self.process = subprocess.Popen(
            [*map(str, command), *options, *quiet],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd="/",
        )
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1).close()
                return time.perf_counter() - begun
            except OSError:
                time.sleep(0.005)
        raise SystemExit(f"the server of {self.python} ended")

    async def http(self, seed: int) -> float:
        """Seconds of HTTP_STREAMS streams of 32 tokens at once."""
        async with httpx.AsyncClient(timeout=120) as client:
            begun = time.perf_counter()
            await asyncio.gather(*(self._stream(client, seed + i) for i in range(HTTP_STREAMS)))
            return time.perf_counter() - begun

    async def _stream(self, client: httpx.AsyncClient, seed: int) -> None:
        body: dict[str, Any] = {
            "prompt": [(seed * 7919 + i * 31) % 40000 + 100 for i in range(16)],
            "max_tokens": 32,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        async with client.stream("POST", url, json=body) as reply:
            reply.raise_for_status()
            async for _ in reply.aiter_lines():
                pass

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)


def interval(ratios: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median, by resampling."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[-51]


def report(times: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Print a table of (other, this) seconds; returns it as plain data."""
    result = {}
    print(f"{'workload':<24}{'other':>10}{'this':>10}{'other/this':>12}   95 %")
    for name, pairs in times.items():
        other, this = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = [a / b for a, b in pairs]
        ratio, (low, high) = statistics.median(ratios), interval(ratios)
        print(f"{name:<24}{other:>8.3f} s{this:>8.3f} s{ratio:>12.3f}   {low:.3f} to {high:.3f}")
        result[name] = {"other": other, "this": this, "ratio": ratio, "low": low, "high": high}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="the other checkout's Python")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", choices=["offline", "http", "start"])
    parser.add_argument("--port", type=int, default=8450)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    sides = [
        Side(python, args.model, args.port + i)
        for i, python in enumerate((args.other, Path(sys.executable)))
    ]
    times: dict[str, list[tuple[float, float]]] = {}

    def pair(name: str, round_: int, measure: Any) -> None:
        order = sides if round_ % 2 else sides[::-1]
        took = {id(side): measure(side) for side in order}
        if round_:  # the first warms up
            times.setdefault(name, []).append((took[id(sides[0])], took[id(sides[1])]))

    try:
        if args.only in (None, "offline"):
            for side in sides:
                side.start_offline()
            for round_ in range(args.rounds + 1):
                for name, workload in OFFLINE.items():
                    pair(name, round_, lambda side, load=workload: side.offline(load))
            for side in sides:
                side.stop()
        if args.only in (None, "http"):
            for side in sides:
                side.start_server()
            for round_ in range(args.rounds + 1):
                name = f"HTTP, {HTTP_STREAMS} streams"
                pair(name, round_, lambda side, seed=100 * round_: asyncio.run(side.http(seed)))
            for side in sides:
                side.stop()
        if args.only in (None, "start"):
            for round_ in range(args.rounds + 1):

                def start(side: Side) -> float:
                    took = side.start_server()
                    side.stop()
                    return took

                pair("start until healthy", round_, start)
    finally:
        for side in sides:
            if side.process is not None and side.process.poll() is None:
                side.process.kill()
    result = report(times)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
