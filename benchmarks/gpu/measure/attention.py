"""Sections `decode_attention` and `prefill_attention`: kernels against what the device can do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from measure.cuda_module import cuda_operations
from measure.place import Place
from measure.report import Row
from measure.timing import MOST_CALLS, Work, can_run, graphed, medians

DECODE_GOAL, PREFILL_GOAL = 0.85, 0.60
# The shape of Llama-3.1-8B's: query heads, kv-heads, head size.
HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE = 32, 8, 128, 16
# (sequences, tokens of context of each); no more than 2 Mi tokens in all.
DECODE_POINTS = (
    *((1, 1 << 10), (1, 8 << 10), (1, 32 << 10), (1, 128 << 10), (8, 8 << 10), (16, 128 << 10)),
    *((64, 1 << 10), (64, 16 << 10), (256, 1 << 10), (256, 8 << 10)),
)
PREFILL_LENGTHS = (8 << 10, 16 << 10, 32 << 10)
# A tile of keys, so that descriptors can read it.
WIDE_BLOCK = 64
# Decoding sequences, tokens of context of each, and tokens of a prompt beside them.
MIXED_POINTS = ((64, 2 << 10, 512), (8, 8 << 10, 512), (1, 32 << 10, 256))
TORCH_BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


@dataclass(frozen=True, slots=True)
class PagedCache:
    """Keys and values of random numbers for so many tokens."""

    keys: Tensor  # [blocks, kv-heads, block size, head size]
    values: Tensor

    @classmethod
    def of_tokens(cls, place: Place, num_tokens: int, block_size: int = BLOCK_SIZE) -> PagedCache:
        shape = (-(-num_tokens // block_size), KV_HEADS, block_size, HEAD_SIZE)
        dtype = place.either(torch.bfloat16, torch.float16)  # the interpreter multiplies no bf16
        return cls(*(torch.randn(shape, dtype=dtype, device=place.device) for _ in range(2)))

    def arguments(self, count: int, context: int, num_queries: int) -> list[Any]:
        """Of paged_attention for `count` sequences, whose blocks lie anywhere."""
        device = self.keys.device
        blocks = -(-context // self.keys.shape[2])
        ids = torch.randperm(len(self.keys), device=device)[: count * blocks]
        lengths = torch.full((count,), context, dtype=torch.int32, device=device)
        starts = torch.arange(count + 1, dtype=torch.int32, device=device) * num_queries
        query = torch.randn(
            count * num_queries, HEADS, HEAD_SIZE, dtype=self.keys.dtype, device=device
        )
        table = ids.int().view(count, blocks)
        return [query, self.keys, self.values, table, starts, lengths, HEAD_SIZE**-0.5]

    def mixed_arguments(self, count: int, context: int, prompt: int) -> list[Any]:
        """As `arguments` of one query, with a whole prompt of so many tokens in front."""
        query, *caches, table, starts, lengths, scale = self.arguments(count + 1, context, 1)
        query = torch.cat([query.new_ones(prompt, *query.shape[1:]), query[1:]])
        starts[1:] += prompt - 1
        lengths[0] = prompt
        return [query, *caches, table, starts, lengths, scale]


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
        calls = max(1, min(MOST_CALLS, len(cache.keys) * cache.keys.shape[2] // (count * context)))
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
        times = medians(place, replays, max_seconds=1.0)
        speeds = {name: num_bytes / seconds for name, seconds in times.items()}
        first, *others = speeds
        row = Row(
            "decode_attention",
            f"decode attention, {first}, {'one sequence' if count == 1 else 'several'}",
            speeds[first] / 1e12,
            "TB/s",
            speeds[first] / place.known_limits().bytes_per_s,
            goal=DECODE_GOAL,
            details={"seconds": times, "bytes": num_bytes, "calls": len(several)},
            column=f"{count} x {context}",
            beside={name: speeds[name] / 1e12 for name in others},
        )
        place.tell(row)


def prefill_attention(place: Place) -> None:
    """A whole prompt, causal; torch's own over dense keys, by each backend, takes turns with it."""
    for length in place.either(PREFILL_LENGTHS, (20,)):
        arguments, wide = (
            PagedCache.of_tokens(place, length, size).arguments(1, length, length)
            for size in (BLOCK_SIZE, WIDE_BLOCK)
        )
        query = arguments[0].transpose(0, 1)[None]
        keys, values = torch.randn(2, *query.shape, dtype=query.dtype, device=place.device)
        operations = backends(place)["TRITON_ATTN"]
        torchs = torch_works(query, keys, values)
        works: dict[str, Work] = {
            "ours": lambda o=operations, a=arguments: o.paged_attention(*a),
            "blocks": lambda o=operations, a=wide: o.paged_attention(*a),
            "by pointers": partial(_by_pointers, operations, wide),
            **torchs,
        }
        replays = {name: graphed(place, work) for name, work in works.items()}
        times = medians(place, replays, repeats=10, max_seconds=3.0)
        num_operations = 2 * HEADS * HEAD_SIZE * length * (length + 1)
        speeds = {name: num_operations / seconds for name, seconds in times.items()}
        rows = {
            "ours": ("", list(torchs)),
            "blocks": (f" of blocks of {WIDE_BLOCK}", ["by pointers"]),
        }
        for name, (of, others) in rows.items():
            row = Row(
                "prefill_attention",
                f"prefill attention{of}, tokens",
                speeds[name] / 1e12,
                "TFLOP/s",
                speeds[name] / place.known_limits().flops_per_s,
                goal=PREFILL_GOAL,
                details={"seconds": times},
                column=str(length),
                beside={other: speeds[other] / 1e12 for other in others},
            )
            place.tell(row)

    for point in place.either(MIXED_POINTS, ((2, 32, 19),)):
        mixed_attention(place, *point)


def _by_pointers(operations: Any, arguments: list[Any]) -> Tensor:
    from kernel_launches import attention_tiles

    with attention_tiles(descriptor_stages=0):
        return operations.paged_attention(*arguments)


def mixed_attention(place: Place, count: int, context: int, prompt: int) -> None:
    """Decoding sequences beside a prompt: tiles of their own against the prompt's for all."""
    from vllm_lite.kernels.gpu import tuning

    cache = PagedCache.of_tokens(place, (count + 1) * context)
    arguments = cache.mixed_arguments(count, context, prompt)
    operations = backends(place)["TRITON_ATTN"]

    def by_prompts_tiles() -> None:
        tuning.fix_cuts(True)
        try:
            operations.paged_attention(*arguments)
        finally:
            tuning.fix_cuts(False)

    works: dict[str, Work] = {
        "ours": graphed(place, lambda: operations.paged_attention(*arguments)),
        "by prompts' tiles": graphed(place, by_prompts_tiles),
    }
    times = medians(place, works, max_seconds=1.0)
    num_bytes = (count * context + prompt) * KV_HEADS * HEAD_SIZE * 2 * cache.keys.itemsize
    row = Row(
        "prefill_attention",
        "attention of a step with a prompt, sequences x context + prompt",
        times["ours"] * 1e6,
        "us",
        num_bytes / times["ours"] / place.known_limits().bytes_per_s,
        note="share of reading keys and values once",
        details={"seconds": times, "bytes": num_bytes},
        column=f"{count} x {context} + {prompt}",
        beside={"by prompts' tiles": times["by prompts' tiles"] * 1e6},
    )
    place.tell(row)


def torch_works(query: Tensor, keys: Tensor, values: Tensor) -> dict[str, Work]:
    """torch's causal attention over dense keys of every query head, by the backends that run."""

    def attend(backend: SDPBackend) -> Tensor:
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(query, keys, values, is_causal=True)

    works = {f"torch {name}": partial(attend, one) for name, one in TORCH_BACKENDS.items()}
    return {name: work for name, work in works.items() if can_run(name, work)}
