"""Compiles every Triton kernel ahead of time, as the engine would launch it; no GPU is needed.

    python benchmarks/gpu/kernel_resources.py            prints registers, stack and shared memory
    python benchmarks/gpu/kernel_resources.py --write    and records them
    python benchmarks/gpu/kernel_resources.py --write --missing    those that are not there yet
    python benchmarks/gpu/kernel_resources.py --check    fails if a kernel needs more than that
    python benchmarks/gpu/kernel_resources.py --check --share 8   and compiles an eighth of them

Each launch is compiled for sm_80, sm_89 and sm_90. A byte of stack is a spilled register. Blocks
and warps are those that a processor holds at once, by arithmetic. A share
is a sample of pairs of a kernel and a target, the same ones every time. Each version of Triton has
a record of its own, and none but these can be checked.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from kernel_launches import Launch, caught_launches, launch_everything
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

VERSION = ".".join(triton.__version__.split(".")[:2])
RECORD = Path(__file__).with_name(f"kernel_resources_{VERSION}.json")
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
TARGETS = (80, 89, 90)
OPTIONS = {"num_warps", "num_stages", "enable_fp_fusion", "maxnreg"}
# Most shared memory that a program of each target gets.
SHARED = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}
# Registers of a processor, which has four parts.
REGISTERS, PARTS = 64 * 1024, 4
# Beginnings of names of kernels that spill in some form, as many bytes as recorded. On devices the
# tiles of prompts' attention and 80 registers of row products with a norm were fastest so; the
# others are unmeasured.
MAY_SPILL = (
    "encoder_attention_kernel",
    "fixed_linear_kernel",
    "latent_attention_kernel",
    "paged_attention_kernel",
    "row_products_kernel",
    "token_logprobs_kernel",
)
GROWTH = 1.1
KINDS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "int8": "i8",
    "uint8": "u8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
}


@dataclass(frozen=True, slots=True)
class Processor:
    """Blocks and warps that it holds at once."""

    warps: int
    blocks: int
    shared: int  # bytes


PROCESSORS = {
    80: Processor(64, 32, 164 * 1024),
    89: Processor(48, 24, 100 * 1024),
    90: Processor(64, 32, 228 * 1024),
}


def blocks_a_processor(figures: dict[str, int], num_warps: int, target: int) -> int:
    """Thread blocks of a kernel that a processor of `target` holds at once."""
    processor = PROCESSORS[target]
    # A thread gets registers by eight, a part of a processor only whole warps.
    of_warp = -(-max(figures["registers"], 1) // 8) * 8 * 32
    by_registers = REGISTERS // PARTS // of_warp * PARTS // num_warps
    # 1 KiB of each block is the system's; a block gets shared memory by 128 bytes.
    by_shared = processor.shared // (-(-(figures["shared"] + 1024) // 128) * 128)
    return min(processor.blocks, processor.warps // num_warps, by_registers, by_shared)


def source_of(launch: Launch) -> ASTSource:
    """The kernel with its arguments' types, specialised as at a launch."""
    kernel, args, kwargs = launch
    values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    signature: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, name in enumerate(kernel.arg_names):
        value, parameter = values[name], kernel.params[place]
        if parameter.do_not_specialize:
            signature[name] = type_of(value, (place,), {})
        elif parameter.is_constexpr or (isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
        else:
            signature[name] = type_of(value, (place,), attributes)
    return ASTSource(kernel, signature, constexprs=constants, attrs=attributes)


def type_of(value: Any, place: tuple[int, ...], attributes: dict[tuple[int, ...], Any]) -> Any:
    """Triton's name of an argument's type, a tuple's as such a tuple; enters what is aligned."""
    if isinstance(value, tuple):
        types = (type_of(part, (*place, i), attributes) for i, part in enumerate(value))
        return type(value)(*types)
    if isinstance(value, TensorDescriptor):
        return (
            f"tensordesc<{KINDS[str(value.base.dtype).removeprefix('torch.')]}{value.block_shape}>"
        )
    is_tensor = isinstance(value, torch.Tensor)
    if is_tensor or (isinstance(value, int) and value % 16 == 0):
        attributes[place] = [["tt.divisibility", 16]]
    if is_tensor:
        return "*" + KINDS[str(value.dtype).removeprefix("torch.")]
    return "fp32" if isinstance(value, float) else "i32"


def describe(launch: Launch) -> str:
    """The kernel's name and the constants it is compiled for, but those that follow the target."""
    kernel, _, kwargs = launch
    names = (k for k in kernel.arg_names if k in kwargs and k != "IS_CHAINED")
    sizes = [f"{k.lower()}={kwargs[k]}" for k in names]
    return f"{kernel.fn.__name__}({', '.join(sizes)})"


def resources(launch: Launch, target: int) -> dict[str, int]:
    """Registers of a thread, bytes of its stack, bytes of shared memory of a program."""
    options = {k: v for k, v in launch[2].items() if k in OPTIONS}
    compiled = triton.compile(
        source_of(launch), target=GPUTarget("cuda", target, 32), options=options
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [TOOLS / "cuobjdump", "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", text.stdout + text.stderr)
    if found is None:
        raise SystemExit(f"cuobjdump says nothing of registers:\n{text.stdout}{text.stderr}")
    return {
        "registers": int(found[1]),
        "stack": int(found[2]),
        "shared": int(compiled.metadata.shared),
    }


def measure(share: int, known: dict[str, Any]) -> Iterator[tuple[str, int, int, dict[str, int]]]:
    """(kernel, target, warps, resources) of one in `share` pairs of a kernel and a target.

    Kernels that are `known` are left out.
    """
    for target in TARGETS:
        with caught_launches(target) as launches:
            launch_everything()
        for name, launch in {describe(launch): launch for launch in launches}.items():
            if name not in known and zlib.crc32(f"{name} {target}".encode()) % share == 0:
                yield name, target, launch[2].get("num_warps", 4), resources(launch, target)


def recorded_versions() -> list[str]:
    """Versions of Triton that have a record, such as 3.6."""
    names = RECORD.parent.glob("kernel_resources_*.json")
    return sorted(path.stem.rpartition("_")[2] for path in names)


def known_kernels() -> dict[str, Any]:
    """The record of this version of Triton, empty where it has none."""
    return json.loads(RECORD.read_text())["kernels"] if RECORD.exists() else {}


def complaints(found: dict[str, dict[str, dict[str, int]]]) -> list[str]:
    """List kernels that need more than recorded, or more than a GPU has."""
    recorded = known_kernels()
    result = []
    for name, targets in found.items():
        for target, now in targets.items():
            before = recorded.get(name, {}).get(target)
            most_stack = before["stack"] if before and name.startswith(MAY_SPILL) else 0
            if before is None:
                result.append(f"{name} for {target} is not recorded; run with --write")
            elif now["stack"] > most_stack:
                result.append(f"{name} for {target} spills {now['stack']} bytes")
            elif now["registers"] > GROWTH * before["registers"]:
                result.append(
                    f"{name} for {target} takes {now['registers']} registers, "
                    f"{before['registers']} before"
                )
            if now["shared"] > SHARED[int(target.removeprefix("sm_"))]:
                result.append(f"{name} for {target} takes {now['shared']} bytes of shared memory")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--share", type=int, default=1, help="compile one in so many")
    parser.add_argument("--missing", action="store_true", help="only what is not recorded")
    args = parser.parse_args()
    if args.check and not args.write and VERSION not in recorded_versions():
        sys.exit(
            f"Triton {VERSION} has no record to check: install {' or '.join(recorded_versions())}, "
            "or record this one with --write"
        )
    found: dict[str, dict[str, dict[str, int]]] = {}
    known = known_kernels() if args.missing else {}
    for name, target, num_warps, figures in measure(args.share, known):
        found.setdefault(name, {})[f"sm_{target}"] = figures
        blocks = blocks_a_processor(figures, num_warps, target)
        held = f"{blocks:3} blocks {blocks * num_warps:3} warps"
        print(
            f"sm_{target}  {figures['registers']:4} registers {figures['stack']:4} B stack "
            f"{figures['shared']:7,} B shared {held}  {name}",
            flush=True,
        )
    if args.write:
        kernels = dict(sorted((known | found).items()))
        rows = [f"  {json.dumps(name)}: {json.dumps(kernels[name])}" for name in kernels]
        text = ",\n".join(rows)
        RECORD.write_text(
            f'{{\n "triton": "{triton.__version__}",\n "kernels": {{\n{text}\n }}\n}}\n'
        )
    problems = complaints(found) if args.check else []
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
