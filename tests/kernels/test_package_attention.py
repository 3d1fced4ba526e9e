"""Attention by installed packages: their arguments mean the same as the reference's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels import fake_packages
from tests.kernels.test_attention import Batch, batch
from vllm_lite.kernels.gpu.backends import gpu_ops
from vllm_lite.kernels.metadata import AttentionMetadata, attention_metadata
from vllm_lite.kernels.reference.ops import Ops as reference

MIXED = [(5, 5), (1, 700), (17, 300), (0, 0), (2, 2), (1, 256)]
OPTIONS = [{}, {"sliding_window": 9}, {"soft_cap": 0.5}, {"sliding_window": 3, "soft_cap": 2.0}]
PLANS: list[Any] = []


@pytest.fixture(params=["FLASH_ATTN", "FLASHINFER"])
def ops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    PLANS.clear()
    monkeypatch.setitem(sys.modules, "flash_attn", fake_packages.flash_attn())
    monkeypatch.setitem(sys.modules, "flashinfer", fake_packages.flashinfer(PLANS))
    yield gpu_ops(request.param)
    for module in ("flash_attention", "flashinfer_attention"):
        sys.modules.pop(f"vllm_lite.kernels.{module}", None)  # it holds the stand-in


@contextmanager
def step_of(case: Batch) -> Iterator[None]:
    lengths = case.query_start_loc.diff()
    step = AttentionMetadata(
        case.query_start_loc,
        case.seq_lens,
        case.block_table,
        torch.empty(0, dtype=torch.int64),
        int(lengths.sum()),
        len(lengths),
        int(lengths.max()),
        int(case.seq_lens.max()),
    )
    with attention_metadata(step):
        yield


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("heads", [(9, 3), (7, 1), (4, 4)])
def test_attention(ops: Any, heads: tuple[int, int], options: dict[str, Any]) -> None:
    plain = batch(MIXED, heads, 64, block_size=256, dtype=torch.bfloat16)
    case = replace(plain, **options)
    with step_of(case):
        actual = case.attend(ops)
    torch.testing.assert_close(actual, case.attend(reference), rtol=1.6e-2, atol=1.6e-2)


def test_equal_layers_share_one_plan(ops: Any) -> None:
    case = batch([(1, 40), (1, 300)], block_size=256, dtype=torch.bfloat16)
    windowed = replace(case, sliding_window=5)
    for same_layers in ((case, case, case), (case, windowed)):
        with step_of(case):
            for layer in same_layers:
                expected = layer.attend(reference)
                torch.testing.assert_close(layer.attend(ops), expected, rtol=2e-2, atol=2e-2)
    assert len(PLANS) in (0, 3)  # flash-attn plans nothing
