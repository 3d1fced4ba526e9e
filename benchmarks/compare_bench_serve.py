"""Whether our `bench serve` and vLLM's report the same of one server.

    python benchmarks/compare_bench_serve.py --vllm-python PYTHON --tokenizer DIR

PYTHON is an interpreter that has vLLM, DIR a tokenizer in Hugging Face's layout that is the
served model's. Both clients send the same texts in the same order, in turns, the first one of a
round being the second one of the next; prefix caching is off, so that no run profits from the
one before. Prints each round, and over all rounds the ratio of ours to theirs.

With --null-step-ms the server only sends, to all streams in a step at that pace, so that a busy
machine changes little. A first token then waits for the next step: the sooner a client sends a
request after the one before, the longer.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vllm_lite.bench.datasets import Source, load_samples
from vllm_lite.bench.options.datasets import DatasetOptions
from vllm_lite.bench.prompts import PromptMaker, open_tokenizer
from vllm_lite.bench.sweep.commands import serving

METRICS = {
    "output_throughput": "output tok/s",
    "request_throughput": "requests/s",
    "median_ttft_ms": "median TTFT ms",
    "median_tpot_ms": "median TPOT ms",
    "median_itl_ms": "median ITL ms",
}
OURS, THEIRS = "ours", "vLLM's"


@contextmanager
def target(args: argparse.Namespace) -> Iterator[str]:
    """The URL of the server: the one that was named, or one that is started for the comparison."""
    if args.base_url:
        yield args.base_url
        return
    if args.null_step_ms:
        with null_server(args) as url:
            yield url
        return
    words = [sys.executable, "-m", "vllm_lite", "serve", args.model, "--host", "127.0.0.1"]
    words += ["--port", str(args.port), "--no-enable-prefix-caching", *shlex.split(args.serve_args)]
    with serving(words, 300, Path(tempfile.gettempdir()) / "compare_bench_serve.log") as server:
        yield server.url


@contextmanager
def null_server(args: argparse.Namespace) -> Iterator[str]:
    """A server that sends a token to each stream at a known pace, whatever the machine does."""
    words = [sys.executable, str(Path(__file__).with_name("load_generator.py")), "--serve"]
    words += ["--tokens", str(args.output_len), "--step-ms", str(args.null_step_ms)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        if server.stdout is None or not (port := server.stdout.readline().strip()):
            raise SystemExit("the null server did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def write_prompts(args: argparse.Namespace, path: Path) -> None:
    """Random texts of the wanted length, as both clients read them."""
    options = DatasetOptions(num_prompts=args.num_prompts, random_input_len=args.input_len)
    maker = PromptMaker(open_tokenizer(args.tokenizer))
    samples = load_samples("random", Source(options, maker, args.seed))
    # ShareGPT's layout, because vLLM reads it without further packages.
    talks = [{"conversations": [{"value": sample.prompt}, {"value": "-"}]} for sample in samples]
    path.write_text(json.dumps(talks))


def run(client: str, args: argparse.Namespace, url: str, prompts: Path) -> dict[str, float]:
    """One run of a client; the figures of its JSON file."""
    own = [sys.executable, "-m", "vllm_lite"]
    start = own if client == OURS else [args.vllm_python, "-m", "vllm.entrypoints.cli.main"]
    result = prompts.with_name("result.json")
    words = [*start, "bench", "serve", "--base-url", url, "--tokenizer", args.tokenizer]
    words += ["--dataset-name", "sharegpt", "--dataset-path", str(prompts), "--disable-shuffle"]
    words += ["--sharegpt-output-len", str(args.output_len), "--ignore-eos"]
    words += ["--num-prompts", str(args.num_prompts), "--seed", str(args.seed), "--disable-tqdm"]
    words += [
        "--model",
        args.model,
        "--temperature",
        "0",
        "--num-warmups",
        "2",
        "--save-result",
        "--result-filename",
    ]
    words += [str(result), "--request-rate", args.request_rate, "--burstiness", "inf"]
    if args.max_concurrency:
        words += ["--max-concurrency", str(args.max_concurrency)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(words)}\n{done.stdout}{done.stderr}")
    figures = json.loads(result.read_text())
    if figures["completed"] != args.num_prompts:
        raise SystemExit(f"{client}: {figures['completed']} of {args.num_prompts} completed")
    return {name: float(figures[name]) for name in METRICS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm-python", required=True, help="interpreter that has vLLM")
    parser.add_argument("--tokenizer", required=True, help="directory of the model's tokenizer")
    parser.add_argument("--model", default="demo", help="model to serve")
    parser.add_argument("--serve-args", default="", help="further options of the server")
    parser.add_argument("--base-url", help="a running server, instead of starting one")
    parser.add_argument("--null-step-ms", type=float, help="send at this pace, with no model")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--request-rate", default="inf")
    parser.add_argument("--max-concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    seen: dict[str, list[dict[str, float]]] = {OURS: [], THEIRS: []}
    with tempfile.TemporaryDirectory() as folder, target(args) as url:
        prompts = Path(folder) / "prompts.json"
        write_prompts(args, prompts)
        run(OURS, args, url, prompts)  # the server's first run is like no other
        for number in range(args.rounds):
            for client in (OURS, THEIRS) if number % 2 == 0 else (THEIRS, OURS):
                figures = run(client, args, url, prompts)
                seen[client].append(figures)
                shown = "  ".join(f"{METRICS[k]} {v:9.2f}" for k, v in figures.items())
                print(f"round {number + 1} {client:7} {shown}", flush=True)
    for name, title in METRICS.items():
        ours, theirs = ([one[name] for one in seen[client]] for client in (OURS, THEIRS))
        # Of a round's own pair: both met the same machine.
        ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        print(
            f"{title:15} ours {statistics.median(ours):9.2f}  "
            f"vLLM's {statistics.median(theirs):9.2f}  ratio in a round: median "
            f"{statistics.median(ratios):.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f}"
        )


if __name__ == "__main__":
    main()
