"""Linear layers of heads equal the reference; a row's bits depend on the row alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.test_fusion import step_of
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.cpu.program import StepTensors, record_step
from vllm_lite.kernels.reference.ops import Ops as reference

DTYPES = [torch.float32, torch.bfloat16]


def heads(count: int, outputs: int, inputs: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(count, inputs, outputs) / inputs**0.5).to(dtype).mT.contiguous()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 1, 0), (40, 33, 7), (512, 128, 64), (96, 70, 0)])
@pytest.mark.parametrize("num_heads", [1, 5])
def test_it_equals_the_reference(
    num_heads: int, sizes: tuple[int, int, int], dtype: torch.dtype
) -> None:
    outputs, inputs, copied = sizes
    weights = heads(num_heads, outputs, inputs, dtype)
    packed = cpu.pack_heads(weights)
    wide = torch.randn(400, num_heads + 1, inputs + copied + 3).to(dtype)
    x = wide[:, 1:, 1 : inputs + copied + 1]
    for num_tokens in (0, 1, 6, 400):
        ours = cpu.head_linear(x[:num_tokens], packed)
        want = reference.head_linear(x[:num_tokens], reference.pack_heads(weights))
        tolerance = 3e-5 if dtype == torch.float32 else 1.6e-2
        torch.testing.assert_close(ours, want, rtol=tolerance, atol=tolerance / 2)
        assert torch.equal(ours[..., outputs:], x[:num_tokens, :, inputs:])
        for token in range(0, num_tokens, 57):
            alone = cpu.head_linear(x[token : token + 1], packed)
            assert torch.equal(alone[0], ours[token])


def test_it_can_be_recorded() -> None:
    weights = cpu.pack_heads(heads(3, 20, 16, torch.float32))
    table = torch.randn(50, 3 * 24)

    def forward(step: StepTensors) -> Tensor:
        rows = cpu.embedding(step["input_ids"], table)
        return cpu.head_linear(rows.view(-1, 3, 24), weights).view(-1, 3 * 28)

    with torch.inference_mode():
        program = record_step(forward, step_of(3), 100)
        for step in (step_of(40, 3), step_of(1)):
            assert torch.equal(program.run(step), forward(step))


def test_what_does_not_fit_is_refused() -> None:
    weights = cpu.pack_heads(heads(3, 20, 16, torch.float32))
    for x in (torch.randn(2, 3, 15), torch.randn(2, 4, 16), torch.randn(2, 3, 32)[..., ::2]):
        with pytest.raises(ValueError, match="do not fit together"):
            cpu.head_linear(x, weights)
    with pytest.raises(ValueError, match="does not fit the weights"):
        cpu.head_linear(torch.randn(2, 3, 16).bfloat16(), weights)
