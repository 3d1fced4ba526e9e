"""Operations on rows between linear layers: norm, rotary, activation, cache write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from kernels.case import Case, Shape
from vllm_lite.kernels.dispatch import ops

ROWS = (1, 64, 1024)
BLOCK = 16
NUM_POSITIONS = 2048
Make = Callable[[], Sequence[Callable[[], object]]]


def cases(shape: Shape) -> Iterator[Case]:
    for dtype in (torch.bfloat16, torch.float32):
        for rows in ROWS:
            number = str(dtype).removeprefix("torch.")
            for name, make, elements in (
                ("add and norm", *_norm(shape, rows, dtype)),
                ("rotary", *_rotary(shape, rows, dtype)),
                ("silu and multiply", *_silu(shape, rows, dtype)),
                ("cache write", *_cache(shape, rows, dtype)),
            ):
                # Little arithmetic and all of it in float32: moving the data is the floor.
                moved = elements * dtype.itemsize
                yield Case(name, f"{rows} rows {number}", make, moved, 0.0, "float32")


def _norm(shape: Shape, rows: int, dtype: torch.dtype) -> tuple[Make, int]:
    def make() -> Sequence[Callable[[], object]]:
        x, residual = torch.randn(2, rows, shape.hidden_size).to(dtype)
        weight = torch.ones(shape.hidden_size, dtype=dtype)
        norm = ops().fused_add_rms_norm
        return [lambda: norm(x, residual, weight, 1e-5)]

    return make, 4 * rows * shape.hidden_size


def _rotary(shape: Shape, rows: int, dtype: torch.dtype) -> tuple[Make, int]:
    def make() -> Sequence[Callable[[], object]]:
        heads = shape.num_heads + shape.num_kv_heads
        both = torch.randn(rows, heads, shape.head_size).to(dtype)
        query, key = both.split([shape.num_heads, shape.num_kv_heads], dim=1)
        positions = torch.randint(NUM_POSITIONS, (rows,))
        angles = torch.randn(NUM_POSITIONS, shape.head_size)
        rotate = ops().rotary_embedding
        return [lambda: rotate(positions, query, key, angles)]

    return make, 2 * rows * (shape.num_heads + shape.num_kv_heads) * shape.head_size


def _silu(shape: Shape, rows: int, dtype: torch.dtype) -> tuple[Make, int]:
    def make() -> Sequence[Callable[[], object]]:
        x = torch.randn(rows, 2 * shape.intermediate_size).to(dtype)
        act_and_mul = ops().act_and_mul
        return [lambda: act_and_mul(x, "silu")]

    return make, 3 * rows * shape.intermediate_size


def _cache(shape: Shape, rows: int, dtype: torch.dtype) -> tuple[Make, int]:
    def make() -> Sequence[Callable[[], object]]:
        key, value = torch.randn(2, rows, shape.num_kv_heads, shape.head_size).to(dtype)
        num_blocks = 4 * -(-rows // BLOCK)
        cache_shape = (num_blocks, shape.num_kv_heads, BLOCK, shape.head_size)
        key_cache, value_cache = torch.zeros(2, *cache_shape, dtype=dtype)
        slots = torch.randperm(num_blocks * BLOCK)[:rows]
        write = ops().reshape_and_cache
        return [lambda: write(key, value, key_cache, value_cache, slots)]

    return make, 4 * rows * shape.num_kv_heads * shape.head_size
