"""Kernels by one large book or by two small ones equal the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vllm_lite import _cpu
from vllm_lite.kernels.codebook_weight import CodebookWeight
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference.ops import Ops as reference


def random_weight(
    num_books: int, outputs: int, inputs: int, number: torch.dtype = torch.float16
) -> CodebookWeight:
    bits = 16 // num_books
    high = torch.randint(256, (1, inputs // 8, outputs), dtype=torch.uint8)
    return CodebookWeight(
        codes=torch.randint(256, (num_books, inputs // 8, outputs), dtype=torch.uint8),
        high_codes=high if num_books == 1 else None,
        signs=None,
        odds=None,
        scales=torch.rand(1, outputs),
        books=torch.randn(num_books, 2**bits, 8).to(number),
        group_size=inputs,
        num_outputs=outputs,
        num_inputs=inputs,
    )


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("num_books", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("number", [torch.float16, torch.bfloat16])
def test_kernels_of_cpus(num_books: int, dtype: torch.dtype, number: torch.dtype) -> None:
    for outputs, inputs in ((1, 8), (70, 88), (33, 256)):
        weight = random_weight(num_books, outputs, inputs, number)
        packed = cpu.pack_grouped(weight)
        values = reference.grouped_lookup(weight, torch.arange(outputs), torch.float32)
        ids = torch.tensor([outputs - 1, 0])
        assert torch.equal(cpu.grouped_lookup(packed, ids, dtype), values[ids].to(dtype))
        x, bias = torch.randn(66, inputs).to(dtype), torch.randn(outputs)
        whole = cpu.grouped_linear(x, packed, bias, torch.float32)
        has_pairs = _cpu.selected_isa() in ("avx512_bf16", "amx")
        if has_pairs and dtype is number is torch.bfloat16:
            # Pairs of bfloat16 have rounded sums.
            plain = replace(weight, scales=torch.ones_like(weight.scales))
            numbers = reference.grouped_lookup(plain, torch.arange(outputs), torch.float32)
            values = numbers.bfloat16().float() * weight.scales[0][:, None]
        want = x.float() @ values.T + bias
        torch.testing.assert_close(whole, want, atol=1e-4, rtol=1e-4)
        for count in (1, 2, 5):
            few = cpu.grouped_linear(x[:count], packed, bias, torch.float32)
            assert torch.equal(few, whole[:count])


@pytest.mark.parametrize("num_books", [1, 2])
def test_kernels_of_gpus(num_books: int) -> None:
    pytest.importorskip("triton")
    from vllm_lite.kernels.gpu.triton import ops

    weight = random_weight(num_books, 70, 88)
    values = reference.grouped_lookup(weight, torch.arange(70), torch.float32)
    assert torch.equal(ops.expand_grouped(weight, torch.float32), values)
    x, bias = torch.randn(3, 88), torch.randn(70)
    ours = ops.grouped_linear(x, weight, bias)
    torch.testing.assert_close(ours, x @ values.T + bias, atol=1e-4, rtol=1e-4)


def test_other_vectors_are_not_packed_for_cpus() -> None:
    weight = random_weight(2, 4, 64)
    with pytest.raises(ValueError, match="two of 256"):
        cpu.pack_grouped(replace(weight, books=weight.books[..., :4]))
