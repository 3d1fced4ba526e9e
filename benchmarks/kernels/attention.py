"""Paged attention: one new token of many requests, and prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from kernels.case import Case, Shape, copies
from vllm_lite.kernels.cpu.mapped_memory import map_zeros
from vllm_lite.kernels.dispatch import ops

BLOCK = 16
# (requests, tokens of context that each has)
DECODES = ((1, 256), (1, 2048), (1, 8192), (8, 512), (8, 8192), (32, 1024), (64, 192), (64, 512))
# New tokens of one request, after so many that are cached.
PREFILLS = ((128, 0), (1024, 0), (512, 1536))


def cases(shape: Shape) -> Iterator[Case]:
    for dtype in (torch.bfloat16, torch.float32):
        for num_requests, context in DECODES:
            yield _case("attention, decode", shape, dtype, num_requests, 1, context)
        for num_tokens, cached in PREFILLS:
            yield _case("attention, prefill", shape, dtype, 1, num_tokens, cached + num_tokens)


def _in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random numbers in memory like an engine's cache."""
    numbers = torch.randn(shape).to(dtype)
    return map_zeros(numbers.nbytes).view(dtype).view(shape).copy_(numbers)


def _case(
    name: str, shape: Shape, dtype: torch.dtype, num_requests: int, num_new: int, context: int
) -> Case:
    """`num_requests` requests of `num_new` queries at the end of `context` positions."""
    per_request = -(-context // BLOCK)
    entry = shape.num_kv_heads * shape.head_size * dtype.itemsize
    cache_bytes = 2 * num_requests * context * entry
    query_size = shape.num_heads * shape.head_size

    def make() -> Sequence[Callable[[], object]]:
        num_blocks = num_requests * per_request
        query = torch.randn(num_requests * num_new, shape.num_heads, shape.head_size).to(dtype)
        # As after a while of serving: a request's blocks lie anywhere.
        table = torch.randperm(num_blocks).to(torch.int32).view(num_requests, per_request)
        starts = torch.arange(num_requests + 1, dtype=torch.int32) * num_new
        lengths = torch.full((num_requests,), context, dtype=torch.int32)
        # As in an engine's, each head's values follow its keys.
        cache_shape = (num_blocks, shape.num_kv_heads, 2 * BLOCK, shape.head_size)
        caches = [
            _in_huge_pages(cache_shape, dtype).chunk(2, 2)
            for _ in range(min(copies(cache_bytes), 256))
        ]
        scale = shape.head_size**-0.5
        attend = ops().paged_attention

        def call(key: torch.Tensor, value: torch.Tensor) -> Callable[[], object]:
            return lambda: attend(query, key, value, table, starts, lengths, scale)

        return [call(key, value) for key, value in caches]

    # Of a prompt's positions, each sees those before it.
    seen = num_requests * num_new * (context - (num_new - 1) / 2)
    number = "bfloat16" if dtype is torch.bfloat16 else "float32"
    moved = cache_bytes + 2 * num_requests * num_new * query_size * dtype.itemsize
    size = f"{num_requests} x {num_new} of {context} {number}"
    operations = 4.0 * seen * query_size
    return Case(name, size, make, moved, operations, number, is_scattered=num_new == 1)
