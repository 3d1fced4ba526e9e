"""A family of each group beside vLLM's CPU build and llama.cpp: the same shapes, in turns.

    make peers                                        once: environments for them
    python benchmarks/family_peers.py                 every shape, three rounds: about an hour
    python benchmarks/family_peers.py --shapes mamba2 olmoe --rounds 1 --output DIR
    python benchmarks/family_peers.py --add --engines ours llamacpp    more rounds of some

Weights are made up: bfloat16 beside vLLM, one Q4_0 file beside llama.cpp (written once by
llama.cpp's own converter and quantizer). Every engine does a shape in a fresh process. Writes
families.json and families.md, medians and ratios (above 1: ours is better).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peers.children.session import MARK
from peers.engines import Engine, default_peers, engines
from peers.machine import describe_machine
from peers.processes import run_child
from peers.shapes import SHAPES
from peers.workloads import LLAMACPP, PAIRS, Q4_1, Step

from vllm_lite.platform import num_compute_threads

NAMES = ("gpt2", "qwen3_0.6b", "gemma3", "olmoe", "qwen3_30b_a3b", "deepseek_v2_lite")
NAMES += ("mamba2", "lfm2_350m")
LIMIT = 900.0
Figures = dict[str, dict[str, list[float]]]  # by work, then engine


def steps(batches: Sequence[int]) -> list[Step]:
    """A prompt of 512 tokens, and steps of so many sequences each."""
    decode: Step = {"kind": "decode", "input_len": 64, "num_steps": 24, "times": 3}
    return [
        {"work": "prefill of 512, tok/s", "kind": "prefill", "input_len": 512, "times": 3},
        *(
            {**decode, "work": f"step of {num_seqs}, ms", "num_seqs": num_seqs}
            for num_seqs in batches
        ),
    ]


def measure(engine: Engine, model: str, todo: list[Step]) -> dict[str, float]:
    """The figure of each work with `model`, a directory or a file; prints what failed."""
    found: dict[str, float] = {}

    def on_line(line: str) -> None:
        if not line.startswith(MARK):
            return
        values = json.loads(line[len(MARK) :])
        if "error" in values:
            print(f"    {values['work']} failed: {values['error']}", flush=True)
        elif values["work"] != "ready":
            (found[values["work"]],) = (
                values[k] for k in ("step_ms", "tokens_per_s") if k in values
            )

    is_dummy = Path(model).is_dir()
    words = replace(engine, model=model).child_words(
        todo, time.monotonic(), Path(model) if is_dummy else None
    )
    orders = json.loads(words[-1])
    if "options" in orders:
        orders["options"]["skip_tokenizer_init"] = True
        words[-1] = json.dumps(orders)
    failed = run_child(words, engine.environment, LIMIT, on_line)
    if failed:
        print(f"    failed: {failed}", flush=True)
    return found


def table(figures: Mapping[str, Figures]) -> str:
    """Medians of all rounds as a Markdown table."""
    lines = ["| shape | work | ours | vLLM | ratio | ours, Q4_0 | llama.cpp | ratio |"]
    lines.append("| --- | --- " + "| ---: " * 6 + "|")
    for shape, works in figures.items():
        for work, by_engine in works.items():
            cells = [shape, work]
            for pair in PAIRS:
                ours, peer = (statistics.median(by_engine.get(name) or [0.0]) for name in pair)
                ratio = ours / peer if ours and peer else 0.0
                ratio = 1 / ratio if ratio and work.endswith("ms") else ratio
                cells += [f"{value:.4g}" if value else "-" for value in (ours, peer)]
                cells.append(f"{ratio:.2f}" if ratio else "-")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=NAMES)
    parser.add_argument("--engines", nargs="+", default=["ours", "vllm", "llamacpp"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--num-layers", type=int, help="instead of the shapes' own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    parser.add_argument("--add", action="store_true", help="keep the figures of --output")
    args = parser.parse_args()

    peers = default_peers()
    chosen = [
        engine
        for engine in engines(peers, num_compute_threads())
        if engine.id.startswith(tuple(args.engines))
    ]
    args.output.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Figures] = {}
    if args.add:
        figures = json.loads((args.output / "families.json").read_text())["figures"]
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(1, args.rounds + 1):
            for shape in args.shapes:
                for engine in chosen:
                    if engine.id in (Q4_1, LLAMACPP):
                        file = peers.folder / "shapes" / f"{shape}-q4_0.gguf"
                        if not file.exists():
                            continue
                        model = str(file)
                    else:
                        config = dict(SHAPES[shape])
                        if args.num_layers:
                            config["num_hidden_layers"] = args.num_layers
                        model = str(_write_config(Path(folder) / shape, config))
                    print(f"round {turn}, {shape}: {engine.id}", flush=True)
                    for work, figure in measure(engine, model, steps(args.batches)).items():
                        print(f"    {work}: {figure:.4g}", flush=True)
                        by_work = figures.setdefault(shape, {}).setdefault(work, {})
                        by_work.setdefault(engine.id, []).append(figure)
                    _write(args.output, figures)
    print(table(figures))
    return 0


def _write_config(folder: Path, config: Mapping[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))
    return folder


def _write(folder: Path, figures: Mapping[str, Figures]) -> None:
    found = {"machine": describe_machine(), "figures": figures}
    (folder / "families.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "families.md").write_text(table(figures) + "\n")


if __name__ == "__main__":
    sys.exit(main())
