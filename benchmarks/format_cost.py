"""Times the products of a decoder's step for every form of stored weights, beside bfloat16's.

    python benchmarks/format_cost.py
    python benchmarks/format_cost.py --only NVFP4,MXFP4 --rounds 5 --layers 1
    python benchmarks/format_cost.py --only "int4 g128" --few-rows 2,4,6,8    as drafts need

A step is the four products of each layer, with activations rounded where the format says so, and
the head's: no attention, no norms (format_steps.py times an engine's). The forms take turns, so
that they share whatever else the machine does and no weight is still in a cache; times are medians
over the rounds. The floor of one row is the time to read the bytes that are stored, at the speed
that the same run measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from kernels.arguments import count, output_file
from kernels.case import SHAPES
from kernels.limits import Limits, measure_limits, typical
from kernels.linear import layer_sizes
from peers.machine import describe_machine
from torch import Tensor

from vllm_lite.config.checkpoints.checkpoint import LOADABLE_GGML_TYPES
from vllm_lite.config.checkpoints.gguf_header import GGML_TYPES
from vllm_lite.kernels import dispatch
from vllm_lite.kernels.codebook_weight import CodebookWeight
from vllm_lite.kernels.grouped_weight import make_grouped
from vllm_lite.kernels.reference.quantized import QuantizedRows
from vllm_lite.kernels.reference.rounding import ActivationRounding
from vllm_lite.platform import num_compute_threads
from vllm_lite.quantization.grouped import GroupedKernel, grouped_kernel, is_fast_in_groups
from vllm_lite.quantization.layouts.numbers import values_of
from vllm_lite.quantization.quantized import quantized_kernel
from vllm_lite.quantization.unquantized import plain_kernel

ROWS = (1, 64)
GROUPS, FLOATS, TABLES, BOOKS = "integers in groups", "block floats", "code tables", "codebooks"
GGUF = "GGUF"
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
# [M, N] -> a kernel by weights of their own.
Make = Callable[[int, int], Any]


@dataclass(frozen=True, slots=True)
class Form:
    """A form of weights, and the bits that a checkpoint has of each."""

    name: str
    storage: str
    file_bits: float
    make: Make


def integers(
    bits: int,
    group: int,
    zeros: torch.dtype | None = None,
    order: bool = False,
    rounding: ActivationRounding | None = None,
    scales: torch.dtype = torch.float16,
) -> Make:
    """Codes with scales, and zeros unless they are all the middle; `group` 0 is all inputs."""

    def make(num_outputs: int, num_inputs: int) -> Any:
        shape = (num_outputs, num_inputs // (group or num_inputs))
        middles = torch.randint(0, 2**bits, shape, dtype=torch.uint8)
        is_whole = zeros is torch.uint8
        weight = make_grouped(
            torch.randint(0, 2**bits, (num_outputs, num_inputs), dtype=torch.uint8),
            (torch.rand(shape) * 0.01 + 0.001).to(scales),
            bits,
            0 if zeros else 2 ** (bits - 1),
            zeros=middles if is_whole else None,
            minimums=middles * 0.01 if zeros and not is_whole else None,
            permutation=torch.randperm(num_inputs) if order else None,
        )
        is_exact = is_fast_in_groups(torch.bfloat16)
        return grouped_kernel(weight, None, None, rounding, is_exact)

    return make


def floats(
    number: str, bits: int, group: int, scales: torch.dtype, rounding: ActivationRounding | None
) -> Make:
    """Codes of a table with scales of some type; float8 ones have one of the whole besides."""

    def make(num_outputs: int, num_inputs: int) -> Any:
        count = num_inputs // (group or num_inputs)
        values = torch.rand(num_outputs, count) * 0.01 + 0.001
        codes = torch.randint(0, 2**bits, (num_outputs, num_inputs), dtype=torch.uint8)
        if bits == 8:
            codes &= 0xBF  # no NaN
        weight = make_grouped(
            codes,
            values.to(scales) if scales is not E4M3 else (values * 1000).to(E4M3),
            bits,
            super_scales=torch.full((num_outputs, 1), 0.001) if scales is E4M3 else None,
            table=values_of(number),
        )
        return grouped_kernel(weight, None, None, rounding)

    return make


def books(num_books: int, num_outputs: int, num_inputs: int) -> Any:
    """Vectors of 8 inputs: of one book of 65,536, or the sum of those of two of 256."""
    shape = (num_books, num_inputs // 8, num_outputs)
    high = torch.randint(256, (1, *shape[1:]), dtype=torch.uint8)
    weight = CodebookWeight(
        codes=torch.randint(256, shape, dtype=torch.uint8),
        high_codes=high if num_books == 1 else None,
        signs=None,
        odds=None,
        scales=torch.rand(1, num_outputs).half(),
        books=torch.randn(num_books, 2 ** (16 // num_books), 8).bfloat16(),
        group_size=num_inputs,
        num_outputs=num_outputs,
        num_inputs=num_inputs,
    )
    kernels = dispatch.ops()
    return GroupedKernel(kernels.pack_grouped(weight), None, None, kernels)


def gguf(ggml_type: int, num_outputs: int, num_inputs: int) -> Any:
    kind = GGML_TYPES[ggml_type]
    shape = (num_outputs, num_inputs // kind.block_size * kind.block_bytes)
    # Neither huge nor subnormal as a scale, be it half floats or, of MXFP4, a power of two.
    least = 64 if kind.name == "MXFP4" else 0
    blocks = torch.randint(least, least + 60, shape, dtype=torch.uint8)
    return quantized_kernel([QuantizedRows(blocks, ggml_type, num_inputs)], None, None)


def plain(num_outputs: int, num_inputs: int) -> Any:
    return plain_kernel(torch.randn(num_outputs, num_inputs, dtype=torch.bfloat16), None, None)


def forms() -> list[Form]:
    """bfloat16 first."""
    of_tokens = ActivationRounding(torch.int8)
    of_fp8 = ActivationRounding(E4M3)
    of_blocks = ActivationRounding(E4M3, 128)
    # Scales of groups times those of channels.
    qqq = partial(integers, 4, rounding=of_tokens, scales=torch.float32)
    found = [
        Form("bf16", "plain", 16, plain),
        Form("int4 g128", GROUPS, 4 + 16 / 128, integers(4, 128)),
        Form("int4 g32 zeros", GROUPS, 4 + 20 / 32, integers(4, 32, zeros=torch.uint8)),
        Form("int4 g128 act-order", GROUPS, 4 + 16 / 128, integers(4, 128, order=True)),
        Form("int6 g128", GROUPS, 6 + 16 / 128, integers(6, 128)),
        Form("int5 g128", GROUPS, 5 + 16 / 128, integers(5, 128)),
        Form("int3 g128", GROUPS, 3 + 16 / 128, integers(3, 128)),
        Form("int2 g64", GROUPS, 2 + 16 / 64, integers(2, 64)),
        Form("int8 channel", GROUPS, 8, integers(8, 0)),
        Form("HQQ int4 g64", GROUPS, 4 + 32 / 64, integers(4, 64, zeros=torch.float32)),
        Form("LLM.int8", GROUPS, 8, integers(8, 0, scales=torch.float32)),
        Form("W8A8", GROUPS, 8, integers(8, 0, rounding=of_tokens)),
        Form("W4A8 g128", GROUPS, 4 + 16 / 128, integers(4, 128, rounding=of_tokens)),
        Form("QQQ g128", GROUPS, 4 + 16 / 128, qqq(128)),
        Form("QQQ channel", GROUPS, 4, qqq(0)),
        Form("fp8 channel", FLOATS, 8, floats("float8_e4m3fn", 8, 0, torch.float32, of_fp8)),
        Form("fp8 128x128", FLOATS, 8, floats("float8_e4m3fn", 8, 128, torch.float32, of_blocks)),
        Form("NVFP4", FLOATS, 4.5, floats("float4_e2m1", 4, 16, E4M3, None)),
        Form("MXFP8", FLOATS, 8.25, floats("float8_e4m3fn", 8, 32, E8M0, None)),
        Form("MXFP6", FLOATS, 6.25, floats("float6_e2m3", 6, 32, E8M0, None)),
        Form("MXFP6 e3m2", FLOATS, 6.25, floats("float6_e3m2", 6, 32, E8M0, None)),
        Form("MXFP4", FLOATS, 4.25, floats("float4_e2m1", 4, 32, E8M0, None)),
        Form("nf4 g64", TABLES, 4.5, floats("nf4", 4, 64, torch.float32, None)),
        Form("fp4 g64", TABLES, 4.5, floats("fp4", 4, 64, torch.float32, None)),
        Form("AQLM 1x16", BOOKS, 2, partial(books, 1)),
        Form("AQLM 2x8", BOOKS, 2, partial(books, 2)),
    ]
    for number, kind in GGML_TYPES.items():
        if kind.name in LOADABLE_GGML_TYPES and kind.block_size > 1:
            # Two names are those of floats above.
            name = f"GGUF {kind.name}" if "FP4" in kind.name else kind.name
            bits = kind.block_bytes * 8 / kind.block_size
            found.append(Form(name, GGUF, bits, partial(gguf, number)))
    return found


class Step:
    """All products of a step by weights of one form."""

    def __init__(self, form: Form, num_layers: int) -> None:
        self.form = form
        sizes = list(layer_sizes(SHAPES["1.1b"]).values())
        in_order = [*sizes[:-1] * num_layers, sizes[-1]]
        self._products = [(inputs, form.make(outputs, inputs)) for inputs, outputs in in_order]
        self.num_values = sum(inputs * outputs for inputs, outputs in in_order)
        stored = [weight for _, kernel in self._products for weight in kernel.stored]
        self.stored = stored[0].format
        self.num_bytes = sum(weight.num_bytes for weight in stored)
        self.taken: dict[int, list[float]] = {}

    def run(self, x: dict[int, Tensor], rows: int) -> None:
        """Time a step of so many rows of x, by their number of inputs."""
        begin = time.perf_counter()
        for inputs, kernel in self._products:
            kernel(x[inputs])
        self.taken.setdefault(rows, []).append(time.perf_counter() - begin)

    def seconds(self, rows: int) -> float:
        return statistics.median(self.taken[rows])


def record(step: Step, plain: Step, limits: Limits | None) -> dict[str, Any]:
    """A form's results; `of_floor` is the share of the read limit at one row."""
    one, many = (step.seconds(rows) for rows in ROWS)
    gb_s = step.num_bytes / one * 1e-9
    return {
        "form": step.form.name,
        "storage": step.form.storage,
        "stored_as": step.stored,
        "megabytes": round(step.num_bytes / 1e6, 1),
        "of_file": round(step.num_bytes * 8 / step.num_values / step.form.file_bits, 3),
        "one_row_ms": round(one * 1e3, 3),
        "of_floor": limits and round(gb_s / limits.read_gb_s, 3),
        "one_row_of_bf16": round(plain.seconds(1) / one, 3),
        "rows_64_ms": round(many * 1e3, 3),
        "rows_64_of_bf16": round(plain.seconds(64) / many, 3),
        # Seconds of so many rows, by those of one.
        "few_rows": {n: round(step.seconds(n) / one, 3) for n in step.taken if n not in ROWS},
    }


def table(results: list[dict[str, Any]]) -> str:
    """Markdown."""
    head = ["form", "stored as", "bytes of file", "one row, ms", "of floor", "x bf16"]
    few = [f"{rows} rows of one" for rows in results[0]["few_rows"]]
    lines = [[*head, "64 rows, ms", "x bf16", *few], ["---"] * (8 + len(few))]
    for each in results:
        share = "-" if each["of_floor"] is None else f"{each['of_floor']:.0%}"
        numbers = [f"{each['of_file']:.2f}", f"{each['one_row_ms']:.2f}", share]
        numbers += [f"{each['one_row_of_bf16']:.2f}", f"{each['rows_64_ms']:.1f}"]
        numbers += [f"{each['rows_64_of_bf16']:.2f}"]
        numbers += [f"{ratio:.2f}" for ratio in each["few_rows"].values()]
        lines.append([each["form"], each["stored_as"], *numbers])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="NAME,...", help="beside bf16")
    parser.add_argument("--layers", type=count, default=2, help="of 22; the head is whole")
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--few-rows", default="", metavar="N,...", help="time these numbers too")
    parser.add_argument("--output-json", type=output_file)
    args = parser.parse_args()
    try:
        few = [int(number) for number in args.few_rows.split(",") if number]
    except ValueError:
        few = [0]
    if min(few, default=1) < 1:
        raise SystemExit(f"--few-rows takes numbers of rows from 1 on, not {args.few_rows!r}")
    num_threads = num_compute_threads()
    torch.manual_seed(0)
    torch.set_num_threads(num_threads)
    dispatch.select_ops("cpu")
    dispatch.set_num_threads(num_threads)
    wanted, every = [name for name in args.only.split(",") if name], forms()
    known = [form.name for form in every]
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"--only {unknown[0]!r} is none of {', '.join(known)}")
    steps = []
    for form in every:
        if form.name == "bf16" or not wanted or form.name in wanted:
            steps.append(Step(form, args.layers))
            sys.stderr.write(f"{form.name}: {steps[-1].num_bytes / 1e6:.0f} MB\n")
    shape = SHAPES["1.1b"]
    sizes = (shape.hidden_size, shape.intermediate_size)
    counts = [*ROWS, *few]
    x = {rows: {n: torch.randn(rows, n, dtype=torch.bfloat16) for n in sizes} for rows in counts}
    found = [measure_limits(num_threads)]
    for _ in range(args.rounds):
        for rows in counts:
            for step in steps:
                step.run(x[rows], rows)
    found.append(measure_limits(num_threads))
    limits = typical(found)
    results = [record(step, steps[0], limits) for step in steps]
    reads = "unknown" if limits is None else f"{limits.read_gb_s:.1f} GB/s"
    print(f"kernels: {dispatch.describe()}; reads {reads}\n\n{table(results)}")
    if args.output_json:
        content = {
            "machine": describe_machine(),
            "kernels": dispatch.describe(),
            "layers": args.layers,
            "rounds": args.rounds,
            "limits": limits and asdict(limits),
            "forms": results,
        }
        args.output_json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
