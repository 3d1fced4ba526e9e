"""Compiles every Triton kernel ahead of time, as the engine would launch it; no GPU is needed.

    python benchmarks/gpu/kernel_resources.py            prints registers, stack and shared memory
    python benchmarks/gpu/kernel_resources.py --write    and records them in kernel_resources.json
    python benchmarks/gpu/kernel_resources.py --check    fails where a kernel needs more than that

The operations are called on tensors without storage; each launch is caught and compiled for
sm_80, sm_89 and sm_90 instead. A byte of stack is a spilled register.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from vllm_lite.kernels.triton import attention, ops

RECORD = Path(__file__).with_name("kernel_resources.json")
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
TARGETS = (80, 89, 90)
# name, query heads, kv-heads, head size, hidden size, intermediate size
MODELS = (
    ("SmolLM2-135M", 9, 3, 64, 576, 1536),
    ("Llama-3.2-1B", 32, 8, 64, 2048, 8192),
    ("Qwen3-0.6B", 16, 8, 128, 1024, 3072),
    ("Llama-3.1-8B", 32, 8, 128, 4096, 14336),
    ("Gemma-2-2B", 8, 4, 256, 2304, 9216),
)
OPTIONS = {"num_warps", "num_stages"}
# The compiler gives up a register or two for one more block on a processor.
HARMLESS_STACK = 16
GROWTH = 1.1


class Launches:
    """Catches what is launched instead of running it."""

    def __init__(self) -> None:
        self.caught: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __enter__(self) -> Launches:
        self._run = JITFunction.run

        def catch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            self.caught.append((kernel, args, kwargs))

        JITFunction.run = catch
        return self

    def __exit__(self, *_: object) -> None:
        JITFunction.run = self._run


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launch_everything(model: tuple[str, int, int, int, int, int]) -> None:
    """Each operation once in the shapes of `model`; attention in each of its modes."""
    _, heads, kv_heads, size, hidden, intermediate = model
    block_size, blocks, rows = 16, 64, 8
    cache = tensor(1000, kv_heads, block_size, size)
    x, weight = tensor(rows, hidden), tensor(hidden)
    ops.rms_norm(x, weight, 1e-5)
    ops.fused_add_rms_norm(x, tensor(rows, hidden), weight, 1e-5)
    ops.silu_and_mul(tensor(rows, 2 * intermediate))
    index = tensor(rows, dtype=torch.int64)
    bits = tensor(rows, 4096, dtype=torch.int32)
    ops.apply_token_mask(tensor(rows, 131072, dtype=torch.float32), index, bits)
    query, key = tensor(rows, heads, size), tensor(rows, kv_heads, size)
    ops.rotary_embedding(index, query, key, tensor(4096, size, dtype=torch.float32))
    ops.reshape_and_cache(key, key, cache, cache, index)
    for processors, num_requests in ((1, rows), (132, rows), (1, 2)):
        attention._num_processors = lambda _device, count=processors: count
        table = tensor(num_requests, blocks, dtype=torch.int32)
        starts = tensor(num_requests + 1, dtype=torch.int32)
        lens = tensor(num_requests, dtype=torch.int32)
        ops.paged_attention(query, cache, cache, table, starts, lens, 0.1)


def source_of(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ASTSource:
    """The kernel with its arguments' types, specialised as at a launch."""
    values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for place, name in enumerate(kernel.arg_names):
        value = values[name]
        if kernel.params[place].is_constexpr or (isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor:
            kind = {"bfloat16": "bf16", "float32": "fp32", "int32": "i32", "int64": "i64"}
            signature[name] = "*" + kind[str(value.dtype).removeprefix("torch.")]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        if is_tensor or (isinstance(value, int) and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constexprs=constants, attrs=attributes)


def describe(kernel: Any, kwargs: dict[str, Any]) -> str:
    sizes = [f"{k.lower()}={kwargs[k]}" for k in kernel.arg_names if k in kwargs]
    return f"{kernel.fn.__name__}({', '.join(sizes)})"


def resources(source: ASTSource, options: dict[str, Any], capability: int) -> dict[str, int]:
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
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


def measure() -> Iterator[tuple[str, str, dict[str, int]]]:
    """(kernel, target, resources) of every kernel and target."""
    with Launches() as launches:
        for model in MODELS:
            launch_everything(model)
    seen: set[str] = set()
    for kernel, args, kwargs in launches.caught:
        name = describe(kernel, kwargs)
        if name in seen:
            continue
        seen.add(name)
        options = {k: v for k, v in kwargs.items() if k in OPTIONS}
        source = source_of(kernel, args, {k: v for k, v in kwargs.items() if k not in OPTIONS})
        for capability in TARGETS:
            yield name, f"sm_{capability}", resources(source, options, capability)


def complaints(found: dict[str, dict[str, dict[str, int]]]) -> list[str]:
    """What is worse than recorded."""
    recorded = json.loads(RECORD.read_text())
    if recorded["triton"] != triton.__version__:
        return []  # another compiler, other figures
    result = []
    for name, targets in found.items():
        for target, now in targets.items():
            before = recorded["kernels"].get(name, {}).get(target)
            if before is None:
                result.append(f"{name} for {target} is not recorded; run with --write")
            elif now["stack"] > max(HARMLESS_STACK, before["stack"]):
                result.append(f"{name} for {target} spills {now['stack']} bytes")
            elif now["registers"] > GROWTH * before["registers"]:
                result.append(
                    f"{name} for {target} takes {now['registers']} registers, "
                    f"{before['registers']} before"
                )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    found: dict[str, dict[str, dict[str, int]]] = {}
    for name, target, figures in measure():
        found.setdefault(name, {})[target] = figures
        print(
            f"{target}  {figures['registers']:4} registers {figures['stack']:4} B stack "
            f"{figures['shared']:7,} B shared  {name}",
            flush=True,
        )
    if args.write:
        record = {"triton": triton.__version__, "kernels": found}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    problems = complaints(found) if args.check else []
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
