"""Experts of a mixture in every kind of storage: kept as they are stored, and worth the same.

They read rows that are rounded as the format says of any layer's.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import silu

from tests.models.quantized_checkpoints import Quantise, write_pair
from tests.models.runner import load
from tests.models.stored_codes import Round, deepseek_v4, round_by, round_by_powers
from tests.models.test_aqlm import FORMS as AQLM
from tests.models.test_aqlm import written
from tests.models.test_integer_checkpoints import FORMATS, TOKENS
from tests.models.test_quantized_checkpoints import layers, logits
from tests.models.test_stored_codes import CASES
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.grouped_weight import expand, make_grouped
from vllm_lite.kernels.reference.experts import ExpertForm, ExpertStack, experts_mlp
from vllm_lite.kernels.reference.rounding import ActivationRounding, join_roundings
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
    *("aqlm 1x16", "aqlm 2x8", "torchao int4 by float8"),
)


def _format(name: str) -> tuple[dict[str, Any], Quantise]:
    if name.startswith("aqlm"):
        settings = AQLM[name.removeprefix("aqlm ")]
        return settings, written(settings["num_codebooks"])
    return FORMATS[name][:2] if name in FORMATS else CASES[name][:2]


def plain_experts(checkpoint: Path, rounded: Callable[[str], Round]) -> Any:
    """The experts of a plain checkpoint in plain torch, whose layers each round what they read."""
    held = load_file(checkpoint / "model.safetensors")
    held = {name.partition(".experts.")[2]: weight for name, weight in held.items()}
    parts = ("w1", "w3", "w2") if "0.w1.weight" in held else ("gate_proj", "up_proj", "down_proj")

    def linear(x: Tensor, expert: int, part: int) -> Tensor:
        name = f"{expert}.{parts[part]}.weight"
        return rounded(name)(x) @ held[name].T

    def kernel(x: Tensor, ids: Tensor, weights: Tensor, _: object = None) -> Tensor:
        out = torch.zeros(x.shape)
        for token, choice in itertools.product(*map(range, ids.shape)):
            row, expert = x[token, None], int(ids[token, choice])
            hidden = silu(linear(row, expert, 0)) * linear(row, expert, 1)
            out[token] += linear(hidden, expert, 2)[0] * weights[token, choice]
        return out

    return kernel


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
    rounded = CASES[name][2] if name in CASES else TOKENS.get(name)
    for mixture, other in zip(mixtures(model), mixtures(exact), strict=True):
        stored, whole = mixture.kernel.stored, other.kernel.stored
        if rounded is not None:
            other.kernel = plain_experts(plain, lambda _: rounded)
        if name != "aqlm 1x16":  # whose books are larger than weights as small as these
            assert sum(w.num_bytes for w in stored) < 0.47 * sum(w.num_bytes for w in whole)
        got, want = mixture.kernel(x, ids, weights), other.kernel(x, ids, weights)
        if all("groups" in w.format or "books" in w.format for w in stored):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
        else:  # by GGUF's types, whose kernels round activations
            assert float((got - want).norm() / want.norm()) < 0.03


MIXTRAL: dict[str, Any] = {name: SIZES[name] for name in ("hidden_size", "num_hidden_layers")}
MIXTRAL |= {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 128}
MIXTRAL |= {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUNDED: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(("W8A8 int", "W8A8 int static", "fp8 static", "W4A8"), ("mixtral", MIXTRAL)),
    **dict.fromkeys(("fp8 blocks", "fp8 blocks with fp4", "NVFP4", "MXFP4"), ("qwen3_moe", SIZES)),
    "W8A8 int static asymmetric": ("qwen3_moe", SIZES),
}
# The largest code of those whose scales are the checkpoint's.
STATIC = {"W8A8 int static": 127.0, "fp8 static": 448.0}


def own_scale(layer: str) -> float:
    """One of Mixtral's `EXPERT.PART.weight`, unlike that of any other layer of its experts."""
    return 0.01 * (int(layer[0]) + 1) * (2.5 if "w2" in layer else 1.0)


@pytest.mark.parametrize("name", ROUNDED)
def test_logits_are_a_plain_model_s_with_the_same_rounding(name: str, tmp_path: Path) -> None:
    settings, quantise, of_all = CASES[name]
    assert of_all is not None

    def rounded(layer: str) -> Round:
        return round_by(own_scale(layer), STATIC[name]) if name in STATIC else of_all

    def with_own_scale(weight_name: str, weight: Tensor) -> Any:
        stored, worth = quantise(weight_name, weight)
        layer = weight_name.partition(".experts.")[2]
        if name in STATIC and layer:
            stored["input_scale"] = torch.tensor([own_scale(layer)])
        return stored, worth

    family, sizes = ROUNDED[name]
    packed, plain = write_pair(tmp_path, settings, with_own_scale, family, **sizes)
    got, exact = logits(load(packed)), load(plain)
    assert not torch.isclose(got, logits(exact), rtol=1e-4, atol=1e-4).all(1).any()
    for layer in layers(exact).values():
        layer.kernel = lambda x, kernel=layer.kernel: kernel(of_all(x))
    (mixture,) = mixtures(exact)
    mixture.kernel = plain_experts(plain, rounded)
    is_near = torch.isclose(got, logits(exact), rtol=1e-4, atol=1e-4).all(1)
    assert int(is_near.sum()) >= len(got) - 1  # of one token an input may lie between two codes


@pytest.mark.parametrize("has_gates", [True, False])
@pytest.mark.parametrize(
    "rounding",
    [None, ActivationRounding(torch.int8), ActivationRounding(torch.float8_e4m3fn, 24)],
    ids=["exact", "tokens", "groups"],
)
def test_padded_groups_may_have_biases_and_no_gates(
    has_gates: bool, rounding: ActivationRounding | None
) -> None:
    """Outputs that the second layer reads as padding are zeros all the same."""

    def layer(outputs: int, inputs: int) -> UnpackedKernel:
        codes, zeros = (torch.randint(16, (outputs, n), dtype=torch.uint8) for n in (inputs, 3))
        scales, order = torch.rand(outputs, 3).half() / inputs, torch.randperm(inputs)
        weight = make_grouped(codes, scales, 4, zeros=zeros, permutation=order, group_size=24)
        return UnpackedKernel(weight, torch.randn(outputs), rounding)

    first = [layer(120 if has_gates else 60, 72) for _ in range(3)]
    down, form = [layer(72, 60) for _ in range(3)], ExpertForm(act="gelu")
    x, weights = torch.randn(5, 72), torch.rand(5, 2)
    ids = torch.randint(0, 3, (5, 2), dtype=torch.int32)
    gate_up, second = [
        ExpertStack(*map(torch.stack, zip(*values, strict=True)), join_roundings([rounding] * 3))
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


def test_experts_that_round_unlike_each_other_are_one_error_that_says_so(tmp_path: Path) -> None:
    settings, quantise = _format("W8A8 int")
    (rounded,) = settings["config_groups"].values()
    other = {"targets": [r"re:.*experts\.1\..*"], "weights": rounded["weights"]}
    other["format"] = "int-quantized"
    settings = settings | {"config_groups": {"group_0": other, "group_1": rounded}}
    packed, _ = write_pair(tmp_path, settings, quantise, "mixtral", **MIXTRAL)
    with pytest.raises(
        CheckpointError, match=r"experts\.0 \(int8.*, inputs int8\) and .*experts\.1 \(int8[^,]*\)"
    ):
        load(packed)


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
    exact = load(plain)
    assert torch.equal(logits(load(packed, quantization="dequantize")), logits(exact))
    model = load(packed, quantization="deepseek_v4_fp8")
    (mixture,) = mixtures(model)
    assert {weight.format for weight in mixture.kernel.stored} == {"float4 groups"}
    shared = model.model.layers[1].mlp.shared_experts.down_proj.kernel.stored
    assert [weight.format for weight in shared] == ["float8 groups" if has_others else "float32"]
    if not has_others:
        (other,) = mixtures(exact)
        other.kernel = plain_experts(plain, lambda _: round_by_powers(128))
        torch.testing.assert_close(logits(model), logits(exact), rtol=1e-4, atol=1e-4)
