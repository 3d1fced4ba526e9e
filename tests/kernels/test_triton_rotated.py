"""The write of normalised and rotated heads to a cache equals its separate operations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from vllm_lite.kernels.gpu.triton import ops
from vllm_lite.kernels.reference.ops import GpuOps as reference

NUM_TOKENS, BLOCK_SIZE = 5, 16
# The second token is padding: its queries are rotated, its keys are not written.
SLOTS = torch.tensor([17, -1, 3, 63, 16])
POSITIONS = torch.tensor([3, 0, 49, 7, 7])


def separately(
    implementation: Any,
    heads: Tensor,
    table: Tensor,
    is_neox: bool,
    caches: Tensor,
    weights: tuple[Tensor, Tensor] | None,
) -> None:
    count = caches.shape[2]
    query, key, value = heads.split_with_sizes([heads.shape[1] - 2 * count, count, count], 1)
    if weights is not None:
        for rows, weight in zip((query, key), weights, strict=True):
            implementation.rms_norm(rows, weight, 1e-6, out=rows)
    implementation.rotary_embedding(POSITIONS, query, key, table, is_neox)
    implementation.reshape_and_cache(key, value, *caches, SLOTS)


def together(
    implementation: Any,
    heads: Tensor,
    table: Tensor,
    is_neox: bool,
    caches: Tensor,
    weights: tuple[Tensor, Tensor] | None,
) -> None:
    implementation.rotate_and_cache(heads, POSITIONS, table, is_neox, *caches, SLOTS, weights, 1e-6)


SHAPES = [
    ((9, 3), 64, 64),
    ((4, 4), 80, 32),
    ((7, 1), 96, 96),
    ((2, 1), 25, 6),
    ((1, 1), 7, 2),
    ((8, 2), 256, 128),
]
CHOICES = (
    [torch.float32, torch.float16, torch.bfloat16],
    SHAPES,
    [True, False],
    [None, "own type", "float32"],
)


def cases() -> Iterator[Any]:
    """All combinations; of a shape, an order and a weight, the fast tests have one type."""
    for choice in product(*map(enumerate, CHOICES)):
        places, (dtype, shape, is_neox, weighted) = zip(*choice, strict=True)
        marks = [pytest.mark.slow] if sum(places) % 3 else []
        yield pytest.param(dtype, *shape, is_neox, weighted, marks=marks)


@pytest.mark.parametrize("implementation", [ops, reference], ids=["triton", "reference"])
@pytest.mark.parametrize(("dtype", "counts", "size", "rotated", "is_neox", "weighted"), cases())
def test_one_operation_equals_its_parts(
    dtype: torch.dtype,
    counts: tuple[int, int],
    size: int,
    rotated: int,
    is_neox: bool,
    weighted: str | None,
    implementation: Any,
) -> None:
    width = (counts[0] + 2 * counts[1]) * size
    projected = torch.randn(NUM_TOKENS, width + 24).mul(3).to(dtype)
    table = torch.randn(50, rotated)
    weights = None
    if weighted is not None:
        kind = dtype if weighted == "own type" else torch.float32
        weights = torch.randn(size).to(kind), torch.randn(size).to(kind)
    results = []
    for write in (separately, together):
        rows = projected.clone()
        heads = rows[:, :width].view(NUM_TOKENS, -1, size)  # the rest of a row is a gate
        caches = torch.full((2, 4, counts[1], BLOCK_SIZE, size), 5.0).to(dtype)
        write(implementation, heads, table, is_neox, caches, weights)
        assert torch.equal(rows[:, width:], projected[:, width:])
        results.append((heads[:, : counts[0]], caches))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
    written = (results[1][1] != 5.0).any(-1).any(2).any(0)
    assert written.flatten().nonzero().flatten().tolist() == sorted(SLOTS[SLOTS >= 0].tolist())
