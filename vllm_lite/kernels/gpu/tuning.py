"""Tile sizes, looked up in the tables of `tuned/`; nothing is tuned while serving.

An entry is for a kind of work, a size and a target. Of a kind's entries, those of the newest
target up to the device's count, and of these the smallest that holds the work's size, else
the largest. An entry's origin says whether it was measured, or only fits the registers and
shared memory according to ahead-of-time compilation; `benchmarks/tune.py` makes both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

TABLES = Path(__file__).with_name("tuned")
# Whether splits must not depend on the batch.
_is_fixed = False
OLDEST_TARGET = 80
# Of a processor, where products read weights.
_WARPS = 16


@dataclass(frozen=True, slots=True)
class ProductTile:
    """Rows, outputs and inputs of a program's tile, and its launch options."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int

    def launch(self) -> dict[str, int]:
        """The tile as a launch's arguments."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Rows (queries times heads of a group) and keys of a tile, and its launch options.

    Where a tile lies within a block of the cache, keys and values may be read by descriptors (TMA,
    from compute capability 9.0 on), with other stages; 0 if by pointers there too.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    descriptor_stages: int = 0


@cache
def processor_count(device: torch.device) -> int:
    """Number of a device's multiprocessors; 1 without an NVIDIA GPU, for the interpreter."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def target(device: torch.device) -> int:
    """The compute capability as one number, such as 90; the oldest one without an NVIDIA GPU."""
    if device.type != "cuda":
        return OLDEST_TARGET
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def has_float8(device: torch.device) -> bool:
    """Whether matrix instructions take 8-bit floats."""
    return target(device) >= 89


def fix_cuts(fixed: bool) -> None:
    """Set whether attention is split alike for every batch."""
    global _is_fixed
    _is_fixed = fixed


def is_fixed() -> bool:
    """Whether attention is split alike for every batch."""
    return _is_fixed


def num_processors(device: torch.device) -> int:
    """Number of programs for attention to fill; 0 if splits must not depend on the batch."""
    return 0 if _is_fixed else processor_count(device)


def product_tile(kind: str, num_rows: int, device: torch.device) -> ProductTile:
    """The tile for `num_rows` rows of a GEMM of `kind`."""
    return ProductTile(**entry("products", kind, num_rows, target(device))["tile"])


def attention_tile(kind: str, head_size: int, device: torch.device) -> AttentionTile:
    """The tile for heads of `head_size`, for "decode" or "prefill".

    Kinds ending in " wide" are for float32, in " narrow" for an 8-bit cache.
    """
    found = entry("attention", kind, head_size, target(device))
    return AttentionTile(**found["tile"])


def num_splits(
    num_tiles: int, num_warps: int, num_rows: int, num_inputs: int, block_k: int, processors: int
) -> int:
    """Number of parts to split sums of `num_inputs` products into, for tiles of a few rows.

    Each processor gets programs of warps enough to hide what they wait for. A part keeps at least
    four steps of block_k inputs, so that loads still overlap, and all parts' sums are less to
    write and read than 8-bit weights.
    """
    wanted = processors * max(1, _WARPS // num_warps) // num_tiles
    return max(1, min(wanted, num_inputs // (4 * block_k), num_inputs // (16 * num_rows), 16))


@cache
def entry(table: str, kind: str, size: int, target: int) -> dict[str, Any]:
    """The entry of a table for work of a kind and size on a device of `target`."""
    entries = [e for e in load(table) if e["kind"] == kind and e["target"] <= target]
    newest = max(e["target"] for e in entries)
    entries = sorted((e for e in entries if e["target"] == newest), key=lambda e: int(e["size"]))
    return next((e for e in entries if e["size"] >= size), entries[-1])


@cache
def load(table: str) -> list[dict[str, Any]]:
    """All entries of a table."""
    entries: list[dict[str, Any]] = json.loads((TABLES / f"{table}.json").read_text())
    return entries
