"""Attention by torch's own kernels equals the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.test_attention import batch
from vllm_lite.kernels.gpu import sdpa
from vllm_lite.kernels.reference.ops import Ops as reference

MIXED = [(5, 5), (1, 70), (17, 40), (0, 0), (2, 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [{}, {"sliding_window": 9}, {"soft_cap": 0.5}, {"sliding_window": 3, "soft_cap": 2.0}],
)
@pytest.mark.parametrize("heads", [(9, 3), (7, 1), (4, 4)])
def test_attention(heads: tuple[int, int], options: dict[str, float], dtype: torch.dtype) -> None:
    case = replace(batch(MIXED, heads, 40, dtype=dtype), **options)  # type: ignore[arg-type]
    tolerance = 2e-5 if dtype == torch.float32 else 1.6e-2
    actual, expected = case.attend(sdpa), case.attend(reference)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_8_bit_caches_without_scales_are_read() -> None:
    case = batch([(1, 40), (3, 3)], size=64)
    caches = [cache.to(torch.float8_e4m3fn) for cache in (case.key_cache, case.value_cache)]
    narrow = replace(case, key_cache=caches[0], value_cache=caches[1])
    wide = replace(case, key_cache=caches[0].float(), value_cache=caches[1].float())
    torch.testing.assert_close(narrow.attend(sdpa), wide.attend(reference), rtol=2e-5, atol=2e-5)
    with pytest.raises(ValueError, match="rows of 64 for 60"):
        replace(narrow, query=narrow.query[:, :, :60]).attend(sdpa)
