"""Decode steps of an engine of the 1.1B shape by every form of stored weights, beside bfloat16's.

    python benchmarks/format_steps.py
    python benchmarks/format_steps.py --layers 2 --only int4,fp8 --output-json some.json

A form is a name of --quantization or a checkpoint's quantization_config; weights are made up. Of
GGUF's types there are those to which a plain checkpoint is rounded: format_cost.py times the
products of the others, and of all. bfloat16's engine and a form's take turns; a step's time is the
median of the rounds. One sequence's floor is the time to read the weights of all products and the
cache at the speed that the same run measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))

from family_floors import SHORT, Engine
from kernels.case import SHAPES
from kernels.limits import measure_limits, typical
from peers.machine import describe_machine
from torch import nn

from tests.models.demo_checkpoints import AQLM, AWQ, CASES, GPTQ, TERNARY, Settings, codes, hqq
from tests.models.runner import load
from tests.models.test_fp_quant import FORMS as FP_QUANT
from vllm_lite.config.quantized.in_flight import BLOCKS, CODES
from vllm_lite.platform import num_compute_threads
from vllm_lite.quantization.storage import stored_weights

# Whole blocks of it are computed once.
CONTEXT = 17
# Decode steps of a measurement, by sequences.
STEPS = {1: 16, 64: 4}
_G128 = {"group_size": 128}
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", **_G128}
_TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
_BNB = {"quant_method": "bitsandbytes"}
CHECKPOINTS: dict[str, Settings] = {
    "AWQ g128": AWQ | _G128,
    **{f"GPTQ int{bits} g128": GPTQ | _G128 | {"bits": bits} for bits in (2, 3, 4, 8)},
    "W4A16 g128": codes.compressed(_INT4),
    "W4A8 g128": codes.compressed(_INT4, _TOKENS, format="pack-quantized"),
    "QQQ g128": {"quant_method": "qqq", "bits": 4, **_G128},
    "HQQ int4 g64": hqq(4, 64),
    "W8A8": CASES["W8A8 int"][0],
    "LLM.int8": _BNB | {"load_in_8bit": True},
    "nf4 g64": _BNB | {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp4 g64": _BNB | {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "W8A8 fp8": CASES["W8A8 float"][0],
    "fp8 128x128": CASES["fp8 blocks"][0],
    "MXFP8": CASES["MXFP8"][0],
    "MXFP6": CASES["MXFP6"][0],
    "MXFP6 e3m2": CASES["quark fp6_e3m2"][0],
    "MXFP4A16": CASES["MXFP4A16"][0],
    "MXFP4": CASES["MXFP4"][0],
    "NVFP4A16": CASES["NVFP4A16"][0],
    "NVFP4": CASES["NVFP4"][0],
    "FP-Quant NVFP4": FP_QUANT["fp_quant nvfp4"],
    "FP-Quant MXFP4": FP_QUANT["fp_quant mxfp4"] | {"hadamard_group_size": 128},
    "AQLM 1x16": AQLM["1x16"],
    "AQLM 2x8": AQLM["2x8"],
    "bitnet": TERNARY["divided"][0],
}


def forms() -> dict[str, dict[str, Any]]:
    """Options of an engine, by names of forms; bfloat16 first."""
    named: dict[Any, str] = {}
    for name, form in {**CODES, **BLOCKS}.items():
        named.setdefault(form, name)
    return (
        {"bf16": {}}
        | {name: {"quantization": name} for name in named.values()}
        | {
            name: {"hf_overrides": {"quantization_config": settings}}
            for name, settings in CHECKPOINTS.items()
        }
    )


def shape(num_layers: int) -> dict[str, Any]:
    """The 1.1B shape's configuration."""
    sizes = SHAPES["1.1b"]
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "vocab_size": sizes.vocab_size,
    }


def stored(folder: Path, num_layers: int, options: Mapping[str, Any]) -> tuple[str, int]:
    """The format of the layers' weights, and the bytes that products of a step read."""
    overrides = {**options.get("hf_overrides", {}), "num_hidden_layers": 1}
    given = {**options, "load_format": "dummy", "hf_overrides": overrides}
    model = load(folder, dtype="bfloat16", **given)
    assert isinstance(model, nn.Module)
    of_layer = stored_weights(model.model)
    one = sum(weight.num_bytes for weight in of_layer)
    whole = sum(weight.num_bytes for weight in stored_weights(model))
    return of_layer[0].format, whole + (num_layers - 1) * one


def measure(engines: Mapping[str, Engine], rounds: int) -> dict[tuple[str, int], float]:
    """Seconds of a step, by engines and sequences."""
    taken = defaultdict(list)
    for engine in engines.values():
        engine.seconds(max(STEPS), SHORT)
    for _ in range(rounds):
        for sequences, steps in STEPS.items():
            for name, engine in engines.items():
                few = engine.seconds(sequences, SHORT)
                more = engine.seconds(sequences, SHORT + steps)
                taken[name, sequences].append((more - few) / steps)
    return {key: statistics.median(times) for key, times in taken.items()}


def record(name: str, kind: str, num_bytes: int, step: Mapping[tuple[str, int], float]) -> Any:
    """A form's results, without the floor."""
    one, many = (step[name, sequences] for sequences in STEPS)
    return {
        "form": name,
        "stored_as": kind,
        "megabytes": round(num_bytes / 1e6, 1),
        "one_sequence_ms": round(one * 1e3, 3),
        "one_sequence_of_bf16": round(step["bf16", 1] / one, 3),
        "sequences_64_ms": round(many * 1e3, 3),
        "sequences_64_of_bf16": round(step["bf16", 64] / many, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", metavar="NAME,...", help="beside bf16")
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    if min(args.layers, args.rounds) < 1:
        parser.error("--layers and --rounds begin at 1")
    every = forms()
    wanted = [name for name in args.only.split(",") if name] or list(every)
    if unknown := [name for name in wanted if name not in every]:
        parser.error(f"--only {unknown[0]!r} is none of {', '.join(every)}")
    config, threads = shape(args.layers), num_compute_threads()
    heads = config["num_key_value_heads"] * SHAPES["1.1b"].head_size
    cache_bytes = 2 * 2 * args.layers * heads * (CONTEXT + STEPS[1] // 2)
    found, results = [measure_limits(threads)], []
    with tempfile.TemporaryDirectory() as folder:
        plain = Engine(Path(folder) / "bf16", config, CONTEXT, max(STEPS))
        for name in dict.fromkeys(["bf16", *wanted]):
            kind, num_bytes = stored(Path(folder) / "bf16", args.layers, every[name])
            engines = {"bf16": plain}
            if name != "bf16":
                path = Path(folder) / str(len(results))
                engines[name] = Engine(path, config, CONTEXT, max(STEPS), **every[name])
            results.append(record(name, kind, num_bytes, measure(engines, args.rounds)))
            sys.stderr.write(f"{results[-1]}\n")
            if name != "bf16":
                engines[name].stop()
            found.append(measure_limits(threads))
        plain.stop()
    limits = typical(found)
    if limits is None:
        raise SystemExit("no C++ compiler, so that no limits can be measured")
    columns = ("form", "stored as", "MB", "one sequence, ms", "of floor", "x bf16", "64, ms")
    print(f"reads {limits.read_gb_s:.1f} GB/s, {args.layers} layers\n")
    print(f"| {' | '.join((*columns, 'x bf16'))} |\n|{' --- |' * 8}")
    for each in results:
        floor_ms = (each["megabytes"] + cache_bytes / 1e6) / limits.read_gb_s
        each["of_floor"] = round(floor_ms / each["one_sequence_ms"], 3)
        cells = [each["form"], each["stored_as"], f"{each['megabytes']:.0f}"]
        cells += [f"{each['one_sequence_ms']:.2f}", f"{each['of_floor']:.0%}"]
        cells += [f"{each['one_sequence_of_bf16']:.2f}", f"{each['sequences_64_ms']:.1f}"]
        print(f"| {' | '.join([*cells, format(each['sequences_64_of_bf16'], '.2f')])} |")
    if args.output_json:
        told = {"machine": describe_machine(), "layers": args.layers, "rounds": args.rounds}
        told |= {"context": CONTEXT, "limits": asdict(limits), "forms": results}
        args.output_json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
