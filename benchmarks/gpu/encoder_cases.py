"""Cases of encoders' operations for check_kernels.py; see kernel_cases.py."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from kernel_cases import ROUNDING, Case

from vllm_lite.kernels.reference.ops import GpuOps as reference


def encoder_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Requests of many lengths, heads of several sizes, and each term of scores."""
    lengths = [3, 1, 200, 0, 65]
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    for size, (heads, kv_heads) in ((32, (12, 12)), (64, (6, 6)), (80, (4, 2)), (128, (8, 2))):
        counts = [heads, kv_heads, kv_heads]
        parts = torch.randn(sum(lengths), sum(counts), size).to(dtype).split_with_sizes(counts, 1)
        arguments = [*parts, starts, torch.rand(heads) / 4, torch.randn(heads, 399)]
        for window, cap in ((0, 0.0), (17, 0.0), (0, 2.0)):
            yield Case(
                f"encoder_attention {dtype} D={size} window={window} cap={cap}",
                reference,
                lambda o, t, _, terms=(size**-0.5, window, cap): [
                    o.encoder_attention(*t[:4], *terms),
                    o.encoder_attention(*t[:4], *terms, alibi_slopes=t[4]),
                    o.encoder_attention(*t[:4], *terms, distance_terms=t[5]),
                ],
                arguments,
                dtype,
                2 * ROUNDING[dtype],  # of weights and of results, which may cancel in short ones
            )
    tables = [torch.randn(rows, 384).to(dtype) for rows in (50, 30, 2)]
    arguments = [torch.randint(100, (40,)), torch.randint(30, (40,)), *tables]
    arguments += torch.randn(2, 384).to(dtype)
    yield Case(
        f"encoder_embedding {dtype}",
        reference,
        lambda o, t, _: [
            o.encoder_embedding(*t, 1e-5),
            o.encoder_embedding(*t[:2], t[2], None, t[4]),
        ],
        arguments,
        dtype,
        ROUNDING[dtype],
    )
    x, sums = torch.randn(sum(lengths), 300).to(dtype), torch.zeros(len(lengths), 300)
    yield Case(
        f"segment_sum {dtype}",
        reference,
        lambda o, t, _: [o.segment_sum(*t)],
        [x, starts, sums],
        dtype,
        ROUNDING[torch.float32],
    )
