"""Offline throughput: 64 prompts of 128 random ids, 128 tokens out, greedy, EOS ignored.

    python benchmarks/offline_throughput.py                  this engine, on the demo model
    python benchmarks/offline_throughput.py --peer-python P --peer-model DIR
        besides, vLLM in the environment of interpreter P on the same weights
        (benchmarks/export_demo_checkpoint.py writes DIR), one round each in turn

Every round is a fresh process with one warm-up, so that neither engine warms the other's caches.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()


def prompts(args: argparse.Namespace) -> list[list[int]]:
    source = random.Random(args.seed)
    return [
        [source.randrange(100, 40_000) for _ in range(args.input_len)]
        for _ in range(args.num_prompts)
    ]


def run_once(args: argparse.Namespace) -> None:
    """One round inside a child process; prints its figures as JSON on the last line."""
    started = time.perf_counter()
    if args.engine == "vllm":
        from vllm import LLM, SamplingParams
    else:
        from vllm_lite import LLM, SamplingParams
    options: dict[str, Any] = {"max_num_seqs": args.num_prompts, "dtype": args.dtype, "seed": 0}
    options["enable_prefix_caching"] = False
    llm = LLM(model=args.model, max_model_len=2048, **options)
    ready = time.perf_counter() - started
    params = SamplingParams(temperature=0.0, max_tokens=args.output_len, ignore_eos=True)
    warm = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    batch = [{"prompt_token_ids": ids} for ids in prompts(args)]
    llm.generate(batch[:8], warm, use_tqdm=False)
    begin = time.perf_counter()
    outputs = llm.generate(batch, params, use_tqdm=False)
    elapsed = time.perf_counter() - begin
    tokens = sum(len(o.outputs[0].token_ids) for o in outputs)
    print(
        json.dumps(
            {"ready_s": ready, "elapsed_s": elapsed, "output_tokens_per_s": tokens / elapsed}
        )
    )


def child(args: argparse.Namespace, engine: str, python: str, model: str) -> dict[str, float]:
    command = [python, str(HERE), "--engine", engine, "--model", model, "--child"]
    for name in ("num_prompts", "input_len", "output_len", "seed", "dtype"):
        command += ["--" + name.replace("_", "-"), str(getattr(args, name))]
    quiet = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        command, env={**os.environ, **quiet}, capture_output=True, text=True, cwd="/"
    )
    if done.returncode:
        raise SystemExit(f"{engine} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--peer-python", help="interpreter of an environment that has vLLM")
    parser.add_argument("--peer-model", help="the same weights as a Hugging Face directory")
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--engine", default="vllm-lite", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_once(args)
        return
    engines = [("vllm-lite", sys.executable, args.model)]
    if args.peer_python:
        engines.append(("vllm", args.peer_python, args.peer_model or args.model))
    results: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in engines}
    for turn in range(args.rounds):
        for name, python, model in engines:
            figures = child(args, name, python, model)
            results[name].append(figures)
            print(
                f"round {turn + 1}  {name:<10} {figures['output_tokens_per_s']:8.1f} output tok/s"
                f"   ready in {figures['ready_s']:.1f} s",
                flush=True,
            )
    medians = {
        name: statistics.median(r["output_tokens_per_s"] for r in rows)
        for name, rows in results.items()
    }
    print()
    for name, value in medians.items():
        ratio = f"   {value / medians['vllm']:.2f} x vllm" if "vllm" in medians else ""
        print(f"median   {name:<10} {value:8.1f} output tok/s{ratio}")
    if args.output_json:
        record = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "workload": f"{args.num_prompts} x ({args.input_len} in, {args.output_len} out)",
            "dtype": args.dtype,
            "median_output_tokens_per_s": medians,
            "rounds": results,
        }
        args.output_json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
