"""Mixtures of experts: how they are loaded and stored. What they compute: test_families."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as GGML
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.models.checkpoints import make_model, save
from tests.models.load_memory import memory_of_loading
from tests.models.runner import PagedRunner, load
from tests.models.test_families import expected, ids_of
from tests.models.test_gguf import SIZES, write_gguf
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.kernels import dispatch
from vllm_lite.kernels.reference.experts import ExpertForm
from vllm_lite.kernels.reference.quantized import QuantizedWeight
from vllm_lite.quantization import experts
from vllm_lite.quantization.experts import check_experts, experts_kernel
from vllm_lite.quantization.storage import stored_weights
from vllm_lite.quantization.unquantized import PackedKernel

compiled = pytest.mark.skipif(not dispatch.is_compiled(), reason="quantised by compiled kernels")
IDS = ids_of(1)
# Inputs are whole groups of quantised values.
WIDE = {"hidden_size": 64, "moe_intermediate_size": 96, "intermediate_size": 128}


def logits(model: Any, **options: Any) -> torch.Tensor:
    return PagedRunner(model, **options).step({"a": IDS})["a"].float()


def distance(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


def stack_experts(path: Path) -> Path:
    """Write each layer's experts as the two tensors that transformers computes with."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    stacks: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for name in list(tensors):
        layer, is_expert, rest = name.partition(".experts.")
        if is_expert and not rest.endswith("up_proj.weight"):
            number, last, _ = rest.split(".")
            values = tensors.pop(name)
            if last == "gate_proj":
                up = tensors.pop(f"{layer}.experts.{number}.up_proj.weight")
                last, values = "gate_up_proj", torch.cat((values, up))
            stacks.setdefault(f"{layer}.experts.{last}", []).append((int(number), values))
    for name, parts in stacks.items():
        tensors[name] = torch.stack([values for _, values in sorted(parts, key=itemgetter(0))])
    save_file(tensors, file)
    return path


def test_experts_may_be_stored_as_one_tensor(tmp_path: Path) -> None:
    path = save(make_model("qwen3_moe"), tmp_path)
    want = logits(load(path))
    assert torch.equal(logits(load(stack_experts(path))), want)


def write_float4_experts(directory: Path) -> Any:
    """gpt-oss' experts as floats of four bits; the model that they are worth."""
    reference = make_model("gpt_oss", hidden_size=64, intermediate_size=32, head_dim=16)
    packed = {}
    for name, parameter in reference.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            shape = parameter.transpose(1, 2).shape
            blocks = torch.randint(0, 256, (*shape[:2], shape[2] // 32, 16), dtype=torch.uint8)
            scales = torch.randint(122, 126, blocks.shape[:-1], dtype=torch.uint8)
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            values = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            parameter.data = values.view(parameter.shape)
    path = save(reference, directory)
    tensors = load_file(path / "model.safetensors")
    plain = {name: values for name, values in tensors.items() if f"{name}_blocks" not in packed}
    save_file({**plain, **packed}, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (path / "config.json").write_text(json.dumps(config))
    return reference


def test_experts_may_be_floats_of_four_bits(tmp_path: Path) -> None:
    reference, path = write_float4_experts(tmp_path), tmp_path
    want = expected(reference, IDS)
    for name in (None, "mxfp4", "gpt_oss_mxfp4"):
        model = load(path, quantization=name)
        torch.testing.assert_close(logits(model), want, atol=1e-4, rtol=0)
        kinds = {weight.format for weight in stored_weights(model)}
        assert {kind for kind in kinds if "groups" in kind} == {"float4 groups"}
    whole = load(path, quantization="dequantize")
    torch.testing.assert_close(logits(whole), want, atol=1e-4, rtol=0)
    assert {weight.format for weight in stored_weights(whole)} == {"float32"}


@compiled
@pytest.mark.parametrize("stored_as", ["one by one", "stacks", "BF16", "Q8_0"])
def test_loading_takes_little_more_than_the_experts(stored_as: str, tmp_path: Path) -> None:
    model = make_model("qwen3_moe", **SIZES, moe_intermediate_size=160, num_experts=128)
    quantization = "gguf" if stored_as == "Q8_0" else None
    if stored_as in ("one by one", "stacks"):
        path = save(model.bfloat16(), tmp_path)
        if stored_as == "stacks":
            stack_experts(path)
    else:
        path, kind = tmp_path / "m.gguf", GGML[stored_as]
        write_gguf(path, "qwen3moe", model, lambda name: GGML.F32 if "inp" in name else kind)
    held, stored, readings = memory_of_loading(path, quantization)
    assert readings > 2 * 2 * 2 * 128
    assert stored > 2 * 128 * 3 * 256 * 160 * (1 if stored_as == "Q8_0" else 2)
    # Pools of packed weights are mapped in pieces of 64 MiB, but only what is used takes memory.
    assert held < 1.1 * stored + (4 << 20)


@compiled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_experts_are_quantised_and_their_router_is_not(
    quantization: str, dtype: str, tmp_path: Path
) -> None:
    path = save(make_model("qwen3_moe", **WIDE), tmp_path)
    plain, kept = load(path, dtype), load(path, dtype, quantization=quantization)
    mixture = kept.get_submodule("model.layers.0.mlp")  # type: ignore[attr-defined]
    assert isinstance(mixture.kernel.gate_up.weights[0], QuantizedWeight)
    assert isinstance(mixture.gate.kernel, PackedKernel)
    want = logits(kept)
    assert 0 < distance(want, logits(plain)) < 0.5
    assert torch.equal(logits(kept, is_recorded=True), want)


@compiled
@pytest.mark.parametrize("kind", [GGML.F32, GGML.Q8_0, GGML.Q4_0], ids=lambda kind: kind.name)
def test_experts_of_a_gguf_file(kind: GGML, tmp_path: Path) -> None:
    reference = make_model("qwen3_moe", **SIZES, moe_intermediate_size=64)
    file = tmp_path / "m.gguf"
    write_gguf(file, "qwen3moe", reference, lambda name: GGML.F32 if "inp" in name else kind)
    plain = logits(load(file))
    if kind is GGML.F32:
        torch.testing.assert_close(plain, expected(reference, IDS), atol=2e-3, rtol=0)
        return
    kept = load(file, quantization="gguf")
    first = kept.get_submodule("model.layers.0.mlp")  # type: ignore[attr-defined]
    assert isinstance(first.kernel.gate_up.weights[0], QuantizedWeight)
    assert 0 < distance(logits(kept), plain) < 0.3


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    path = save(make_model("qwen3_moe"), tmp_path)
    with pytest.raises(CheckpointError, match=r"mlp\.experts\.6\.gate_proj\.weight"):
        load(path, hf_overrides={"num_experts": 7})
    with pytest.raises(CheckpointError, match=r"mlp\.experts\.5\.\w+_proj\.weight"):
        load(path, hf_overrides={"num_experts": 5})
    with pytest.raises(CheckpointError, match="7 of 6 experts"):
        load(path, hf_overrides={"num_experts_per_tok": 7})


def test_experts_whose_products_are_none_of_the_operation_s_are_refused() -> None:
    with pytest.raises(CheckpointError, match="--quantization dequantize"):
        experts_kernel([lambda x: x], [lambda x: x], ExpertForm())


def test_deterministic_refuses_batch_dependent_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(experts, "is_deterministic", lambda: True)
    monkeypatch.setattr(experts, "is_compiled", lambda: True)
    check_experts()
    monkeypatch.setattr(experts, "is_compiled", lambda: False)
    with pytest.raises(UsageError, match=r"--deterministic .* mixture of experts"):
        check_experts()
