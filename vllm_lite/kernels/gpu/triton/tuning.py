"""How work is cut into tiles: looked up in the tables of `tuned/`, never searched while serving.

An entry is for a kind of work, a size and a target. Of a kind's entries those of the newest target
that is not newer than the device count, and of these the smallest that holds the work's size, else
the largest. An entry's origin says whether it was measured, or only fits the registers and shared
memory that ahead-of-time compilation finds; `benchmarks/tune.py` makes both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from vllm_lite.kernels.gpu.triton import device as devices

TABLES = Path(__file__).with_name("tuned")

# Whether the way work is cut may not depend on how much there is.
_is_fixed = False


@dataclass(frozen=True, slots=True)
class ProductTile:
    """Rows, outputs and inputs that a program multiplies at a time, and what runs it."""

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
    """Rows (queries times heads of a group) and keys of a tile, and what runs it."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def fix_cuts(fixed: bool) -> None:
    """From now on cut attention alike whatever the batch, if `fixed`, or as suits the device."""
    global _is_fixed
    _is_fixed = fixed


def is_fixed() -> bool:
    """Whether attention is cut alike whatever the batch."""
    return _is_fixed


def num_processors(device: torch.device) -> int:
    """How many programs attention shall give a device; 0 where it may not look at the batch."""
    return 0 if _is_fixed else devices.num_processors(device)


def product_tile(kind: str, num_rows: int, device: torch.device) -> ProductTile:
    """The tile for `num_rows` rows of a product of `kind`."""
    return ProductTile(**entry("products", kind, num_rows, devices.target(device))["tile"])


def attention_tile(kind: str, head_size: int, device: torch.device) -> AttentionTile:
    """The tile for heads of `head_size` in "decode" or "prefill".

    A kind that ends in " wide" is of float32, in " narrow" of a cache of 8-bit numbers.
    """
    found = entry("attention", kind, head_size, devices.target(device))
    return AttentionTile(**found["tile"])


def num_splits(num_tiles: int, num_inputs: int, block_k: int, num_processors: int) -> int:
    """Into how many parts sums are cut so that every processor has a tile: 1 is not cut.

    A part keeps at least four steps of block_k inputs, so that loads still overlap.
    """
    if 2 * num_tiles > num_processors:
        return 1
    return max(1, min(num_processors // num_tiles, num_inputs // (4 * block_k), 16))


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
