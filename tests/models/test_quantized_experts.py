"""Experts of a mixture in every kind of storage: kept as they are stored, and worth the same.

Their inputs are not rounded, whatever the format says of a layer's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.quantized_checkpoints import Quantise, write_pair
from tests.models.runner import load
from tests.models.stored_codes import deepseek_v4
from tests.models.test_aqlm import FORMS as AQLM
from tests.models.test_aqlm import written
from tests.models.test_integer_checkpoints import FORMATS
from tests.models.test_quantized_checkpoints import logits
from tests.models.test_stored_codes import CASES
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.grouped_weight import expand, make_grouped
from vllm_lite.kernels.reference.experts import ExpertForm, ExpertStack, experts_mlp
from vllm_lite.quantization.experts import experts_kernel
from vllm_lite.quantization.padded_experts import UnpackedKernel

# Marlin's tiles are of 64 outputs, blocks of 128.
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
# Inputs of every layer are multiples of 40.
FORTIES = SIZES | {"hidden_size": 120, "moe_intermediate_size": 80, "head_dim": 40}
NAMES = (
    *("awq groups of 8", "awq groups of 40", "gptq 3 groups of 8", "gptq groups of 40 act-order"),
    "W4A16 groups of 8",
    *("awq", "gptq", "gptq act-order", "marlin", "marlin 24", "qqq"),
    *("hqq 4", "bitsandbytes", "bitsandbytes nf4 nested 128", "torchao int4", "torchao float8"),
    "fp8 blocks with fp4",
    *("fp8 static", "fp8 blocks", "W8A8 int", "W4A16", "W4A16 act-order", "NVFP4"),
    *("NVFP4A16", "MXFP4", "MXFP8", "2:4 float", "modelopt FP8", "modelopt NVFP4"),
    *("quark fp8", "quark int8", "quark fp4", "quark fp6_e2m3", "fbgemm_fp8"),
    *("aqlm 1x16", "aqlm 2x8"),
)


def _format(name: str) -> tuple[dict[str, Any], Quantise]:
    if name.startswith("aqlm"):
        settings = AQLM[name.removeprefix("aqlm ")]
        return settings, written(settings["num_codebooks"])
    return FORMATS[name][:2] if name in FORMATS else CASES[name][:2]


def mixtures(model: Any) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == "SparseMLP"]


@pytest.mark.parametrize("name", NAMES)
def test_experts_are_kept_as_they_are_stored(name: str, tmp_path: Path) -> None:
    settings, quantise = _format(name)
    sizes = FORTIES if "of 40" in name else SIZES
    packed, plain = write_pair(tmp_path, settings, quantise, "qwen3_moe", **sizes)
    exact = load(plain)
    assert torch.equal(logits(load(packed, quantization="dequantize")), logits(exact))
    model = load(packed)
    assert logits(model).isfinite().all()
    x = torch.randn(6, sizes["hidden_size"])
    ids = torch.randint(0, SIZES["num_experts"], (6, 2), dtype=torch.int32)
    weights = torch.rand(6, 2)
    for mixture, other in zip(mixtures(model), mixtures(exact), strict=True):
        stored, whole = mixture.kernel.stored, other.kernel.stored
        if name != "aqlm 1x16":  # whose books are larger than weights as small as these
            assert sum(w.num_bytes for w in stored) < 0.47 * sum(w.num_bytes for w in whole)
        got, want = mixture.kernel(x, ids, weights), other.kernel(x, ids, weights)
        if all("groups" in w.format or "books" in w.format for w in stored):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
        else:  # by GGUF's types, whose kernels round activations
            assert float((got - want).norm() / want.norm()) < 0.03


@pytest.mark.parametrize("has_gates", [True, False])
def test_padded_groups_may_have_biases_and_no_gates(has_gates: bool) -> None:
    """Outputs that the second layer reads as padding are zeros all the same."""

    def layer(outputs: int, inputs: int) -> UnpackedKernel:
        codes, zeros = (torch.randint(16, (outputs, n), dtype=torch.uint8) for n in (inputs, 3))
        scales, order = torch.rand(outputs, 3).half() / inputs, torch.randperm(inputs)
        weight = make_grouped(codes, scales, 4, zeros=zeros, permutation=order, group_size=24)
        return UnpackedKernel(weight, torch.randn(outputs))

    first = [layer(120 if has_gates else 60, 72) for _ in range(3)]
    down, form = [layer(72, 60) for _ in range(3)], ExpertForm(act="gelu")
    x, weights = torch.randn(5, 72), torch.rand(5, 2)
    ids = torch.randint(0, 3, (5, 2), dtype=torch.int32)
    gate_up, second = [
        ExpertStack(*(torch.stack(each) for each in zip(*values, strict=True)))
        for values in ([(expand(k.weight), k.bias) for k in layers] for layers in (first, down))
    ]
    want = experts_mlp(x, ids, weights, gate_up, second, form)
    got = experts_kernel(first, down, form)(x, ids, weights)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("plain", ["down_proj", ".experts.2."])
def test_a_mixture_that_is_quantised_in_part_is_one_error(plain: str, tmp_path: Path) -> None:
    """It names both schemes and a layer of each."""
    settings, quantise = _format("W4A16")

    def in_part(name: str, weight: torch.Tensor) -> Any:
        return ({"weight": weight}, weight) if plain in name else quantise(name, weight)

    packed, exact = write_pair(tmp_path, settings, in_part, "qwen3_moe", **SIZES)
    with pytest.raises(CheckpointError) as caught:
        load(packed)
    message = str(caught.value)
    assert re.search(r"experts\.\d\.\w+ is not quantised but in one mixture with", message)
    assert "gate_proj (number int, bits 4" in message and message.count("experts.") == 2
    assert torch.equal(logits(load(packed, quantization="dequantize")), logits(load(exact)))


def test_experts_of_unlike_scales_are_multiplied_alike(tmp_path: Path) -> None:
    """Half floats hold the scales of the first expert, and not those of the others."""
    settings, quantise = _format("W4A16")
    packed, plain = write_pair(tmp_path, settings, quantise, "qwen3_moe", **SIZES)
    for path, suffix in ((packed, "weight_scale"), (plain, "weight")):
        tensors = load_file(path / "model.safetensors")
        for name in tensors:
            if re.search(rf"\.experts\.[1-9].*\.{suffix}$", name):
                tensors[name] = tensors[name].float() * 2.0**-20
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
    got, want = (logits(load(path)) for path in (packed, plain))
    torch.testing.assert_close(got, want, atol=0.05 * float(want.abs().max()), rtol=0)


SHARED = {"first_k_dense_replace": 1, "n_shared_experts": 1, "n_routed_experts": 8, "n_group": 2}
SHARED |= {"topk_group": 1, "q_lora_rank": 128, "kv_lora_rank": 64, "num_hidden_layers": 2}
SHARED |= {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 128}


@pytest.mark.parametrize("suffix", ["scale", "weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("has_others", [True, False])
def test_routed_experts_beside_fp8_may_have_four_bits(
    suffix: str, has_others: bool, tmp_path: Path
) -> None:
    """The others may be plain too; the setting lies beside the method's own, as DeepSeek's."""

    def quantise(name: str, weight: torch.Tensor) -> Any:
        is_kept = has_others or ".experts." in name
        return deepseek_v4(suffix)(name, weight) if is_kept else ({"weight": weight}, weight)

    settings = CASES["fp8 blocks with fp4"][0] | {"expert_dtype": None}
    packed, plain = write_pair(tmp_path, settings, quantise, "deepseek_v3", **SHARED)
    config = json.loads((packed / "config.json").read_text())
    del config["quantization_config"]["expert_dtype"]
    (packed / "config.json").write_text(json.dumps(config | {"expert_dtype": "fp4"}))
    want = logits(load(plain))
    assert torch.equal(logits(load(packed, quantization="dequantize")), want)
    model = load(packed, quantization="deepseek_v4_fp8")
    (mixture,) = mixtures(model)
    assert {weight.format for weight in mixture.kernel.stored} == {"float4 groups"}
    shared = model.model.layers[1].mlp.shared_experts.down_proj.kernel.stored
    assert [weight.format for weight in shared] == ["float8 groups" if has_others else "float32"]
    if not has_others:  # whose inputs are rounded
        torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-4)
