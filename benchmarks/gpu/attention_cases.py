"""Cases of paged attention for check_kernels.py; see kernel_cases.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from kernel_cases import ROUNDING, Case
from kernel_launches import attention_tiles
from torch import Tensor

from vllm_lite.kernels.reference.cache import SCALE_BYTES, encode
from vllm_lite.kernels.reference.ops import GpuOps as reference

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def paged_arguments(
    lens: Sequence[tuple[int, int]], heads: tuple[int, int], size: int, block_size: int
) -> list[Tensor]:
    """query, caches, block_table, query_start_loc and seq_lens in float32, blocks shuffled."""
    counts = [-(-seq_len // block_size) for _, seq_len in lens]
    table = torch.zeros(len(lens), max(counts) + 2, dtype=torch.int32)
    for row, ids in zip(table, torch.randperm(sum(counts)).int().split(counts), strict=True):
        row[: len(ids)] = ids
    starts = torch.tensor([0] + [queries for queries, _ in lens]).cumsum(0).int()
    caches = torch.randn(2, sum(counts), heads[1], block_size, size)
    query = torch.randn(int(starts[-1]), heads[0], size)
    seq_lens = torch.tensor([seq_len for _, seq_len in lens], dtype=torch.int32)
    return [query, caches[0], caches[1], table, starts, seq_lens]


def attention_cases(dtype: torch.dtype, longest: int) -> Iterator[Case]:
    """Decoding and mixed steps, with windows and soft caps."""
    decode = [(1, 1), (1, 16), (1, 17), (1, longest), (1, longest // 3)]
    mixed = [(5, 5), (1, longest // 2), (17, 40), (0, 0), (2, 2)]
    shapes = [
        (64, (9, 3), 16),
        (80, (4, 4), 8),
        (96, (32, 8), 32),
        (128, (32, 8), 16),
        (256, (8, 4), 128),
    ]
    for size, heads, block_size in shapes:
        for window, cap in ((0, 0.0), (100, 0.0), (0, 2.0)):
            for kind, lens in (("decode", decode), ("mixed", mixed)):
                tensors = paged_arguments(lens, heads, size, block_size)
                yield Case(
                    f"paged_attention {kind} {dtype} D={size} window={window} cap={cap}",
                    reference,
                    lambda o, t, _, window=window, cap=cap, scale=size**-0.5: o.paged_attention(
                        *t, scale, window, cap
                    ),
                    [t.to(dtype) if t.is_floating_point() else t for t in tensors],
                    dtype,
                    ROUNDING[dtype],
                    is_paged=True,
                )


def narrow_cache_cases(dtype: torch.dtype) -> Iterator[Case]:
    """8-bit caches without scales of rows."""
    for cached in FLOAT8:
        for size in (64, 80, 96, 128, 256):
            query, keys, values, *rest = paged_arguments([(1, 7), (1, 600)], (8, 2), size, 16)
            yield Case(
                f"paged_attention over {cached} {dtype} D={size}",
                reference,
                lambda o, t, _, scale=size**-0.5: o.paged_attention(*t, scale),
                [query.to(dtype), keys.to(cached), values.to(cached), *rest],
                dtype,
                ROUNDING[dtype],
                is_paged=True,
            )


def scaled_cache_cases(dtype: torch.dtype) -> Iterator[Case]:
    """8-bit caches whose rows end in a scale."""
    for cached in (torch.int8, torch.float8_e4m3fn):
        for size in (64, 80, 96, 128, 256):
            query, *caches, table, starts, lens = paged_arguments(
                [(1, 7), (5, 600)], (8, 2), size, 16
            )
            like = torch.empty(size + SCALE_BYTES, dtype=cached)
            yield Case(
                f"paged_attention over scaled {cached} {dtype} D={size}",
                reference,
                lambda o, t, _, scale=size**-0.5: o.paged_attention(*t, scale),
                [query.to(dtype), *(encode(rows, like) for rows in caches), table, starts, lens],
                dtype,
                ROUNDING[dtype],
            )


def mixed_cases(dtype: torch.dtype, longest: int) -> Iterator[Case]:
    """Prompts beside single tokens and requests of a few drafts, by passes of their own."""
    # So many prompt tokens that only the others' keys are split, and so few that all are.
    for name, prompt in (("many", longest // 12), ("few", 20)):
        lens = [(prompt, prompt + 9), (1, longest), (4, longest // 2), (0, 0), (1, 5), (5, 70)]
        for size in (64, 128):
            tensors = paged_arguments(lens, (32, 8), size, 16)
            for window in (0, 100):
                yield Case(
                    f"paged_attention of {name} prompt tokens {dtype} D={size} window={window}",
                    reference,
                    lambda o, t, _, window=window, scale=size**-0.5: o.paged_attention(
                        *t, scale, window
                    ),
                    [t.to(dtype) if t.is_floating_point() else t for t in tensors],
                    dtype,
                    ROUNDING[dtype],
                )


def descriptor_cases(dtype: torch.dtype, longest: int) -> Iterator[Case]:
    """Tiles that are read by descriptors, in blocks of one tile and of several."""

    def attend(o: Any, t: Sequence[Any], scale: float) -> Tensor:
        with attention_tiles(descriptor_stages=2):
            return o.paged_attention(*t, scale)

    lens = [(70, 70), (longest // 10, longest // 3), (1, longest), (0, 0), (1, 5)]
    for size, block_size in ((64, 64), (64, 128), (128, 64), (128, 128), (256, 64)):
        query, *caches, table, starts, seq_lens = paged_arguments(lens, (8, 2), size, block_size)
        # Keys and values of a layer lie between other layers' in a block's page.
        pages = torch.zeros(len(caches[0]), 3, *caches[0].shape[1:], dtype=dtype)
        pages[:, 1], pages[:, 2] = caches
        yield Case(
            f"paged_attention by descriptors {dtype} D={size} block={block_size}",
            reference,
            lambda o, t, _, scale=size**-0.5: attend(
                o, [t[0], t[1][:, 1], t[1][:, 2], *t[2:]], scale
            ),
            [query.to(dtype), pages, table, starts, seq_lens],
            dtype,
            ROUNDING[dtype],
        )


def sink_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Attention with slopes and sinks."""
    query, keys, values, *rest = paged_arguments([(1, 600), (7, 40)], (8, 2), 64, 16)
    yield Case(
        f"paged_attention slopes and sinks {dtype}",
        reference,
        lambda o, t, _: o.paged_attention(*t[:6], 0.125, alibi_slopes=t[6], sinks=t[7]),
        [*(t.to(dtype) for t in (query, keys, values)), *rest, torch.rand(8) / 8, torch.randn(8)],
        dtype,
        ROUNDING[dtype],
    )
