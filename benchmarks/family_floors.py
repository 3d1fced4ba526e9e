"""Decode steps of different layers against the floor of their bytes and operations.

    python benchmarks/family_floors.py                         four shapes, 1 and 32 sequences
    python benchmarks/family_floors.py --rounds 9 --json FILE
    python benchmarks/family_floors.py --shapes dense --context 512 --sequences 8 32 64

Each shape has random bfloat16 weights and an engine of its own; they take turns. The floor of a
step is kernels/roofline.py's, at the highest limits that were measured before and after each round,
as times are the quickest of the rounds. What counts is each share beside the dense shape's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from kernels.limits import best, measure_limits
from kernels.roofline import Decoder, decode
from peers.machine import describe_machine
from peers.shapes import SHAPES
from transformers import AutoConfig, AutoModelForCausalLM

from vllm_lite.platform import num_compute_threads

SHORT = 2
DEFAULT = ("dense", "gemma3", "qwen3_moe", "mamba2")
# One engine: reads "SEQUENCES TOKENS", answers seconds.
CHILD = """
import json, sys, time
from vllm_lite import LLM, SamplingParams
if __name__ == "__main__":
    context, most = map(int, sys.argv[2:4])
    # A long context is computed once.
    llm = LLM(sys.argv[1], load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
              max_model_len=1024, max_num_seqs=most, enable_prefix_caching=context > 16,
              **json.loads(sys.argv[4]))
    print("ready", flush=True)
    for line in sys.stdin:
        rows, tokens = map(int, line.split())
        prompts = [{"prompt_token_ids": [(7919 * i + 31 * j) % 30000 for j in range(context)]}
                   for i in range(rows)]
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        print("seconds", time.perf_counter() - start, flush=True)
"""


def decoder(config: Mapping[str, Any]) -> Decoder:
    """The parts of a step, by the parameters of transformers' own model."""
    hf = AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(hf)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    experts = sum(n for name, n in sizes.items() if ".experts." in name)
    layers, cache, state, pair = config["num_hidden_layers"], 0, 0, 0
    if "state_size" in config:
        state = 2 * 4 * layers * config["num_heads"] * config["head_dim"] * config["state_size"]
    else:
        head = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        cache = 2 * 2 * layers * config["num_key_value_heads"] * head
        pair = 2 * 2 * layers * config["num_attention_heads"] * head
    # The head reads what the tied embedding holds; an untied embedding is a row a token. In a
    # decode step it has as many rows as the layers.
    return Decoder(
        layers=sum(sizes.values()) - experts,
        head=0,
        experts=experts,
        num_experts=config.get("num_experts", 1),
        chosen=config.get("num_experts_per_tok", 1),
        cache_bytes=cache,
        state_bytes=state,
        pair_operations=pair,
    )


class Engine:
    """A shape's engine in a process of its own; `options` are LLM's further ones."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], context: int, most: int, **options: Any
    ) -> None:
        folder.mkdir()
        AutoConfig.for_model(**config).save_pretrained(folder)
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD, folder, str(context), str(most), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer("ready")

    def seconds(self, sequences: int, tokens: int) -> float:
        assert self._process.stdin is not None
        print(sequences, tokens, file=self._process.stdin, flush=True)
        return float(self._answer("seconds"))

    def stop(self) -> None:
        """Let it end, and its memory be free."""
        self._process.communicate()

    def _answer(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found, _, rest = line.partition(" ")
            if found.strip() == word:
                return rest
        raise SystemExit("an engine ended; its error is above")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=DEFAULT)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--context", type=int, default=16, help="tokens before the first step")
    parser.add_argument("--tokens", type=int, default=24, help="decode steps of a measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    threads = num_compute_threads()
    found = [measure_limits(threads)]
    # The quickest of the rounds, by shape, sequences and tokens: what disturbs one only adds.
    quickest: dict[tuple[str, int, int], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        engines = {
            name: Engine(Path(folder) / name, SHAPES[name], args.context, max(args.sequences))
            for name in args.shapes
        }
        for engine in engines.values():
            engine.seconds(max(args.sequences), SHORT)
        for _ in range(args.rounds):
            for sequences, tokens in itertools.product(
                args.sequences, (SHORT, SHORT + args.tokens)
            ):
                for name, engine in engines.items():
                    took, key = engine.seconds(sequences, tokens), (name, sequences, tokens)
                    quickest[key] = min(took, quickest.get(key, took))
            found.append(measure_limits(threads))
        for engine in engines.values():
            engine.stop()
    limits = best(found)
    if limits is None:
        raise SystemExit("no C++ compiler, so that no limits can be measured")

    rows = []
    print(f"limits: {limits.read_gb_s:.1f} GB/s, {limits.bfloat16_gflop_s:.0f} GFLOP/s in bfloat16")
    print(f"{'shape':<10} {'sequences':>9} {'step, ms':>9} {'floor, ms':>9} {'share':>6}")
    for name in args.shapes:
        parts, context = decoder(SHAPES[name]), args.context + args.tokens // 2
        for sequences in args.sequences:
            more = quickest[name, sequences, SHORT + args.tokens] - quickest[name, sequences, SHORT]
            step, floor = more / args.tokens, parts.seconds(decode(sequences, context), limits)
            rows.append({"shape": name, "sequences": sequences, "ms": step * 1e3})
            rows[-1] |= {"floor_ms": floor * 1e3, "share": floor / step}
            print(
                f"{name:<10} {sequences:>9} {step * 1e3:>9.2f} {floor * 1e3:>9.2f} "
                f"{floor / step:>6.0%}"
            )
    if args.json:
        told = {"machine": describe_machine(), "context": args.context}
        told |= {"limits": asdict(limits), "rows": rows}
        args.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
