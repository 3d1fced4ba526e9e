"""Finds the tile for a kind of work on a GPU, and writes it into the tables of tuned.

    python benchmarks/tune.py int8 --rows 64 --outputs 4096 --inputs 4096           measures
    python benchmarks/tune.py int8 --rows 64 --outputs 4096 --inputs 4096 --write   and records it
    python benchmarks/tune.py prefill --head-size 128 --rows 2048 --context 8192 --block-size 64
    python benchmarks/tune.py fp8 --rows 16 --target 90 --dry-run    compiles, without a GPU

Candidates that ahead-of-time compilation finds to need too much shared memory, or to spill
(attention's fastest tiles may), are left out. The others are timed with a cold cache by their
median. Without a GPU candidates are printed with what they take, and nothing is written: what fits
may still be slow.
Prompts' tiles are tried by descriptors too, from sm_90 on, where one fits a block of the cache.
An entry holds for sizes up to its own: give the rows (or head size) that it shall stand for, and
the outputs and inputs of the model that matters most.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton

sys.path.insert(0, str(Path(__file__).parent / "gpu"))
from kernel_launches import caught_launches
from kernel_resources import SHARED, resources

from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton import ops
from vllm_lite.kernels.gpu.triton.products.grouped_linear import MANY_ROWS
from vllm_lite.kernels.gpu.triton.products.small_products import MOST_ROWS
from vllm_lite.kernels.gpu.tuning import AttentionTile, ProductTile
from vllm_lite.kernels.grouped_gguf import from_gguf
from vllm_lite.kernels.reference.experts import ExpertStack
from vllm_lite.kernels.reference.scaled_linear import SCALE_BLOCK

Work = Callable[[], object]
Tile = ProductTile | AttentionTile
# Of a kind with codes of so many bits, a GGUF type and the bytes of 256 of its values.
GROUPED = {"int4_groups": (2, 144), "int5_groups": (13, 176)}
GROUPED |= {"int6_groups": (14, 210), "int8_groups": (8, 272)}
SCALED = ("int8", "fp8", "int8_blocks", "fp8_blocks")
ATTENTION = ("decode", "prefill")


def make_work(args: argparse.Namespace, device: str) -> Work:
    """One call of the kind's operation, on `device` ("meta": tensors without storage)."""
    if args.kind in SCALED:
        return scaled_work(args, device)
    if args.kind in GROUPED:
        return grouped_work(args, device)
    if args.kind == "experts":
        return experts_work(args, device)
    return attention_work(args, device)


def scaled_work(args: argparse.Namespace, device: str) -> Work:
    """A linear layer by quantised weights."""
    dtype = torch.int8 if args.kind.startswith("int8") else torch.float8_e4m3fn
    shapes = [(args.rows, args.inputs), (args.outputs, args.inputs)]
    x, weight = (torch.zeros(shape, dtype=dtype, device=device) for shape in shapes)
    is_blocks = args.kind.endswith("blocks")
    groups = args.inputs // SCALE_BLOCK if is_blocks else 1
    shared = -(-args.outputs // SCALE_BLOCK) if is_blocks else args.outputs
    x_scales = torch.ones(args.rows, groups, device=device)
    scales = torch.ones(shared, groups, device=device)
    return lambda: ops.scaled_linear(x, x_scales, weight, scales, None, torch.bfloat16)


def grouped_work(args: argparse.Namespace, device: str) -> Work:
    """A linear layer by a grouped integer weight."""
    ggml_type, size = GROUPED[args.kind]
    raw = torch.zeros(args.outputs * args.inputs // 256 * size, dtype=torch.uint8, device=device)
    weight = from_gguf(raw, ggml_type, args.outputs)
    x = torch.zeros(args.rows, args.inputs, dtype=torch.bfloat16, device=device)
    return lambda: ops.grouped_linear(x, weight)


def experts_work(args: argparse.Namespace, device: str) -> Work:
    """A mixture of 64 experts, each with `rows` pairs and as many hidden numbers as outputs / 2."""
    experts, top_k = 64, 8
    tokens = args.rows * experts // top_k
    x = torch.zeros(tokens, args.inputs, dtype=torch.bfloat16, device=device)
    ids = torch.arange(tokens * top_k, device=device, dtype=torch.int32).view(-1, top_k) % experts
    weights = torch.ones(tokens, top_k, device=device)
    up = x.new_zeros(experts, args.outputs, args.inputs)
    down = x.new_zeros(experts, args.inputs, args.outputs // 2)
    return lambda: ops.experts_mlp(x, ids, weights, ExpertStack(up), ExpertStack(down))


def attention_work(args: argparse.Namespace, device: str) -> Work:
    """Attention of `rows` requests by one query, or of one by `rows`, over a context."""
    heads, kv_heads, block_size = 32, 8, args.block_size
    requests = args.rows if args.kind == "decode" else 1
    blocks = args.context // block_size
    shape = (requests * blocks, kv_heads, block_size, args.head_size)
    cache = torch.zeros(shape, dtype=torch.bfloat16, device=device)
    query = cache.new_zeros(args.rows, heads, args.head_size)
    table = torch.arange(requests * blocks, device=device, dtype=torch.int32).view(requests, -1)
    starts = torch.arange(requests + 1, device=device, dtype=torch.int32) * (args.rows // requests)
    lens = torch.full((requests,), args.context, device=device, dtype=torch.int32)
    return lambda: ops.paged_attention(query, cache, cache, table, starts, lens, 0.1)


def candidates(args: argparse.Namespace) -> Iterator[Tile]:
    """Tiles worth a look: 8 to 128 sums a thread, and no more rows than the work has."""
    if args.kind in ATTENTION:
        rows = (16,) if args.kind == "decode" else (32, 64, 128)
        has_descriptors = args.kind == "prefill" and (args.target or 80) >= 90
        for tile in product(rows, (32, 64, 128), (4, 8), (2, 3, 4)):
            yield AttentionTile(*tile)
            if has_descriptors and args.block_size % tile[1] == 0:
                yield AttentionTile(*tile, descriptor_stages=tile[-1])
        return
    most_rows = max(16, triton.next_power_of_2(args.rows))
    inputs = (64,) if args.kind in GROUPED else (64, 128, 256)
    for tile in product((16, 32, 64, 128), (32, 64, 128, 256), inputs, (4, 8), (2, 3, 4)):
        if tile[0] <= most_rows and 8 <= tile[0] * tile[1] // (32 * tile[3]) <= 128:
            yield ProductTile(*tile)


@contextmanager
def tiled(tile: Tile) -> Iterator[None]:
    """Use `tile` for all work in the `with` block."""
    real = tuning.entry
    tuning.entry = lambda *_: {"tile": asdict(tile)}
    try:
        yield
    finally:
        tuning.entry = real


def needs(work: Work, tile: Tile, target: int) -> dict[str, int] | None:
    """Resources that the tile's kernel needs on a target; None if it cannot be compiled."""
    with tiled(tile), caught_launches(target) as launches:
        work()
    names = {"scaled_linear_kernel", "grouped_linear_kernel", "experts_linear_kernel"}
    names |= {"paged_attention_kernel"}
    launch = next(launch for launch in launches if launch[0].fn.__name__ in names)
    try:
        return resources(launch, target)
    except triton.compiler.errors.CompilationError:
        return None


def entry_of(args: argparse.Namespace, tile: Tile, target: int, origin: str) -> dict[str, Any]:
    """An entry of a table."""
    size = args.head_size if args.kind in ATTENTION else args.rows
    tile_numbers = asdict(tile)
    return {
        "kind": args.kind,
        "target": target,
        "size": size,
        "tile": tile_numbers,
        "origin": origin,
    }


def write(path: Path, entry: dict[str, Any]) -> None:
    """Put an entry into a table, in the place of one for the same work; one line each, sorted."""

    def place(one: dict[str, Any]) -> tuple[str, int, int]:
        return one["kind"], one["target"], one["size"]

    entries = {place(one): one for one in json.loads(path.read_text())} | {place(entry): entry}
    lines = ",\n".join(" " + json.dumps(entries[key]) for key in sorted(entries))
    path.write_text(f"[\n{lines}\n]\n")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=(*SCALED, *GROUPED, "experts", *ATTENTION))
    parser.add_argument("--rows", type=int, default=16, help="tokens; of experts: a single one's")
    parser.add_argument("--outputs", type=int, default=4096)
    parser.add_argument("--inputs", type=int, default=4096)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--context", type=int, default=4096, help="keys of a request")
    parser.add_argument("--block-size", type=int, default=16, help="keys of a block of the cache")
    parser.add_argument("--target", type=int, choices=sorted(SHARED), help="default: the GPU's")
    parser.add_argument("--most", type=int, default=10**6, help="try no more candidates than this")
    parser.add_argument("--dry-run", action="store_true", help="compile only")
    parser.add_argument("--write", action="store_true", help="record the fastest")
    return parser.parse_args(arguments)


def main() -> None:
    args = parse()
    is_dry = args.dry_run or not torch.cuda.is_available()
    if args.kind in GROUPED and args.rows >= MANY_ROWS:
        raise SystemExit(f"from {MANY_ROWS} rows on the whole weight is expanded: give fewer")
    if args.kind in GROUPED and args.rows <= MOST_ROWS:
        raise SystemExit(f"up to {MOST_ROWS} rows are multiplied without tiles: give more")
    if is_dry and args.write:
        raise SystemExit("--write needs a GPU: only what was measured is written")
    args.target = args.target or 80
    if not is_dry:
        major, minor = torch.cuda.get_device_capability()
        args.target = 10 * major + minor
    target = args.target
    shape_only = make_work(args, "meta")
    work = shape_only if is_dry else make_work(args, "cuda")
    best: tuple[float, Tile] | None = None
    for number, tile in enumerate(candidates(args)):
        if number == args.most:
            break
        found = needs(shape_only, tile, target)
        limit = SHARED.get(target, SHARED[90])
        if found is None or found["shared"] > limit:
            continue
        if found["stack"] and args.kind not in ATTENTION:
            continue
        line = f"{found['registers']:4} registers {found['shared']:7,} B shared"
        if not is_dry:
            with tiled(tile):
                time = float(triton.testing.do_bench(work, return_mode="median"))
            line = f"{1000 * time:8.1f} us  {line}"
            best = min(best or (time, tile), (time, tile), key=lambda pair: pair[0])
        print(f"sm_{target} {line}  {tile}", flush=True)
    if best is None:
        print("nothing was measured" + ("" if is_dry else ": no candidate fits"))
        return
    time, tile = best
    name, date = torch.cuda.get_device_name(), datetime.now(UTC).date()
    entry = entry_of(args, tile, target, f"measured on {name}, {date}: {1000 * time:.1f} us")
    print(json.dumps(entry))
    if args.write:
        table = "attention" if args.kind in ATTENTION else "products"
        write(tuning.TABLES / f"{table}.json", entry)


if __name__ == "__main__":
    main()
