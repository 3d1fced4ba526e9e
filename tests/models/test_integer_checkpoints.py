"""Checkpoints of integers in groups, in every layout: values bit for bit, ranks, rules, errors."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models import integer_layouts as layouts
from tests.models.quantized_checkpoints import Quantise, awq, gptq, scaled, write_pair
from tests.models.runner import PagedRunner, load
from tests.models.stored_codes import bitsandbytes, compressed, round_tokens
from tests.models.test_gguf import IDS
from tests.models.test_quantized_checkpoints import AWQ, GPTQ, SIZES, layers, logits
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.quantization.registry import warn_of_small_groups

# Marlin's tiles are of 64 outputs, and 2:4's pairs of 64 inputs.
TILED: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
}
# Inputs of every layer are multiples of 40.
FORTIES = SIZES | {"hidden_size": 120, "intermediate_size": 80, "head_dim": 40}
MARLIN = {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True}
BITBLAS = GPTQ | {"checkpoint_format": "bitblas", "desc_act": False}
HQQ: dict[str, Any] = {"quant_method": "hqq", "skip_modules": ["lm_head"]}


def hqq(bits: int, group: int | None, **changes: Any) -> dict[str, Any]:
    weights = {"nbits": bits, "group_size": group, "axis": 1, **changes}
    return HQQ | {"quant_config": {"weight_quant_params": weights}}


def torchao(name: str, **data: Any) -> dict[str, Any]:
    kind = {"_type": name, "_data": data, "_version": 1}
    return {"quant_method": "torchao", "quant_type": {"default": kind}}


PER_GROUP = {"_type": "PerGroup", "_data": {"group_size": 32}}
FORMATS: dict[str, tuple[dict[str, Any], Quantise, dict[str, Any]]] = {
    "awq": (AWQ, awq(32), SIZES),
    "awq of AutoAWQ": (
        {"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "version": "GEMM"},
        awq(32),
        SIZES,
    ),
    "awq gemv": (AWQ | {"version": "GEMV"}, layouts.awq_gemv(32), SIZES),
    "awq gemv 64": (AWQ | {"version": "gemv", "group_size": 64}, layouts.awq_gemv(64), TILED),
    "awq gemv fast": (
        AWQ | {"version": "gemv_fast", "group_size": 64},
        layouts.awq_gemv_fast(64),
        TILED,
    ),
    "awq whole": (AWQ | {"group_size": -1}, awq(-1), SIZES),
    "awq around the middle whole": (
        AWQ | {"zero_point": False, "group_size": -1},
        layouts.awq_even(-1),
        SIZES,
    ),
    "awq around the middle": (AWQ | {"zero_point": False}, layouts.awq_even(32), SIZES),
    "awq marlin": (
        AWQ | {"version": "marlin", "zero_point": False, "group_size": 64},
        layouts.awq_marlin(64),
        TILED,
    ),
    "gptq 2": (GPTQ | {"bits": 2, "sym": False}, layouts.any_bits(32, 2), SIZES),
    "gptq 3": (GPTQ | {"bits": 3, "sym": False}, layouts.any_bits(32, 3), SIZES),
    "gptq 3 v2": (
        GPTQ | {"bits": 3, "sym": False, "checkpoint_format": "gptq_v2"},
        layouts.any_bits(32, 3, less_by=0),
        SIZES,
    ),
    "gptq 8 asymmetric": (GPTQ | {"bits": 8, "sym": False}, layouts.any_bits(32, 8), SIZES),
    "gptq act-order": (
        GPTQ | {"desc_act": True, "sym": False},
        gptq(32, 4, False, False),
        SIZES,
    ),
    "gptq": (GPTQ, gptq(32, 4, True, True), SIZES),
    "gptq groups of 16": (GPTQ | {"group_size": 16}, gptq(16, 4, True, True), SIZES),
    "awq groups of 8": (AWQ | {"group_size": 8}, awq(8), SIZES),
    "awq groups of 40": (AWQ | {"group_size": 40}, awq(40), FORTIES),
    "gptq groups of 40": (
        GPTQ | {"group_size": 40, "sym": False},
        gptq(40, 4, False, True),
        FORTIES,
    ),
    "gptq groups of 40 act-order": (
        GPTQ | {"group_size": 40, "sym": False, "desc_act": True, "bits": 8},
        gptq(40, 8, False, False),
        FORTIES,
    ),
    "gptq 3 groups of 8": (
        GPTQ | {"bits": 3, "sym": False, "group_size": 8},
        layouts.any_bits(8, 3),
        SIZES,
    ),
    "awq groups of 4": (AWQ | {"group_size": 4}, awq(4), SIZES),
    "gptq groups of 2 act-order": (
        GPTQ | {"group_size": 2, "sym": False, "desc_act": True},
        gptq(2, 4, False, False),
        SIZES,
    ),
    "marlin": (MARLIN | {"checkpoint_format": "marlin"}, layouts.marlin(64, 4), TILED),
    "marlin whole": (
        {"quant_method": "marlin", "group_size": -1},
        layouts.marlin(-1, 4),
        TILED,
    ),
    "marlin 8": (
        MARLIN | {"checkpoint_format": "marlin", "bits": 8},
        layouts.marlin(64, 8),
        TILED,
    ),
    "marlin 24": (MARLIN | {"checkpoint_format": "marlin_24"}, layouts.marlin_24(64, 4), TILED),
    "marlin 24 whole": (
        MARLIN | {"checkpoint_format": "marlin_24", "group_size": -1, "bits": 8},
        layouts.marlin_24(-1, 8),
        TILED,
    ),
    "bitblas": (BITBLAS, layouts.bitblas(32, 4, True), SIZES),
    "bitblas whole": (BITBLAS | {"group_size": -1, "bits": 2}, layouts.bitblas(-1, 2, True), SIZES),
    **{
        f"bitblas {bits} asymmetric": (
            BITBLAS | {"bits": bits, "sym": False},
            layouts.bitblas(32, bits, False),
            SIZES,
        )
        for bits in (2, 4)
    },
    "bitblas 8": (BITBLAS | {"bits": 8}, layouts.bitblas(32, 8, True), SIZES),
    "bitblas 8 signed": (
        BITBLAS | {"bits": 8},
        layouts.bitblas(32, 8, True, is_signed=True),
        SIZES,
    ),
    "bitblas 8 asymmetric": (
        BITBLAS | {"bits": 8, "sym": False},
        layouts.bitblas(32, 8, False),
        SIZES,
    ),
    **{
        f"bitblas {bits} bfloat16": (
            BITBLAS | {"bits": bits, "sym": bits == 4},
            layouts.bitblas(32, bits, bits == 4, torch.bfloat16),
            SIZES,
        )
        for bits in (2, 4)
    },
    **{
        f"bitblas 4{' asymmetric' * (not is_symmetric)} by GPTQModel": (
            BITBLAS | {"sym": is_symmetric},
            layouts.bitblas(32, 4, is_symmetric, zeros_name="qzeros"),
            SIZES,
        )
        for is_symmetric in (True, False)
    },
    "compressed marlin 24": (
        compressed(
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64},
            format="marlin-24",
        ),
        layouts.marlin_24_packed(64, 4),
        TILED,
    ),
    "auto-round": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True},
        gptq(32, 4, True, True),
        SIZES,
    ),
    "auto-round awq": (
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}
        | {"bits": 4, "group_size": 32},
        awq(32),
        SIZES,
    ),
    "auto-round awq by its kernel": (
        {"quant_method": "auto-round", "backend": "autoround:awq", "bits": 4, "group_size": 32},
        awq(32),
        SIZES,
    ),
    "qqq": ({"quant_method": "qqq", "bits": 4, "group_size": 64}, layouts.qqq(64), TILED),
    "qqq whole": ({"quant_method": "qqq", "wbits": 4, "groupsize": -1}, layouts.qqq(-1), TILED),
    "hqq 2": (hqq(2, 16), layouts.hqq(16, 2), SIZES),
    "hqq 3": (hqq(3, 32), layouts.hqq(32, 3), SIZES),
    "hqq 4": (hqq(4, 64), layouts.hqq(64, 4, torch.bfloat16), TILED),
    "hqq groups of 4": (hqq(8, 4), layouts.hqq(4, 8), SIZES),
    "hqq groups of 24": (hqq(4, 24), layouts.hqq(24, 4), SIZES | {"intermediate_size": 72}),
    "hqq 8": (hqq(8, None), layouts.hqq(None, 8), SIZES),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": None},
        layouts.llm_int8,
        SIZES,
    ),
    **{
        f"bitsandbytes {kind}{' nested' * nested} {block}": (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind},
            bitsandbytes(kind, nested, block),
            SIZES,
        )
        for kind, nested, block in (("nf4", False, 64), ("nf4", True, 128), ("fp4", True, 64))
    },
    **{
        f"bitsandbytes in {storage}": (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
            | {"bnb_4bit_quant_storage": storage},
            layouts.viewed(bitsandbytes("nf4", True), storage),
            SIZES,
        )
        for storage in ("bfloat16", "float32")
    },
    "torchao int8": (torchao("Int8WeightOnlyConfig"), layouts.torchao_int8, SIZES),
    "torchao int8 groups": (
        torchao("Int8WeightOnlyConfig", granularity=PER_GROUP),
        layouts.torchao_intx(32, 8, False),
        SIZES,
    ),
    **{
        f"torchao int{bits}{' asymmetric' * is_shifted}": (
            torchao("IntxWeightOnlyConfig", granularity=PER_GROUP, weight_dtype=f"torch.int{bits}"),
            layouts.torchao_intx(32, bits, is_shifted),
            SIZES,
        )
        for bits, is_shifted in ((1, False), (3, True), (4, False), (7, True))
    },
    "torchao float8": (
        torchao("Float8WeightOnlyConfig"),
        layouts.torchao_float8(scaled(torch.float8_e4m3fn, "channel", False)),
        SIZES,
    ),
    "torchao int4": (
        torchao("Int4WeightOnlyConfig", group_size=32),
        layouts.torchao_int4(32),
        SIZES,
    ),
    "torchao int4 by float8": (
        torchao("Float8DynamicActivationInt4WeightConfig", int4_packing_format="plain"),
        layouts.torchao_int4(128),
        # By chance, an input of TILED's lies between two codes.
        TILED | {"intermediate_size": 384},
    ),
}
# Others' inputs are rounded by kernels of GGUF's types alone, in groups of 32.
TOKENS = {
    "qqq": round_tokens(127.0),
    "qqq whole": round_tokens(127.0),
    "torchao int4 by float8": round_tokens(448.0),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_layout_is_worth_what_its_tool_stored(name: str, tmp_path: Path) -> None:
    settings, quantise, sizes = FORMATS[name]
    packed, plain = write_pair(tmp_path, settings, quantise, **sizes)
    want = logits(load(plain))
    assert torch.equal(logits(load(packed, quantization="dequantize")), want)
    nearness = float((logits(load(packed)) - want).norm() / want.norm())
    # Three bits of mantissa for inputs cost more than the rounding of others.
    assert nearness < (0.2 if name == "torchao int4 by float8" else 0.1)


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_a_plain_model_s_with_the_same_rounding(name: str, tmp_path: Path) -> None:
    settings, quantise, sizes = FORMATS[name]
    packed, plain = write_pair(tmp_path, settings, quantise, **sizes)
    model, exact = load(packed), load(plain)
    theirs = layers(exact)
    for layer, module in layers(model).items():
        is_ggufs = any(weight.format.startswith("Q") for weight in module.kernel.stored)
        rounded = round_tokens(127.0, 32) if is_ggufs else TOKENS.get(name, torch.clone)
        kernel = theirs[layer].kernel
        theirs[layer].kernel = lambda x, kernel=kernel, rounded=rounded: kernel(rounded(x))
        x = torch.randn(5, theirs[layer]._inputs.size)
        want = theirs[layer].kernel(x)
        torch.testing.assert_close(module.kernel(x), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(model), logits(exact), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["awq", "gptq 3", "gptq act-order", "gptq groups of 16", "hqq 2"])
def test_in_bfloat16_a_token_is_the_same_alone_and_among_others(name: str, tmp_path: Path) -> None:
    settings, quantise, sizes = FORMATS[name]
    packed, plain = write_pair(tmp_path, settings, quantise, **sizes)
    model = load(packed, dtype="bfloat16")
    whole = PagedRunner(model, is_recorded=True).step({"a": IDS})["a"].clone()
    alone = PagedRunner(model, is_recorded=True)
    tokens = [alone.step({"a": [token]})["a"].clone() for token in IDS]
    assert torch.equal(torch.cat(tokens), whole)
    want = logits(load(plain, dtype="bfloat16"))
    assert float((whole.float() - want).norm() / want.norm()) < 0.05


def test_bytes_that_may_be_signed_or_codes_are_an_error(tmp_path: Path) -> None:
    packed, _ = write_pair(tmp_path, *FORMATS["bitblas 8"][:2], **SIZES)
    tensors = load_file(packed / "model.safetensors")
    for name in tensors:
        if name.endswith("up_proj.qweight"):
            tensors[name] = torch.randint(-128, 128, tensors[name].shape, dtype=torch.int8)
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"up_proj\.qweight': bytes that are neither signed"):
        load(packed)


def test_scales_say_in_which_order_bitblas_has_codes(tmp_path: Path) -> None:
    """And so all are of one type, float16 or bfloat16."""
    packed, _ = write_pair(tmp_path, *FORMATS["bitblas"][:2], **SIZES)
    tensors = load_file(packed / "model.safetensors")
    for dtype in (torch.float32, torch.bfloat16):
        odd = {name: x.to(dtype) for name, x in tensors.items() if name.endswith("k_proj.scales")}
        save_file(tensors | odd, packed / "model.safetensors", {"format": "pt"})
        with pytest.raises(CheckpointError, match=r"_proj\.scales': scales of torch\.\w+ are"):
            load(packed)


@pytest.mark.parametrize(
    ("name", "size"),
    [("awq groups of 4", 4), ("gptq groups of 2 act-order", 2), ("hqq groups of 4", 4)],
)
def test_groups_of_few_inputs_are_dequantised_with_a_warning(
    name: str, size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_small_groups.cache_clear()
    settings, quantise, sizes = FORMATS[name]
    packed, plain = write_pair(tmp_path, settings, quantise, **sizes)
    assert torch.equal(logits(load(packed)), logits(load(plain)))
    (said,) = [text for text in caplog.messages if "dequantised" in text]
    assert said.startswith(f"groups of {size} inputs, which")
    assert said.endswith("dequantised to float32 as they are loaded")


def test_rules_give_layers_other_bits_or_none(tmp_path: Path) -> None:
    """As gptqmodel's `dynamic` and auto-round's `extra_config` say it."""

    def quantise(name: str, weight: torch.Tensor) -> Any:
        if "mlp.down" in name:
            return {"weight": weight}, weight
        bits = 8 if "o_proj" in name else 4
        return gptq(32, bits, True, True)(name, weight)

    rules = {"-:.*down": {}, r"+:.*\.o_proj$": {"bits": 8}}
    extra = {"model.layers.0.self_attn.o_proj": {"bits": 8}, ".*down.*": {"bits": 16}}
    inc = {"quant_method": "intel/auto-round", "packing_format": "auto_round:auto_gptq"}
    inc |= {"bits": 4, "group_size": 32, "sym": True, "block_name_to_quantize": "model.layers"}
    for settings in (GPTQ | {"dynamic": rules}, inc | {"extra_config": extra}):
        packed, plain = write_pair(tmp_path / settings["quant_method"], settings, quantise, **SIZES)
        assert torch.equal(logits(load(packed, quantization="dequantize")), logits(load(plain)))
        model = load(packed, load_format="dummy")
        assert logits(model).isfinite().all()


def test_fused_layers_with_unlike_rules_are_refused(tmp_path: Path) -> None:
    def quantise(name: str, weight: torch.Tensor) -> Any:
        return gptq(32, 8 if "q_proj" in name else 4, True, True)(name, weight)

    settings = GPTQ | {"dynamic": {".*q_proj": {"bits": 8}}}
    packed, _ = write_pair(tmp_path, settings, quantise, **SIZES)
    with pytest.raises(CheckpointError, match=r"q_proj \(.*bits 8.*\) and .*k_proj \(.*bits 4"):
        load(packed)


def test_experts_that_cannot_be_multiplied_name_a_tensor_and_its_file(tmp_path: Path) -> None:
    """As those whose groups are not of one size."""

    def quantise(name: str, weight: torch.Tensor) -> Any:
        return gptq(16 if ".experts.1." in name else 32, 4, True, True)(name, weight)

    settings = GPTQ | {"dynamic": {r".*\.experts\.1\.": {"group_size": 16}}}
    sizes: dict[str, Any] = {"hidden_size": 64, "moe_intermediate_size": 64, "head_dim": 32}
    packed, plain = write_pair(
        tmp_path, settings, quantise, "qwen3_moe", left_plain="gate.weight", **sizes
    )
    with pytest.raises(CheckpointError) as caught:
        load(packed)
    file, message = packed / "model.safetensors", str(caught.value)
    assert message.startswith(f"{file}: the tensor 'model.layers.0.mlp.experts.0.gate_proj.")
    assert " or 'model.layers.0.mlp.experts.1.gate_proj." in message
    assert "experts.0 (Q4_0) and" in message or "groups of 32) and" in message
    assert message.count("model.layers") == 2
    assert torch.equal(logits(load(packed, quantization="dequantize")), logits(load(plain)))


def test_a_head_may_be_quantised_too(tmp_path: Path) -> None:
    packed, plain = write_pair(
        tmp_path,
        GPTQ | {"lm_head": True},
        gptq(32, 4, True, True),
        heads=True,
        vocab_size=136,
        **SIZES,
    )
    assert torch.equal(logits(load(packed, quantization="dequantize")), logits(load(plain)))
    want = logits(load(plain))
    assert float((logits(load(packed)) - want).norm() / want.norm()) < 0.1


NAMES = {
    "awq": ("awq", "awq_marlin", "auto_awq", "ipex", "moe_wna16", "inc"),
    "gptq": ("gptq", "gptq_marlin", "auto_gptq", "bitblas", "gptq_bitblas", "marlin", "ipex"),
    "marlin": ("marlin", "gptq_marlin"),
    "auto-round": ("inc", "intel/auto-round", "auto-round", "ipex", "gptq_marlin", "awq_marlin"),
    "qqq": ("qqq",),
    "hqq 4": ("hqq",),
    "torchao int8": ("torchao",),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_kernels_stand_for_the_checkpoints_they_read(name: str, tmp_path: Path) -> None:
    settings, quantise, sizes = FORMATS.get(name, FORMATS.get(f"{name} 4", FORMATS["marlin"]))
    packed, _ = write_pair(tmp_path, settings, quantise, **sizes)
    want = logits(load(packed))
    for given in NAMES[name]:
        assert torch.equal(logits(load(packed, quantization=given)), want)
    with pytest.raises(UsageError, match=f"does not fit .*quantised by {settings['quant_method']}"):
        load(packed, quantization="compressed-tensors")
    with pytest.raises(UsageError, match="tpu_int8 needs TPUs"):
        load(packed, quantization="tpu_int8")


SPELLINGS: dict[str, tuple[str, ...]] = {
    "awq": ("auto_awq", "awq_marlin"),
    "gptq": ("auto_gptq", "gptq_marlin", "gptq_bitblas", "ipex", "bitblas"),
    "auto-round": ("inc", "intel/auto-round"),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_method_of_another_name_is_the_same_format(name: str, tmp_path: Path) -> None:
    settings, quantise, sizes = FORMATS[name]
    packed, _ = write_pair(tmp_path, settings, quantise, **sizes)
    want = logits(load(packed))
    for method in SPELLINGS[name]:
        named = settings | {"quant_method": method}
        if method == "bitblas":
            named["checkpoint_format"] = "gptq"
        overrides = {"quantization_config": named}
        for given in (None, method.removeprefix("intel/")):
            found = load(packed, hf_overrides=overrides, quantization=given)
            assert torch.equal(logits(found), want), (method, given)


def test_a_kernel_s_name_may_be_that_of_its_layout(tmp_path: Path) -> None:
    settings, quantise, sizes = FORMATS["marlin 24"]
    packed, _ = write_pair(tmp_path, settings, quantise, **sizes)
    named = {key: value for key, value in settings.items() if key != "checkpoint_format"}
    overrides = {"quantization_config": named | {"quant_method": "gptq_marlin_24"}}
    assert torch.equal(logits(load(packed, hf_overrides=overrides)), logits(load(packed)))


def test_the_method_may_be_bitblas_too(tmp_path: Path) -> None:
    packed, _ = write_pair(tmp_path, *FORMATS["bitblas"][:2], **SIZES)
    want = logits(load(packed))
    overrides = {"quantization_config": BITBLAS | {"quant_method": "bitblas"}}
    for given in (None, "bitblas", "gptq", "gptq_bitblas"):
        found = load(packed, hf_overrides=overrides, quantization=given)
        assert torch.equal(logits(found), want), given


# Names of files beside config.json, whose settings need not name a method.
BESIDE = {
    "gptq": ("quantize_config.json",),
    "awq": ("quantize_config.json", "quant_config.json"),
    "awq of AutoAWQ": ("quant_config.json",),
}


@pytest.mark.parametrize("name", BESIDE)
def test_settings_may_be_in_a_file_of_their_own(name: str, tmp_path: Path) -> None:
    settings, quantise, sizes = FORMATS[name]
    packed, _ = write_pair(tmp_path, settings, quantise, **sizes)
    want, config = logits(load(packed)), json.loads((packed / "config.json").read_text())
    bare = config.pop("quantization_config")
    del bare["quant_method"]
    (packed / "config.json").write_text(json.dumps(config))
    for file in BESIDE[name]:
        (packed / file).write_text(json.dumps(bare))
        assert torch.equal(logits(load(packed)), want), file
        (packed / file).write_text("[]")
        with pytest.raises(CheckpointError, match=f"{file} does not hold a JSON object"):
            load(packed)
        (packed / file).unlink()


@pytest.mark.parametrize("name", ["bitsandbytes", "bitsandbytes nf4 64"])
def test_bitsandbytes_needs_no_name(name: str, tmp_path: Path) -> None:
    settings, quantise, sizes = FORMATS[name]
    packed, _ = write_pair(tmp_path, settings, quantise, **sizes)
    bare = {key: value for key, value in settings.items() if key != "quant_method"}
    found = load(packed, hf_overrides={"quantization_config": bare})
    assert torch.equal(logits(found), logits(load(packed)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({"quant_method": name}, f"quantised by {name}, which needs .*; use the unq")
            for name in ("tpu_int8", "neuron_quant", "humming", "deepspeedfp")
        ),
        *(
            ({"quant_method": name}, f"use --quantization {name} and --hf-overrides .*null")
            for name in ("experts_int8", "rtn", "int8", "fp8_per_block", "nf4", "q4_k")
        ),
        (
            {"quant_method": "nvfp4"},
            "if its weights are plain, use .*, else name what packed them, as modelopt or",
        ),
        ({"quant_method": "moe_wna16"}, "has to be what packed it: awq or gptq"),
        ({"quant_method": "fp_quant", "pseudoquantization": True}, "pseudoquantization True"),
        (BITBLAS | {"bits": 3}, "with bits 3; this build reads 2 or 4 or 8"),
        (BITBLAS | {"desc_act": True}, "with desc_act True; this build reads False"),
        ({"quant_method": 7}, "by an unnamed method"),
        (AWQ | {"version": "gemv_fast", "zero_point": False}, "zero_point"),
    ],
)
def test_names_that_no_format_has_are_one_line(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    packed, _ = write_pair(tmp_path, settings, lambda _, weight: ({"weight": weight}, weight))
    with pytest.raises(CheckpointError, match=message) as caught:
        load(packed)
    assert "\n" not in str(caught.value)


def test_a_plain_checkpoint_may_name_how_it_is_rounded(tmp_path: Path) -> None:
    """As ptpc_fp8 does, of which no tool stores anything else."""
    settings = {"quant_method": "ptpc_fp8", "activation_scheme": "dynamic"}
    packed, plain = write_pair(
        tmp_path, settings, lambda _, weight: ({"weight": weight}, weight), **SIZES
    )
    assert torch.equal(logits(load(packed)), logits(load(plain, quantization="ptpc_fp8")))


def test_pickled_forms_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_hqq = {"a.q_proj": {"W_q": torch.zeros(4), "nbits": 4}}
    module = types.ModuleType("torchao.quantization")
    tensor = type("Int8Tensor", (), {"__module__": module.__name__})
    for name in ("torchao", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(module, "Int8Tensor", tensor, raising=False)
    for method, held, message in (
        (hqq(4, 64), of_hqq, "by HQQ's own tool.* save_pretrained, as safetensors"),
        (
            torchao("Int8WeightOnlyConfig"),
            {"a.q_proj.weight": tensor()},
            r"a pickle of torchao\.quantization\.Int8Tensor.*as safetensors",
        ),
    ):
        directory = tmp_path / str(method["quant_method"])
        packed, _ = write_pair(directory, method, lambda _, x: ({"weight": x}, x), **SIZES)
        (packed / "model.safetensors").unlink()
        torch.save(held | {"rest": torch.zeros(30_000)}, packed / "qmodel.pt")
        with pytest.raises(CheckpointError, match=f"qmodel.pt is .*{message}"):
            load(packed)
