"""Embeddings of a BERT beside sentence-transformers and vLLM's CPU build, in turns.

    make peers                                           once: environments for them
    python benchmarks/pooling_peers.py DIR               DIR: all-MiniLM-L6-v2, say; half an hour
    python benchmarks/pooling_peers.py DIR --rounds 1 --engines ours,st --no-http --output OUT

Offline: 1,024 texts of 16 to 256 tokens, as sentences a second and as a share of the machine's
arithmetic, which is measured in each round. Over HTTP: one short text at a time, and 64 clients.
Every engine does its turn in a fresh process. Writes pooling.json and pooling.md: medians over
rounds, the share of the peak, and the least cosine to sentence-transformers in float32.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from kernels.limits import measure_limits
from peers.children.session import MARK
from peers.engines import CHILDREN, KV_SPACE_GIB, default_peers
from peers.machine import describe_machine
from peers.processes import run_child, running
from peers.serving import free_port, wait_ready

from vllm_lite.bench.http_client import HttpClient
from vllm_lite.platform import num_compute_threads

LIMIT = 600.0
NUM_TEXTS, SHORTEST, LONGEST, SHORT = 1024, 16, 256, 12
NUM_KEPT = 64
BATCH_SIZES = (32, 64, 128)
NUM_SINGLE, NUM_CLIENTS, NUM_LOADED = 300, 64, 2000
REFERENCE = "st float32"
Figures = dict[str, dict[str, list[float]]]  # by work, then engine


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine with one type of numbers."""

    id: str
    module: str
    dtype: str
    quantization: str | None = None

    @property
    def python(self) -> str:
        """The interpreter that has it."""
        folder = {"vllm": "vllm", "sentence_transformers": "st"}.get(self.module)
        return (
            sys.executable
            if folder is None
            else str(default_peers().folder / folder / "bin/python")
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            "VLLM_CPU_KVCACHE_SPACE": KV_SPACE_GIB,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "TOKENIZERS_PARALLELISM": "true",
        }

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of its LLM class."""
        if self.module == "sentence_transformers":
            return {"dtype": self.dtype}
        more = {"quantization": self.quantization} if self.quantization else {}
        return {"runner": "pooling", "dtype": self.dtype, **more}

    def server_words(self, model: str, port: int) -> list[str]:
        """The command of a server."""
        module = "vllm_lite" if self.module == "vllm_lite" else "vllm.entrypoints.cli.main"
        words = [self.python, "-m", module, "serve", model, "--host", "127.0.0.1"]
        words += ["--port", str(port), "--served-model-name", "model"]
        for name, value in self.options.items():
            words += [f"--{name}", value]
        return words


ENGINES = (
    Engine("ours bfloat16", "vllm_lite", "bfloat16"),
    Engine("ours float32", "vllm_lite", "float32"),
    Engine("ours int8", "vllm_lite", "bfloat16", "int8"),
    Engine("st bfloat16", "sentence_transformers", "bfloat16"),
    Engine(REFERENCE, "sentence_transformers", "float32"),
    Engine("vllm bfloat16", "vllm", "bfloat16"),
)
# Whose figures are set side by side, and how many times better ours is to be.
PAIRS = (
    ("ours bfloat16", ("st bfloat16", REFERENCE), 1.5),
    ("ours int8", ("st bfloat16", REFERENCE), 2.5),
    ("ours bfloat16", ("vllm bfloat16",), 2.0),
)


@dataclass(slots=True)
class Results:
    """Everything that the file holds."""

    machine: dict[str, Any] = field(default_factory=describe_machine)
    limits: list[dict[str, float]] = field(default_factory=list)
    gflop: float = 0.0
    figures: Figures = field(default_factory=dict)
    cosines: dict[str, float] = field(default_factory=dict)

    def add(self, work: str, engine: str, value: float) -> None:
        """Keep a figure of one round."""
        self.figures.setdefault(work, {}).setdefault(engine, []).append(value)
        print(f"    {work}: {value:.4g}", flush=True)

    def median(self, work: str, engine: str) -> float:
        """Over the rounds; 0 where there is none."""
        return statistics.median(self.figures.get(work, {}).get(engine) or [0.0])


def texts_of(model: Path) -> tuple[list[str], int, float]:
    """Texts of words that are a token each; a length for the HTTP texts; billions of operations.

    Special tokens at both ends count.
    """
    vocabulary = (model / "vocab.txt").read_text().splitlines()
    words = [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2]
    source = random.Random(0)
    lengths = [source.randint(SHORTEST, LONGEST) for _ in range(NUM_TEXTS)]
    texts = [" ".join(source.choices(words, k=length - 2)) for length in lengths]
    config = json.loads((model / "config.json").read_text())
    size, inner = config["hidden_size"], config["intermediate_size"]
    products = sum(n * (4 * size * size + 2 * size * inner) + 2 * n * n * size for n in lengths)
    return texts, SHORT, 2e-9 * config["num_hidden_layers"] * products


def offline(engine: Engine, model: Path, texts: Path, results: Results) -> list[list[float]]:
    """Measure all texts in a process of the engine's own; gives the vectors of the first."""
    vectors = texts.with_name("vectors.json")
    vectors.unlink(missing_ok=True)
    best = math.inf

    def on_line(line: str) -> None:
        nonlocal best
        if not line.startswith(MARK):
            return
        values = json.loads(line[len(MARK) :])
        if values["work"] == "ready":
            results.add("start to ready, s", engine.id, values["seconds"])
        else:
            best = min(best, values["seconds"])
            print(f"    {values['work']}: {values['seconds']:.3g} s", flush=True)

    orders = {
        "module": engine.module,
        "model": str(model),
        "options": engine.options,
        "texts": str(texts),
        "vectors": str(vectors),
        "num_kept": NUM_KEPT,
        "num_threads": num_compute_threads(),
        "batch_sizes": BATCH_SIZES,
        "times": 2,
        "spawned": time.monotonic(),
    }
    words = [engine.python, str(CHILDREN / "embed.py"), json.dumps(orders)]
    if failed := run_child(words, engine.environment, LIMIT, on_line):
        print(f"    failed: {failed}", flush=True)
    if math.isfinite(best):
        results.add("offline, texts/s", engine.id, NUM_TEXTS / best)
        # Some processors multiply widened numbers faster than pairs of bfloat16.
        limits = results.limits[-1]
        peak = max(limits["float32_gflop_s"], limits["bfloat16_gflop_s"])
        if engine.dtype == "float32":
            peak = limits["float32_gflop_s"]
        results.add("offline, share of the peak", engine.id, results.gflop / best / peak)
    found: list[list[float]] = json.loads(vectors.read_text()) if vectors.exists() else []
    return found


def over_http(engine: Engine, model: Path, texts: Sequence[str], results: Results) -> None:
    """Measure one text after another, then 64 clients."""
    port, begin = free_port(), time.monotonic()
    words = engine.server_words(str(model), port)
    with running(words, engine.environment, reads=False) as server:
        if reason := wait_ready(server, port, begin + LIMIT):
            print(f"    failed: {reason}", flush=True)
            return
        results.add("server ready, s", engine.id, time.monotonic() - begin)
        median, rate = uvloop.run(_load(f"http://127.0.0.1:{port}", texts))
        results.add("one short text over HTTP, ms", engine.id, median * 1000)
        results.add("64 clients, texts/s", engine.id, rate)


async def _load(url: str, texts: Sequence[str]) -> tuple[float, float]:
    """The median seconds of one request at a time, and requests a second of 64 clients."""
    client = HttpClient(url, {})
    bodies = [json.dumps({"model": "model", "input": text}).encode() for text in texts]

    async def embed(number: int) -> float:
        begin = time.perf_counter()
        body = bodies[number % len(bodies)]
        status, refusal = await client.post("/v1/embeddings", body, lambda _: None)
        if status != 200:
            raise RuntimeError(f"HTTP {status}: {refusal.decode(errors='replace')[:200]}")
        return time.perf_counter() - begin

    async def embed_every(first: int) -> None:
        for number in range(first, NUM_LOADED, NUM_CLIENTS):
            await embed(number)

    for number in range(50):
        await embed(number)
    median = statistics.median([await embed(number) for number in range(NUM_SINGLE)])
    await asyncio.gather(*(embed(number) for number in range(NUM_CLIENTS)))
    begin = time.perf_counter()
    await asyncio.gather(*map(embed_every, range(NUM_CLIENTS)))
    return median, NUM_LOADED / (time.perf_counter() - begin)


def least_cosine(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """The least cosine of vectors of the same texts."""
    a, b = np.array(ours), np.array(theirs)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(1) / lengths).min())


def table(results: Results) -> str:
    """Medians of all rounds, how many times better ours is, and cosines."""
    names = [engine.id for engine in ENGINES]
    lines = ["| | " + " | ".join(names) + " |", "| --- " + "| ---: " * len(names) + "|"]
    for work in results.figures:
        cells = [f"{m:.3g}" if (m := results.median(work, name)) else "-" for name in names]
        lines.append(f"| {work} | " + " | ".join(cells) + " |")
    cosines = [f"{results.cosines[n]:.5f}" if n in results.cosines else "-" for n in names]
    lines.append("| least cosine to st float32 | " + " | ".join(cosines) + " |")
    lines.append("")
    work = "offline, texts/s"
    for name, peers, aim in PAIRS:
        mine, best = results.median(work, name), max(results.median(work, p) for p in peers)
        if mine and best:
            lines.append(
                f"- {name}, offline: {mine / best:.2f} times {' or '.join(peers)}; aim {aim}"
            )
    for work in ("one short text over HTTP, ms", "64 clients, texts/s"):
        mine, theirs = (results.median(work, f"{name} bfloat16") for name in ("ours", "vllm"))
        if mine and theirs:
            ratio = theirs / mine if work.endswith("ms") else mine / theirs
            lines.append(f"- {work}: {ratio:.2f} times vLLM")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, help="a directory in Hugging Face's layout")
    parser.add_argument("--engines", default="ours,st,vllm", help="first words of their names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--http", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    args = parser.parse_args()
    chosen = [engine for engine in ENGINES if engine.id.startswith(tuple(args.engines.split(",")))]
    args.output.mkdir(parents=True, exist_ok=True)
    results, vectors = Results(), dict[str, list[list[float]]]()
    texts, length, results.gflop = texts_of(args.model)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.json"
        file.write_text(json.dumps(texts))
        short = [" ".join(text.split()[: length - 2]) for text in texts]
        for turn in range(1, args.rounds + 1):
            # Engines that come first in one round come last in the next.
            for engine in chosen if turn % 2 else chosen[::-1]:
                print(f"round {turn}: {engine.id}", flush=True)
                limits = measure_limits(num_compute_threads())
                if limits is None:
                    raise SystemExit("the machine's limits need a C++ compiler")
                results.limits.append(asdict(limits))
                vectors[engine.id] = offline(engine, args.model, file, results)
                if args.http and engine.module != "sentence_transformers":
                    over_http(engine, args.model, short, results)
                _compare(vectors, results)
                _write(args.output, results)
    print(table(results))


def _compare(vectors: Mapping[str, list[list[float]]], results: Results) -> None:
    for name, rows in vectors.items():
        if rows and vectors.get(REFERENCE):
            results.cosines[name] = least_cosine(rows, vectors[REFERENCE])


def _write(folder: Path, results: Results) -> None:
    (folder / "pooling.json").write_text(json.dumps(asdict(results), indent=1) + "\n")
    (folder / "pooling.md").write_text(table(results) + "\n")


if __name__ == "__main__":
    main()
