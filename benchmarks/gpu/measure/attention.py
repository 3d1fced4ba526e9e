"""Sections `decode_attention` and `prefill_attention`: kernels against what the device can do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from measure.cuda_module import cuda_operations
from measure.place import Place, say
from measure.report import Row
from measure.timing import Work, graphed, medians

DECODE_GOAL, PREFILL_GOAL = 0.85, 0.60
# The shape of Llama-3.1-8B's: query heads, kv-heads, head size.
HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE = 32, 8, 128, 16
# (sequences, tokens of context of each); no more than 2 Mi tokens in all.
DECODE_POINTS = (
    *((1, 1 << 10), (1, 8 << 10), (1, 32 << 10), (1, 128 << 10), (8, 8 << 10), (16, 128 << 10)),
    *((64, 1 << 10), (64, 16 << 10), (256, 1 << 10), (256, 8 << 10)),
)
MOST_CALLS = 20
PREFILL_LENGTHS = (8 << 10, 16 << 10, 32 << 10)


@dataclass(frozen=True, slots=True)
class PagedCache:
    """Keys and values of random numbers for so many tokens."""

    keys: Tensor  # [blocks, kv-heads, block size, head size]
    values: Tensor

    @classmethod
    def of_tokens(cls, place: Place, num_tokens: int) -> PagedCache:
        shape = (-(-num_tokens // BLOCK_SIZE), KV_HEADS, BLOCK_SIZE, HEAD_SIZE)
        dtype = place.either(torch.bfloat16, torch.float16)  # the interpreter multiplies no bf16
        return cls(*(torch.randn(shape, dtype=dtype, device=place.device) for _ in range(2)))

    def arguments(self, count: int, context: int, num_queries: int) -> list[Any]:
        """Of paged_attention for `count` sequences, whose blocks lie anywhere."""
        device = self.keys.device
        blocks = -(-context // BLOCK_SIZE)
        ids = torch.randperm(len(self.keys), device=device)[: count * blocks]
        lengths = torch.full((count,), context, dtype=torch.int32, device=device)
        starts = torch.arange(count + 1, dtype=torch.int32, device=device) * num_queries
        query = torch.randn(
            count * num_queries, HEADS, HEAD_SIZE, dtype=self.keys.dtype, device=device
        )
        table = ids.int().view(count, blocks)
        return [query, self.keys, self.values, table, starts, lengths, HEAD_SIZE**-0.5]


def backends(place: Place) -> dict[str, Any]:
    """The operations that attend, by the name of --attention-backend."""
    from vllm_lite.kernels.gpu.triton import ops

    found = {"TRITON_ATTN": ops}
    compiled = cuda_operations(place)
    if compiled is not None:
        found["CUDA"] = compiled
    return found


def decode_attention(place: Place) -> None:
    """One query of each sequence over its context."""
    points = place.either(DECODE_POINTS, ((1, 33), (2, 16)))
    cache = PagedCache.of_tokens(place, max(count * context for count, context in points))
    attend = backends(place)
    for count, context in points:
        # Several calls a graph, each over blocks of its own: one is no longer than its launch.
        calls = max(1, min(MOST_CALLS, len(cache.keys) * BLOCK_SIZE // (count * context)))
        several = [cache.arguments(count, context, 1) for _ in range(place.either(calls, 1))]
        arguments = several[0]

        def attend_to_all(operations: Any, several: list[Any] = several) -> None:
            for one in several:
                operations.paged_attention(*one)

        replays: dict[str, Work] = {
            name: graphed(place, partial(attend_to_all, operations))
            for name, operations in attend.items()
        }
        num_bytes = count * context * KV_HEADS * HEAD_SIZE * 2 * cache.keys.itemsize
        num_bytes = len(several) * (num_bytes + 2 * arguments[0].nbytes + arguments[3].nbytes)
        for name, seconds in medians(place, replays, max_seconds=1.0).items():
            speed = num_bytes / seconds
            row = Row(
                "decode_attention",
                f"decode attention, {name}, bs {count}, context {context}",
                speed / 1e12,
                "TB/s",
                speed / place.known_limits().bytes_per_s,
                goal=DECODE_GOAL,
                details={"seconds": seconds, "bytes": num_bytes, "calls": len(several)},
            )
            place.tell(row)


def prefill_attention(place: Place) -> None:
    """A whole prompt, causal; torch's own attention over dense keys takes turns with it."""
    for length in place.either(PREFILL_LENGTHS, (20,)):
        cache = PagedCache.of_tokens(place, length)
        arguments = cache.arguments(1, length, length)
        query = arguments[0].transpose(0, 1)[None]
        keys, values = torch.randn(2, *query.shape, dtype=query.dtype, device=place.device)
        operations = backends(place)["TRITON_ATTN"]
        works: dict[str, Work] = {
            "ours": lambda o=operations, a=arguments: o.paged_attention(*a),
            # It gets the keys of every query head, dense.
            "torch": lambda q=query, k=keys, v=values: scaled_dot_product_attention(
                q, k, v, is_causal=True
            ),
        }
        times = medians(place, works, repeats=10, max_seconds=3.0)
        num_operations = 2 * HEADS * HEAD_SIZE * length * (length + 1)
        speeds = {name: num_operations / seconds for name, seconds in times.items()}
        say(f"torch's dense attention over {length}: {speeds['torch'] / 1e12:.0f} TFLOP/s")
        row = Row(
            "prefill_attention",
            f"prefill attention, {length} tokens",
            speeds["ours"] / 1e12,
            "TFLOP/s",
            speeds["ours"] / place.known_limits().flops_per_s,
            goal=PREFILL_GOAL,
            note=f"torch over dense keys: {speeds['torch'] / 1e12:.0f} TFLOP/s",
            details={"seconds": times},
        )
        place.tell(row)
