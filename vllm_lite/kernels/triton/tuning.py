"""Which tile a product is cut into: looked up in `tuned/products.json`, never searched.

Of a kind's entries those of the newest target that is not newer than the device count, and of
these the one with the fewest rows that hold the product's, else the one with the most.
`benchmarks/tune.py` adds entries; each says whether it was measured or only fits the registers
and shared memory that ahead-of-time compilation finds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from vllm_lite.kernels.triton import device as devices

PRODUCTS = Path(__file__).with_name("tuned") / "products.json"


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


def product_tile(kind: str, num_rows: int, device: torch.device) -> ProductTile:
    """The tile for `num_rows` rows of a product of `kind`."""
    return _choose(kind, num_rows, devices.target(device))


def num_splits(num_tiles: int, num_inputs: int, block_k: int, num_processors: int) -> int:
    """Into how many parts sums are cut so that every processor has a tile: 1 is not cut.

    A part keeps at least four steps of block_k inputs, so that loads still overlap.
    """
    if 2 * num_tiles > num_processors:
        return 1
    return max(1, min(num_processors // num_tiles, num_inputs // (4 * block_k), 16))


@cache
def _choose(kind: str, num_rows: int, target: int) -> ProductTile:
    entries = [entry for entry in load() if entry["kind"] == kind and entry["target"] <= target]
    newest = max(entry["target"] for entry in entries)
    entries = sorted((e for e in entries if e["target"] == newest), key=lambda e: e["rows"])
    entry = next((e for e in entries if e["rows"] >= num_rows), entries[-1])
    return ProductTile(**entry["tile"])


@cache
def load() -> list[dict[str, Any]]:
    """The table's entries."""
    entries: list[dict[str, Any]] = json.loads(PRODUCTS.read_text())["entries"]
    return entries
