"""Deterministic mode in Triton's interpreter: a row's bits do not depend on the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from triton.runtime import interpreter

from vllm_lite.kernels.gpu import tuning
from vllm_lite.kernels.gpu.triton import ops
from vllm_lite.kernels.reference.ops import GpuOps as reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiles and splits of --deterministic, on a device with many processors.

    A matrix instruction treats all rows of a tile alike; numpy's product does not.
    """

    def dot(_: object, a: Any, b: Any, d: Any, *_options: object) -> Any:
        left, right = (operand.data.astype(d.data.dtype) for operand in (a, b))
        return interpreter.TensorHandle(np.einsum("mk,kn->mn", left, right) + d.data, d.dtype)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
    monkeypatch.setattr(tuning, "processor_count", lambda _: 132)
    tuning.fix_cuts(True)
    yield
    tuning.fix_cuts(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_is_the_same_for_any_number_of_rows(dtype: torch.dtype, with_bias: bool) -> None:
    x, weight = torch.randn(150, 203).to(dtype), torch.randn(70, 203).to(dtype)
    bias = torch.randn(70).to(dtype) if with_bias else None
    whole = ops.fixed_linear(x, weight, bias, torch.float32)
    right = reference.fixed_linear(x, weight, bias, torch.float32)
    torch.testing.assert_close(whole, right, rtol=1e-4, atol=1e-4)
    for begin, end in [(0, 1), (5, 7), (17, 90), (149, 150)]:
        part = ops.fixed_linear(x[begin:end], weight, bias, torch.float32)
        assert torch.equal(part, whole[begin:end])
    assert ops.fixed_linear(x[:0], weight, bias, dtype).shape == (0, 70)


class Sequence:
    """A request of 300 tokens in a cache of blocks anywhere."""

    def __init__(self) -> None:
        self.keys, self.values = torch.randn(2, 30, 1, 16, 16).unbind()
        self.table = (torch.randperm(29) + 1)[:19].int()
        self.query = torch.randn(300, 2, 16)

    def attend(self, *chunks: tuple[int, int], window: int = 0) -> list[Tensor]:
        """The results of some ranges of it in one batch."""
        query = torch.cat([self.query[begin:end] for begin, end in chunks])
        starts = torch.tensor([0, *(end - begin for begin, end in chunks)]).cumsum(0).int()
        lens = torch.tensor([end for _, end in chunks]).int()
        table = self.table.expand(len(chunks), -1).contiguous()
        out = ops.paged_attention(query, self.keys, self.values, table, starts, lens, 0.2, window)
        return list(out.split(starts.diff().tolist()))


@pytest.mark.parametrize("window", [0, 37])
def test_attention_is_the_same_in_any_chunks_and_batch(window: int) -> None:
    one = Sequence()
    (whole,) = one.attend((0, 300), window=window)
    tokens = [(p, p + 1) for p in (0, 5, 63, 64, 129, 256, 299)]
    chunks = [(0, 1), (1, 6), (6, 130), (130, 131), (270, 300)]
    for batch in (tokens[-1:], tokens, chunks):
        for (begin, end), part in zip(batch, one.attend(*batch, window=window), strict=True):
            assert torch.equal(part, whole[begin:end])


def test_attention_is_split_unless_deterministic() -> None:
    assert tuning.num_processors(torch.device("cpu")) == 0
    tuning.fix_cuts(False)
    assert tuning.num_processors(torch.device("cpu")) == 132
