"""Registry and linear methods: names lead to objects, storage never changes the product."""

from __future__ import annotations

import pytest
import torch

from vllm_lite.config.checkpoints.architectures import ARCHITECTURES
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.models.registry import get_model_class
from vllm_lite.quantization.registry import get_linear_method
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_supported_architecture_has_its_class(architecture: str) -> None:
    row = ARCHITECTURES[architecture]
    assert get_model_class(architecture).__name__ == row.model_class or architecture


def test_unknown_names_are_refused() -> None:
    with pytest.raises(CheckpointError, match="LlamaForCausalLM"):
        get_model_class("OtherLMHeadModel")
    with pytest.raises(UsageError, match="awq"):
        get_linear_method("awq", torch.float32)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
def test_packing_never_changes_the_product(
    dtype: torch.dtype, tolerance: float, with_bias: bool
) -> None:
    method = UnquantizedLinearMethod(dtype)
    generator = torch.Generator().manual_seed(0)
    for inputs, outputs in [(48, 80), (7, 5), (33, 131)]:
        stored = method.create_weights(inputs, outputs)
        weight = stored["weight"].data.normal_(generator=generator)
        bias = method.create_bias(outputs).normal_(generator=generator) if with_bias else None
        kernel = method.process_weights_after_loading(stored, bias)
        for rows in (1, 3, 64):
            x = torch.randn(rows, inputs, generator=generator).to(dtype)
            want = x.double() @ weight.double().T + (0 if bias is None else bias.double())
            got = kernel(x)
            assert got.dtype is dtype
            scale = float(want.abs().max())
            torch.testing.assert_close(got.double(), want, atol=tolerance * scale, rtol=0)
