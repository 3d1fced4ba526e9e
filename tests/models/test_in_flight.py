"""Plain checkpoints rounded as they are loaded: worth, memory, which layers, refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as GGML
from gguf.quants import dequantize
from torch import Tensor
from torch.nn.functional import pad

from tests.models.checkpoints import make_model, save
from tests.models.load_memory import THREADS, memory_of_loading
from tests.models.quantized_checkpoints import Quantise, scaled, write_pair
from tests.models.runner import load
from tests.models.stored_codes import bitsandbytes, mx, nvfp4
from tests.models.test_experts import compiled
from tests.models.test_quantized_checkpoints import SIZES, layers, logits
from tests.models.test_quantized_experts import SIZES as MIXTURE
from tests.models.test_quantized_experts import mixtures
from vllm_lite.config.checkpoints.gguf_header import GGML_TYPES
from vllm_lite.config.quantized.in_flight import CODES
from vllm_lite.config.quantized.schemes import NF4
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.kernels.reference.rounding import round_activations
from vllm_lite.quantization import online
from vllm_lite.quantization.ggml_blocks import CONVERTERS
from vllm_lite.quantization.grouped import GroupedKernel
from vllm_lite.quantization.layouts.numbers import values_of
from vllm_lite.quantization.layouts.rounding import encode
from vllm_lite.quantization.method import StoredTensor
from vllm_lite.quantization.quantized import QuantizedKernel
from vllm_lite.quantization.registry import get_linear_method, warn_of_exact_scales

E4M3 = torch.float8_e4m3fn
WIDE = SIZES | {"hidden_size": 256, "intermediate_size": 256}
WIDE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}


def in_groups(size: int) -> Quantise:
    def quantise(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        groups = weight.unflatten(1, (-1, math.gcd(size, weight.shape[1])))
        scales = groups.abs().amax(-1, keepdim=True) / 127
        return {}, ((groups / scales).round() * scales).flatten(1)

    return quantise


# A published writer of the same form, and bits a value with its scales.
FORMS: dict[str, tuple[Quantise, float]] = {
    "fp8": (scaled(E4M3, "channel", False), 8),
    "fp8_per_channel": (scaled(E4M3, "channel", False), 8),
    "ptpc_fp8": (scaled(E4M3, "channel", False), 8),
    "fp8_per_tensor": (scaled(E4M3, "tensor", False), 8),
    "fp8_per_block": (scaled(E4M3, "block", False), 8),
    "mxfp8": (mx("fp8"), 8.25),
    "int8_per_channel_weight_only": (scaled(torch.int8, "channel", False), 8),
    "rtn": (in_groups(128), 8.25),
    "nf4": (bitsandbytes("nf4", False), 4.5),
    "bitsandbytes": (bitsandbytes("nf4", False), 4.5),
    "mxfp4": (mx("fp4"), 4.25),
    "nvfp4": (nvfp4(False, False), 4.5),
}


def finished(name: str, weight: Tensor) -> Any:
    """The kernel of a layer with `weight` that is rounded by `name`."""
    method = get_linear_method(name, torch.float32)
    stored = method.create_weights(weight.shape[1], len(weight))
    stored["weight"].data.copy_(weight)
    return method.process_weights_after_loading(stored, None)


@pytest.mark.parametrize("name", FORMS)
def test_codes_are_those_of_the_formats_writer_and_take_its_memory(name: str) -> None:
    quantise, bits = FORMS[name]
    weight = torch.randn(160, 256) * torch.rand(160, 1)
    weight[5] = 0
    _, worth = quantise("", weight)
    worth = worth.nan_to_num()  # of a row of zeros
    kernel = finished(name, weight)
    assert isinstance(kernel, GroupedKernel)
    x = torch.randn(7, 256)
    want = x @ worth.T
    torch.testing.assert_close(kernel(x), want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
    scales = len(weight) * (4 * 2 + 4) + 1024  # of outputs, and a table
    assert kernel.weight.nbytes <= weight.numel() * bits / 8 + scales


def test_inputs_are_rounded_for_each_token_where_the_name_says_so() -> None:
    weight, x = torch.randn(160, 256) * torch.rand(160, 1), torch.randn(7, 256)
    _, worth = scaled(torch.int8, "channel", False)("", weight)
    kernel = finished("int8_per_channel", weight)
    assert isinstance(kernel, GroupedKernel) and kernel.rounding is not None
    want = round_activations(x, kernel.rounding) @ worth.T
    torch.testing.assert_close(kernel(x), want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))
    assert not torch.equal(kernel(x), x @ worth.T)


@pytest.mark.parametrize("name", CONVERTERS)
def test_blocks_are_gguf_s_and_near_the_weights(name: str) -> None:
    weight = torch.randn(32, 512)
    weight[1] = 0
    blocks = CONVERTERS[name](weight)
    number = next(number for number, kind in GGML_TYPES.items() if kind.name == name)
    kind = GGML_TYPES[number]
    assert blocks.shape == (32, 512 // kind.block_size * kind.block_bytes)
    values = torch.from_numpy(np.array(dequantize(blocks.numpy(), GGML(number))))
    limit = {"2": 0.4, "3": 0.25, "4": 0.11, "5": 0.06, "6": 0.03, "8": 0.01}[name[1]]
    assert not bool(values[1].any())
    assert float((values - weight).norm() / weight.norm()) < limit
    for spelled in (name, name.lower()):
        kernel = finished(spelled, weight)
        assert isinstance(kernel, QuantizedKernel)
        assert kernel.weight.nbytes <= blocks.nbytes * 1.2
        x = torch.randn(3, 512)
        torch.testing.assert_close(kernel(x), x @ values.T, rtol=0, atol=1.5)


@pytest.mark.parametrize("name", sorted(FORMS.keys() - {"fp8_per_tensor", "nvfp4", "rtn"}))
def test_a_model_computes_as_if_its_checkpoint_held_the_values(name: str, tmp_path: Path) -> None:
    """Two have a scale for the whole of a fused layer, where a checkpoint has one for each part."""
    sizes = WIDE if name != "fp8_per_block" else WIDE | {"head_dim": 128}
    original = save(make_model("llama", **sizes), tmp_path / "original")
    _, worth = write_pair(tmp_path / "pair", {}, FORMS[name][0], **sizes)
    want = logits(load(worth))
    torch.testing.assert_close(
        logits(load(original, quantization=name)), want, rtol=1e-4, atol=1e-4
    )
    assert not torch.equal(logits(load(original)), want)


def test_kernels_keep_codes_alone(tmp_path: Path) -> None:
    """Kernels keep nothing of the plain weights, whose memory ends with the layer's own."""
    weight = torch.randn(256, 256)
    method = get_linear_method("nf4", torch.float32)
    stored: dict[str, StoredTensor] = method.create_weights(256, 256)
    stored["weight"].data.copy_(weight)
    begins = stored["weight"].data.untyped_storage().data_ptr()
    kernel = method.process_weights_after_loading(stored, None)
    assert isinstance(kernel, GroupedKernel)
    packed: Any = kernel.weight
    kept = [plane for plane in (packed.codes, *packed.planes) if plane is not None]
    assert all(plane.untyped_storage().data_ptr() != begins for plane in kept)
    assert sum(plane.nbytes for plane in kept) < weight.nbytes / 6


@compiled
@pytest.mark.parametrize("name", ["nf4", "fp8", "q4_k"])
def test_loading_holds_the_codes_and_the_layers_at_hand(name: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 12}
    path = save(make_model("llama", **sizes).bfloat16(), tmp_path)
    held, stored, _ = memory_of_loading(path, name)
    values = 12 * (512 * 512 * 3 + 512 * 1024 * 3)
    bits = {"nf4": 4.5, "fp8": 8, "q4_k": 4.5}[name]
    assert stored < 1.1 * values * bits / 8 + (1 << 20)
    # Each thread has a layer's weights, codes and planes.
    largest = 2 * 512 * 1024
    assert held < stored + THREADS * 5 * largest + (2 << 20) < values * 2


def formats(model: Any) -> dict[str, list[str]]:
    return {
        name.removeprefix("model.layers.0."): [weight.format for weight in module.kernel.stored]
        for name, module in layers(model).items()
    }


def test_settings_say_which_layers_are_rounded_and_how(tmp_path: Path) -> None:
    path = save(make_model("llama", **WIDE), tmp_path)
    found = formats(load(path, quantization_config={"linear": "nf4", "ignore": ["down_proj"]}))
    assert found["mlp.gate_up_proj"] == ["float4 groups"] == found["self_attn.o_proj"]
    assert found["mlp.down_proj"] == ["float32"]
    targets = {"linear": "mxfp4", "targets": [r"re:.*self_attn\."]}
    found = formats(load(path, quantization_config=targets))
    assert found["self_attn.qkv_proj"] == ["float4 groups"]
    assert found["mlp.gate_up_proj"] == found["mlp.down_proj"] == ["float32"]
    found = formats(load(path, quantization="q4_k", quantization_config={"ignore": ["mlp"]}))
    assert found["self_attn.qkv_proj"] == ["Q4_K"]
    assert found["mlp.down_proj"] == ["float32"]
    with pytest.raises(CheckpointError, match="q_proj is not quantised but fused with"):
        load(path, quantization_config={"linear": "nf4", "ignore": ["q_proj"]})


def test_experts_may_be_rounded_unlike_other_layers(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64}
    path = save(make_model("qwen3_moe", **sizes), tmp_path)
    model: Any = load(path, quantization_config={"linear": "fp8", "moe": "mxfp4"})
    experts = [m for m in model.modules() if type(m).__name__ == "SparseMLP"]
    assert {w.format for m in experts for w in m.kernel.stored} == {"float4 groups"}
    assert formats(model)["self_attn.qkv_proj"] == ["float8 groups"]
    alone: Any = load(path, quantization="experts_int8")
    experts = [m for m in alone.modules() if type(m).__name__ == "SparseMLP"]
    assert {w.format for m in experts for w in m.kernel.stored} == {"int8 groups"}
    assert formats(alone)["self_attn.qkv_proj"] == ["float32"]
    exact = logits(load(path))
    assert float((logits(model) - exact).norm() / exact.norm()) < 0.6


@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes_rounds_a_plain_checkpoint(bits: int, tmp_path: Path) -> None:
    path = save(make_model("llama", **WIDE), tmp_path)
    settings: dict[str, Any] = {"quant_method": "bitsandbytes", f"load_in_{bits}bit": True}
    settings |= {"bnb_4bit_quant_type": "nf4", "llm_int8_skip_modules": ["down_proj"]}
    model = load(path, hf_overrides={"quantization_config": settings})
    found = formats(model)
    assert found["mlp.down_proj"] == ["float32"]
    assert found["self_attn.qkv_proj"] == ["float4 groups" if bits == 4 else "int8 groups"]
    if bits == 4:
        whole = formats(load(path, load_format="bitsandbytes"))
        assert set(map(tuple, whole.values())) == {("float4 groups",)}
        named = load(path, quantization="bitsandbytes")
        assert torch.equal(
            logits(named), logits(load(path, load_format="bitsandbytes", quantization="nf4"))
        )


@pytest.mark.parametrize(("is_plain", "is_nested"), [(True, True), (True, False), (False, True)])
def test_scales_that_are_not_quantised_in_flight_are_told(
    is_plain: bool, is_nested: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_exact_scales.cache_clear()
    settings: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    settings |= {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": is_nested}
    packed, plain = write_pair(tmp_path, settings, bitsandbytes("nf4", is_nested), **SIZES)
    overrides = {"quantization_config": settings} if is_plain else {}
    for _ in range(2):
        load(plain if is_plain else packed, hf_overrides=overrides)
    said = [text for text in caplog.messages if "bnb_4bit_use_double_quant has no effect" in text]
    assert len(said) == (is_plain and is_nested)


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"linears": "fp8"}, "quantization-config.linears is not known"),
        ({"linear": "fp9"}, "quantization-config.linear 'fp9' has to be one of fp8,"),
        ({"ignore": ["mlp"]}, "rounds nothing; give linear"),
        ({"linear": "fp8", "ignore": 7}, "ignore 7 has to be a list of names"),
        ({"linear": "fp8", "targets": ["re:*("]}, "targets has a pattern that is none"),
    ],
)
def test_settings_without_a_meaning_are_refused(
    settings: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    path = save(make_model("llama", **SIZES), tmp_path)
    with pytest.raises(UsageError, match=cause):
        load(path, quantization_config=settings)


def test_what_is_quantised_is_not_rounded_again(tmp_path: Path) -> None:
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    packed, _ = write_pair(tmp_path, settings, scaled(E4M3, "tensor", False), **SIZES)
    with pytest.raises(UsageError, match="is for plain checkpoints"):
        load(packed, quantization_config={"linear": "nf4"})
    with pytest.raises(UsageError, match=r"bitsandbytes does not fit .*quantised by fp8"):
        load(packed, load_format="bitsandbytes")
    with pytest.raises(UsageError, match=r"nf4 does not fit .*quantised by fp8"):
        load(packed, quantization="nf4")


# Inputs that share a scale.
GROUPS = {"mxfp4": 32, "nvfp4": 16, "mxfp8": 32, "nf4": 64, "bitsandbytes": 64, "rtn": 128}


def filled(name: str) -> Quantise:
    """The format's writer for rows that zeros fill up to whole groups."""

    def quantise(of: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        count = weight.shape[1]
        _, worth = FORMS[name][0](of, pad(weight, (0, -count % GROUPS[name])))
        return {}, worth[:, :count]

    return quantise


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [8, 40, 41, 584])
@pytest.mark.parametrize("name", GROUPS)
def test_groups_that_do_not_divide_the_inputs_end_in_a_shorter_one(
    name: str, size: int, dtype: torch.dtype
) -> None:
    weight = torch.randn(160, size) * torch.rand(160, 1)
    _, worth = filled(name)("", weight)
    kernel, x = finished(name, weight), torch.randn(70, size).to(dtype)
    assert isinstance(kernel, GroupedKernel)
    want = x.float() @ worth.T
    limit = (1e-4 if dtype is torch.float32 else 0.02) * float(want.abs().max())
    torch.testing.assert_close(kernel(x).float(), want, rtol=0, atol=limit)
    torch.testing.assert_close(kernel(x[:1]).float(), want[:1], rtol=0, atol=limit)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("name", GROUPS)
def test_models_of_any_size_are_rounded(name: str, family: str, tmp_path: Path) -> None:
    """No layer's inputs are whole groups: 72, 40 and 24 of them."""
    sizes = SIZES | {"hidden_size": 72, "intermediate_size": 40, "head_dim": 8}
    if family == "qwen3_moe":
        sizes |= {"moe_intermediate_size": 40, "num_experts": 3, "num_experts_per_tok": 2}
    original = save(make_model(family, **sizes), tmp_path / "original")
    model = load(original, quantization=name)
    assert all("groups" in kind for kinds in formats(model).values() for kind in kinds)
    want = logits(load(original))
    if name != "nvfp4":  # whose fused layers have one scale for all their parts
        _, worth = write_pair(tmp_path / "pair", {}, filled(name), family, **sizes)
        want = logits(load(worth))
        torch.testing.assert_close(logits(model), want, rtol=1e-4, atol=1e-4)
    assert float((logits(model) - want).norm() / want.norm()) < 0.6


# Of 80 inputs; what each needs a multiple of.
NEEDS = {"q4_k": 32, "int4": 32, "q8_0": 32}


@pytest.mark.parametrize("name", NEEDS)
def test_refusals_of_a_size_name_the_form_that_was_asked_for(name: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 80, "intermediate_size": 80, "num_attention_heads": 1}
    path = save(make_model("llama", **sizes, num_key_value_heads=1, head_dim=80), tmp_path)
    asked: list[dict[str, Any]] = [
        {"quantization": name},
        {"quantization_config": {"linear": name}},
    ]
    for options in asked:
        with pytest.raises(UsageError, match=rf" {name} needs .* multiples of {NEEDS[name]}"):
            load(path, **options)


@pytest.mark.parametrize(
    ("name", "other"),
    [("q2_k", "Q4_0"), ("q3_k", "Q4_0"), ("q4_k", "Q5_0"), ("q5_k", "Q5_1"), ("q6_k", "Q8_0")],
)
def test_layers_of_no_whole_blocks_take_llama_cpp_s_other_type(
    name: str, other: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = WIDE | {"hidden_size": 96, "intermediate_size": 256, "head_dim": 26}
    path = save(make_model("llama", **sizes), tmp_path)
    online._warn.cache_clear()
    found = formats(load(path, quantization=name))
    assert found["mlp.down_proj"] == [name.upper()]
    assert found["self_attn.qkv_proj"] == [other]
    assert found["self_attn.o_proj"] == ["float32"]
    assert f"{name} does not divide" in caplog.text
    assert f"2 take {other}, 1 stay plain" in caplog.text
    small = save(make_model("qwen3_moe", **MIXTURE | {"hidden_size": 96}), tmp_path / "mixture")
    assert logits(load(small, quantization=name)).isfinite().all()


def test_groups_of_rtn_divide_the_inputs(tmp_path: Path) -> None:
    original = save(make_model("llama", **SIZES), tmp_path / "original")
    _, worth = write_pair(tmp_path / "pair", {}, in_groups(128), **SIZES)
    want = logits(load(worth))
    got = logits(load(original, quantization="rtn"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*CODES, "q4_k", "int8", "experts_int8"])
def test_experts_are_rounded_to_every_form(name: str, tmp_path: Path) -> None:
    path = save(make_model("qwen3_moe", **MIXTURE), tmp_path)
    exact, model = load(path), load(path, quantization=name)
    x, weights = torch.randn(6, MIXTURE["hidden_size"]), torch.rand(6, 2)
    ids = torch.randint(0, MIXTURE["num_experts"], (6, 2), dtype=torch.int32)
    for mixture, other in zip(mixtures(model), mixtures(exact), strict=True):
        got, want = mixture.kernel(x, ids, weights), other.kernel(x, ids, weights)
        assert 0 < float((got - want).norm() / want.norm()) < 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization_config": {"linear": "fp8", "targets": ["Linear"]}}, "config rounds no"),
        ({"quantization_config": {"linear": "fp8", "targets": ["lm_head"]}}, "config rounds no"),
        ({"quantization_config": {"linear": "fp8", "ignore": ["re:.*"]}}, "config rounds no"),
        ({"quantization_config": {"moe": "fp8"}}, "config rounds no layer"),
        ({"quantization": "experts_int8"}, "experts_int8 rounds no layer"),
    ],
)
def test_options_that_round_nothing_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = save(make_model("llama", **SIZES), tmp_path)
    with pytest.raises(UsageError, match=message):
        load(path, **options)


@pytest.mark.parametrize("number", ["nf4", "fp4"])
def test_codes_of_bitsandbytes_are_those_of_the_nearest_values(number: Any) -> None:
    """Settings of a checkpoint that is still plain may ask for either."""
    weight = torch.randn(8, 192)
    stored = encode(weight, replace(NF4, number=number))
    values, scales = values_of(number), stored[NF4.scale].repeat_interleave(64, 1)
    far = (weight[..., None] - values * scales[..., None]).abs()
    torch.testing.assert_close(
        far.gather(2, stored[NF4.weight].long()[..., None])[..., 0], far.amin(2), rtol=0, atol=1e-6
    )
