"""Every form of floats and integers with scales is worth what its format says, bit for bit.

The formats are those of this directory's own writers; test_packages.py compares with the packages'.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.integer_layouts import torchao_float8, torchao_int4, torchao_int8, torchao_intx
from tests.models.quantized_checkpoints import Quantise, scaled, write_pair
from tests.models.runner import load
from tests.models.stored_codes import (
    E4M3,
    FP4,
    INT4,
    Round,
    compressed,
    deepseek_v4,
    modelopt_awq,
    mx,
    nvfp4,
    round_by,
    round_by_powers,
    round_by_shift,
    round_mx,
    round_nvfp4,
    round_shifted,
    round_small,
    round_tokens,
    sparse,
    torchao_tiled,
    with_factors,
    with_zero_points,
    words,
)
from tests.models.test_quantized_checkpoints import SIZES, SQUARE, layers, logits
from vllm_lite.errors import CheckpointError
from vllm_lite.layers.attention import ScaledCacheAttention

Case = tuple[dict[str, Any], Quantise, Round | None]
INT8 = torch.int8
FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
FLOAT8: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "channel"}
INT: dict[str, Any] = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
TOKENS: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
INT_TOKENS = TOKENS | {"type": "int"}
TENSOR = TOKENS | {"strategy": "tensor", "dynamic": False}
GROUPS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
FLOAT4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
MX4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
BLOCK = FLOAT8 | {"strategy": "block", "block_structure": [128, 128]}
AS_NVFP4 = {"format": "nvfp4-pack-quantized"}
AS_MXFP6 = "mxfp6-pack-quantized"
AS_MXFP4 = {"format": "mxfp4-pack-quantized"}
ROUND8, ROUND127 = round_tokens(448.0), round_tokens(127.0)
CASES: dict[str, Case] = {
    "fp8": (FP8, scaled(E4M3, "tensor", False), ROUND8),
    "fp8 static": (
        FP8 | {"activation_scheme": "static"},
        scaled(E4M3, "tensor", True),
        round_by(0.05, 448.0),
    ),
    "fp8 blocks": (
        FP8 | {"weight_block_size": [128, 128]},
        scaled(E4M3, "block", False),
        round_tokens(448.0, 128),
    ),
    "fp8 blocks by powers": (
        FP8 | {"weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
        scaled(E4M3, "block", False),
        round_by_powers(128),
    ),
    "fp8 blocks with fp4": (
        FP8 | {"weight_block_size": [128, 128], "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
        deepseek_v4(),
        round_by_powers(128),
    ),
    "fp8 by powers": (
        FP8 | {"scale_fmt": "ue8m0"},
        scaled(E4M3, "tensor", False),
        round_by_powers(),
    ),
    "fbgemm_fp8": ({"quant_method": "fbgemm_fp8"}, scaled(E4M3, "channel", False), ROUND8),
    "fbgemm_fp8 bounded": (
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 0.75},
        scaled(E4M3, "channel", False),
        lambda x: ROUND8(x.clamp(-0.75, 0.75)),
    ),
    "W8A8 float": (compressed(FLOAT8, TOKENS), scaled(E4M3, "channel", False), ROUND8),
    "W8A8 float tensor": (
        compressed(FLOAT8 | {"strategy": "tensor"}, TENSOR),
        scaled(E4M3, "tensor", True),
        round_by(0.05, 448.0),
    ),
    "W8A16 float": (compressed(FLOAT8), scaled(E4M3, "channel", False), None),
    "W8A8 int": (compressed(INT, INT_TOKENS), scaled(INT8, "channel", False), ROUND127),
    "W8A8 int static": (
        compressed(INT, TENSOR | {"type": "int"}),
        scaled(INT8, "channel", True),
        round_by(0.05, 127.0),
    ),
    "W8A8 int static asymmetric": (
        compressed(INT, TENSOR | {"type": "int", "symmetric": False}),
        with_zero_points(scaled(INT8, "channel", True)),
        round_by_shift(0.05, -20),
    ),
    "W8A8 int asymmetric": (
        compressed(INT, INT_TOKENS | {"symmetric": False}),
        scaled(INT8, "channel", False),
        round_shifted,
    ),
    "W4A16": (compressed(GROUPS), words(4, 32, True), None),
    "W4A16 asymmetric": (compressed(GROUPS | {"symmetric": False}), words(4, 32, False), None),
    "W4A16 act-order": (
        compressed(GROUPS | {"actorder": "group"}),
        words(4, 32, True, is_ordered=False),
        None,
    ),
    "W4A16 groups of 8": (compressed(GROUPS | {"group_size": 8}), words(4, 8, True), None),
    "W8A16": (compressed(GROUPS | {"num_bits": 8}), words(8, 32, True), None),
    "W3A16": (compressed(GROUPS | {"num_bits": 3}), words(3, 32, True), None),
    "W3A16 before": (
        compressed(GROUPS | {"num_bits": 3}),
        words(3, 32, True, is_dense=False),
        None,
    ),
    "W5A16": (
        compressed(GROUPS | {"num_bits": 5, "symmetric": False}),
        words(5, 32, False),
        None,
    ),
    "W7A16": (
        compressed(GROUPS | {"num_bits": 7, "symmetric": False}),
        words(7, 32, False),
        None,
    ),
    "W7A16 before": (
        compressed(GROUPS | {"num_bits": 7}),
        words(7, 32, True, is_dense=False),
        None,
    ),
    "W1A16": (compressed(GROUPS | {"num_bits": 1}), words(1, 32, True), None),
    "2:4 float": (
        compressed(FLOAT8, TOKENS, sparsity_config={"format": "sparse-24-bitmask"}),
        sparse(scaled(E4M3, "channel", False)),
        ROUND8,
    ),
    "2:4 int": (
        compressed(INT, INT_TOKENS, sparsity_config={"format": "sparse-24-bitmask"}),
        sparse(scaled(INT8, "channel", False)),
        ROUND127,
    ),
    "2:4": (
        {
            "quant_method": "compressed-tensors",
            "sparsity_config": {"format": "sparse-24-bitmask"},
        },
        sparse(lambda _, weight: ({"weight": weight}, weight)),
        None,
    ),
    "MXFP6": (
        compressed(MX4 | {"num_bits": 6}, MX4 | {"num_bits": 6, "dynamic": True}, format=AS_MXFP6),
        mx("fp6_e2m3", "weight_packed"),
        round_mx("fp6_e2m3"),
    ),
    "W4A8": (
        compressed(GROUPS, INT_TOKENS, format="pack-quantized"),
        words(4, 32, True),
        ROUND127,
    ),
    "W4AFP8": (compressed(GROUPS, TOKENS, format="pack-quantized"), words(4, 32, True), ROUND8),
    "W4A4": (
        compressed(GROUPS, INT_TOKENS | {"num_bits": 4}, format="pack-quantized"),
        words(4, 32, True),
        round_small(INT4),
    ),
    "W4A4 groups": (
        compressed(GROUPS, GROUPS | {"dynamic": True}, format="pack-quantized"),
        words(4, 32, True),
        round_small(INT4, 32),
    ),
    "W4AFP4 tokens": (
        compressed(GROUPS, TOKENS | {"num_bits": 4}, format="pack-quantized"),
        words(4, 32, True),
        round_small(FP4),
    ),
    "NVFP4A16": (compressed(FLOAT4, **AS_NVFP4), nvfp4(True, False), None),
    "NVFP4": (
        compressed(FLOAT4, FLOAT4 | {"dynamic": "local"}, **AS_NVFP4),
        nvfp4(True, True),
        round_nvfp4,
    ),
    "MXFP4A16": (compressed(MX4, **AS_MXFP4), mx("fp4", "weight_packed"), None),
    "MXFP4": (
        compressed(MX4, MX4 | {"dynamic": True}, **AS_MXFP4),
        mx("fp4", "weight_packed"),
        round_mx("fp4"),
    ),
    "MXFP8": (
        compressed(
            MX4 | {"num_bits": 8}, MX4 | {"num_bits": 8, "dynamic": True}, format="mxfp8-quantized"
        ),
        mx("fp8"),
        round_mx("fp8"),
    ),
    "float blocks": (
        compressed(BLOCK, TOKENS | {"strategy": "group", "group_size": 128}),
        lambda name, weight: _renamed(scaled(E4M3, "block", False)(name, weight)),
        round_tokens(448.0, 128),
    ),
}


def torchao(name: str, **data: Any) -> dict[str, Any]:
    kind = {"_type": name, "_data": data, "_version": 2}
    return {"quant_method": "torchao", "quant_type": {"default": kind}}


PER_TENSOR = {"_type": "PerTensor", "_data": {}}
PER_ROW = {"_type": "PerRow", "_data": {"dim": -1}}
PER_BLOCK = [
    {"_type": "PerBlock", "_data": {"block_size": sides}} for sides in ([1, 128], [128] * 2)
]
GROUPS_OF_32 = {"_type": "PerGroup", "_data": {"group_size": 32}}
BY_FLOAT8 = "Float8DynamicActivationFloat8WeightConfig"
INTX = torchao(
    "Int8DynamicActivationIntxWeightConfig",
    weight_dtype={"_type": "torch.dtype", "_data": "int4"},
    weight_granularity=GROUPS_OF_32,
    act_mapping_type={"_type": "MappingType", "_data": "ASYMMETRIC"},
)
CASES |= {
    "torchao int8 by int8": (
        torchao("Int8DynamicActivationInt8WeightConfig", granularity=PER_ROW),
        torchao_int8,
        ROUND127,
    ),
    "torchao int4 by int8": (INTX, torchao_intx(32, 4, False), round_shifted),
    "torchao float8 by float8": (
        torchao(BY_FLOAT8, granularity=[PER_ROW, PER_ROW], activation_value_ub=0.75),
        torchao_float8(scaled(E4M3, "channel", False)),
        lambda x: ROUND8(x.clamp(-0.75, 0.75)),
    ),
    "torchao float8 of tensors": (
        torchao(BY_FLOAT8, granularity=[PER_TENSOR, PER_TENSOR]),
        torchao_float8(scaled(E4M3, "tensor", False)),
        ROUND8,
    ),
    "torchao float8 blocks": (
        torchao(BY_FLOAT8, granularity=PER_BLOCK),
        torchao_float8(scaled(E4M3, "block", False)),
        round_tokens(448.0, 128),
    ),
}

FP4X2 = {"_type": "torch.dtype", "_data": "float4_e2m1fn_x2"}
FLOOR = {"_type": "ScaleCalculationMode", "_data": "FLOOR"}
CONVERT = {"_type": "QuantizationStep", "_data": "CONVERT"}
BY_MX = "MXDynamicActivationMXWeightConfig"
BY_NVFP4 = "NVFP4DynamicActivationNVFP4WeightConfig"
BARE = {"use_dynamic_per_tensor_scale": False}
CASES |= {
    "torchao mxfp8": (torchao(BY_MX), torchao_tiled(mx("fp8")), round_by_powers(32)),
    "torchao mxfp8 down": (
        torchao(BY_MX, scaling_mode=FLOOR),
        torchao_tiled(mx("fp8")),
        round_mx("fp8"),
    ),
    "torchao mxfp4": (
        torchao(BY_MX, weight_dtype=FP4X2, activation_dtype=FP4X2),
        torchao_tiled(mx("fp4")),
        round_by_powers(32, FP4),
    ),
    "torchao mxfp4 down": (
        torchao(BY_MX, weight_dtype=FP4X2, activation_dtype=FP4X2, scaling_mode=FLOOR),
        torchao_tiled(mx("fp4")),
        round_mx("fp4"),
    ),
    "torchao nvfp4": (torchao("NVFP4WeightOnlyConfig"), torchao_tiled(nvfp4(False, False)), None),
    "torchao nvfp4 by nvfp4": (
        torchao(BY_NVFP4, use_triton_kernel=True, step=None),
        torchao_tiled(nvfp4(False, False)),
        round_small(FP4, 16),
    ),
    "torchao nvfp4 static": (
        torchao(BY_NVFP4, step=CONVERT, **BARE),
        torchao_tiled(nvfp4(False, True)),
        round_nvfp4,
    ),
    "torchao nvfp4 without factors": (
        torchao(BY_NVFP4, **BARE),
        torchao_tiled(nvfp4(False, False, is_bare=True)),
        lambda x: round_nvfp4(x, 1.0),
    ),
}

MODELOPT: dict[str, Any] = {"quant_method": "modelopt", "ignore": ["lm_head"]}
STATIC8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
DYNAMIC8 = {"dtype": "fp8_e4m3", "qscheme": "per_channel", "is_dynamic": True}
CHANNEL8 = {"dtype": "int8", "qscheme": "per_channel", "symmetric": True}


def quark(weight: Any, inputs: Any = None, **settings: Any) -> dict[str, Any]:
    whole = {"weight": weight, "input_tensors": inputs}
    return {
        "quant_method": "quark",
        "global_quant_config": whole,
        "exclude": ["lm_head"],
    } | settings


def ocp(dtype: str, **changes: Any) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "qscheme": "per_group",
        "group_size": 32,
        "scale_format": "e8m0",
        **changes,
    }


def _flat(quantise: Quantise) -> Quantise:
    """Scales as a row of numbers."""

    def flat(name: str, weight: torch.Tensor) -> Any:
        stored, worth = quantise(name, weight)
        return stored | {"weight_scale": stored["weight_scale"].flatten()}, worth

    return flat


def _with_zeros(quantise: Quantise) -> Quantise:
    """Weights' codes of zero, which are all zero."""

    def quantise_with(name: str, weight: torch.Tensor) -> Any:
        stored, worth = quantise(name, weight)
        return stored | {"weight_zero_point": torch.zeros(len(weight), dtype=INT8)}, worth

    return quantise_with


def _spread(name: str, weight: torch.Tensor) -> Any:
    stored, worth = scaled(E4M3, "block", False)(name, weight)
    scales = stored["weight_scale_inv"]
    return {"weight": stored["weight"], "weight_scale": scales[:, None, :, None]}, worth


def _second(name: str, weight: torch.Tensor) -> Any:
    stored, worth = nvfp4(False, True)(name, weight)
    return stored | {"input_scale_2": stored.pop("input_scale")}, worth


CASES |= {
    "modelopt FP8": (
        MODELOPT | {"quant_algo": "FP8"},
        scaled(E4M3, "tensor", True),
        round_by(0.05, 448.0),
    ),
    "modelopt channels": (
        MODELOPT | {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
        _flat(scaled(E4M3, "channel", False)),
        ROUND8,
    ),
    "modelopt blocks": (
        MODELOPT | {"quant_algo": "fp8_pb_wo"},
        _spread,
        round_tokens(448.0, 128),
    ),
    "modelopt NVFP4": (
        MODELOPT | {"quant_algo": "NVFP4", "group_size": 16},
        nvfp4(False, True),
        round_nvfp4,
    ),
    "modelopt NVFP4_AWQ": (
        MODELOPT | {"quant_algo": "NVFP4_AWQ", "group_size": 16},
        nvfp4(False, True),
        round_nvfp4,
    ),
    "modelopt W4A16_AWQ": (
        MODELOPT | {"quant_algo": "W4A16_AWQ", "group_size": 32, "has_zero_point": False},
        modelopt_awq(32),
        None,
    ),
    "modelopt W4A8_AWQ": (
        MODELOPT | {"quant_algo": "W4A8_AWQ", "group_size": 32, "has_zero_point": False},
        modelopt_awq(32, has_input_scale=True),
        round_by(0.05, 448.0),
    ),
    "modelopt W4A16": (MODELOPT | {"quant_algo": "W4A16_NVFP4"}, nvfp4(False, False), None),
    "modelopt MXFP8": (MODELOPT | {"quant_algo": "MXFP8"}, mx("fp8"), round_mx("fp8")),
    "mxfp8": ({"quant_method": "mxfp8"}, mx("fp8"), round_mx("fp8")),
    "quark fp8": (
        quark(STATIC8, STATIC8),
        scaled(E4M3, "tensor", True),
        round_by(0.05, 448.0),
    ),
    "quark fp8 tokens": (
        quark(STATIC8 | {"qscheme": "per_channel"}, DYNAMIC8),
        _flat(scaled(E4M3, "channel", False)),
        ROUND8,
    ),
    "quark int8": (
        quark(CHANNEL8, CHANNEL8 | {"is_dynamic": True}),
        _flat(scaled(INT8, "channel", False)),
        ROUND127,
    ),
    "quark int8 static": (
        quark(CHANNEL8, CHANNEL8 | {"qscheme": "per_tensor"}),
        with_zero_points(_with_zeros(_flat(scaled(INT8, "channel", True))), 0),
        round_by(0.05, 127.0),
    ),
    "quark int8 shifted": (
        quark(CHANNEL8, CHANNEL8 | {"qscheme": "per_tensor", "symmetric": False}),
        with_zero_points(_with_zeros(_flat(scaled(INT8, "channel", True)))),
        round_by_shift(0.05, -20),
    ),
    "quark fp4": (quark(ocp("fp4"), ocp("fp4", is_dynamic=True)), mx("fp4"), round_mx("fp4")),
    "quark fp4, fp6": (
        quark(ocp("fp4"), ocp("fp6_e2m3", is_dynamic=True)),
        mx("fp4"),
        round_mx("fp6_e2m3"),
    ),
    "quark fp4, fp8": (quark(ocp("fp4"), DYNAMIC8), mx("fp4"), ROUND8),
    "quark fp6_e2m3": (
        quark(ocp("fp6_e2m3"), ocp("fp6_e2m3", is_dynamic=True)),
        mx("fp6_e2m3"),
        round_mx("fp6_e2m3"),
    ),
    "quark fp6_e3m2": (quark([ocp("fp6_e3m2")]), mx("fp6_e3m2"), None),
    "quark nvfp4": (
        quark(
            [ocp("fp4", group_size=16), STATIC8],
            [ocp("fp4", group_size=16, is_dynamic=True), STATIC8],
        ),
        _second,
        round_nvfp4,
    ),
}


def _renamed(pair: Any) -> Any:
    stored, worth = pair
    return {name.removesuffix("_inv"): part for name, part in stored.items()}, worth


def _pair(name: str, directory: Path, **changes: Any) -> tuple[Path, Path]:
    settings, quantise, _ = CASES[name]
    return write_pair(directory, settings, quantise, **(SQUARE if "blocks" in name else SIZES))


@pytest.mark.parametrize("name", CASES)
def test_values_are_exact(name: str, tmp_path: Path) -> None:
    packed, plain = _pair(name, tmp_path)
    exact, whole = layers(load(plain)), layers(load(packed, quantization="dequantize"))
    for layer, module in whole.items():
        assert torch.equal(module.kernel.weight.data, exact[layer].kernel.weight.data), layer


@pytest.mark.parametrize("name", CASES)
def test_logits_are_a_plain_model_s_with_the_same_rounding(name: str, tmp_path: Path) -> None:
    packed, plain = _pair(name, tmp_path)
    rounded, model = CASES[name][2], load(packed)
    exact = load(plain)
    for layer, module in layers(model).items():
        x = torch.randn(5, 64 if "down" in layer and "blocks" not in name else module._inputs.size)
        other = layers(exact)[layer]
        if any(weight.format[:1] in "Q" for weight in module.kernel.stored):
            continue  # by GGUF's types, whose kernels round activations
        want = other.kernel(x if rounded is None else rounded(x))
        torch.testing.assert_close(module.kernel(x), want, rtol=1e-4, atol=1e-4)
        if rounded is not None:
            kernel = other.kernel
            other.kernel = lambda x, kernel=kernel, rounded=rounded: kernel(rounded(x))
    if "ue8m0" not in CASES[name][0].values() or name == "fp8 by powers":
        # Of the others an input lies between two codes, by chance.
        torch.testing.assert_close(logits(model), logits(exact), rtol=1e-4, atol=1e-4)


def test_settings_may_have_compressed_tensors_older_name(tmp_path: Path) -> None:
    packed, _ = _pair("W8A8 float", tmp_path)
    want, config = logits(load(packed)), json.loads((packed / "config.json").read_text())
    config["compression_config"] = config.pop("quantization_config")
    (packed / "config.json").write_text(json.dumps(config))
    assert torch.equal(logits(load(packed)), want)


NAMES = {
    "fp8 blocks": ("fp8", "deepseek_v4_fp8"),
    "modelopt NVFP4": ("modelopt", "modelopt_fp4", "petit_nvfp4"),
    "modelopt MXFP8": ("modelopt_mxfp8",),
    "mxfp8": ("mxfp8",),
    "fbgemm_fp8": ("fbgemm_fp8",),
    "quark fp8": ("quark",),
    "NVFP4": ("compressed-tensors",),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_kernels_stand_for_the_checkpoints_they_read(name: str, tmp_path: Path) -> None:
    packed, _ = _pair(name, tmp_path)
    want = logits(load(packed))
    for given in NAMES[name]:
        assert torch.equal(logits(load(packed, quantization=given)), want)


def test_layers_of_a_quark_checkpoint_are_mixed(tmp_path: Path) -> None:
    own = {"*down_proj": {"weight": STATIC8, "input_tensors": STATIC8}}
    settings = quark(ocp("fp4"), ocp("fp4", is_dynamic=True), layer_quant_config=own)

    def quantise(name: str, weight: torch.Tensor) -> Any:
        kind = scaled(E4M3, "tensor", True) if "down_proj" in name else mx("fp4")
        return kind(name, weight)

    packed, plain = write_pair(tmp_path, settings, quantise, **SIZES)
    exact, model = layers(load(plain)), layers(load(packed, quantization="dequantize"))
    for layer, module in model.items():
        assert torch.equal(module.kernel.weight.data, exact[layer].kernel.weight.data), layer


def test_torchao_chooses_by_name_by_pattern_or_for_all(tmp_path: Path) -> None:
    chosen = {
        "_default": torchao("Int8WeightOnlyConfig")["quant_type"]["default"],
        "model.layers.0.mlp.down_proj": INTX["quant_type"]["default"],
        "model.layers.0.self_attn.o_proj.weight": None,
        r"re:.*\.(gate|up)_proj": torchao("Float8WeightOnlyConfig")["quant_type"]["default"],
    }

    def quantise(name: str, weight: torch.Tensor) -> Any:
        if "o_proj" in name:
            return {"weight": weight}, weight
        if "mlp" in name and "down" not in name:
            return torchao_float8(scaled(E4M3, "channel", False))(name, weight)
        return (torchao_intx(32, 4, True) if "down" in name else torchao_int8)(name, weight)

    keys = {"FqnToConfig": "fqn_to_config", "ModuleFqnToConfig": "module_fqn_to_config"}
    for kind, key in keys.items():
        settings = torchao(kind, **{key: chosen})
        packed, plain = write_pair(tmp_path / kind, settings, quantise, **SIZES)
        exact, model = layers(load(plain)), layers(load(packed, quantization="dequantize"))
        for layer, module in model.items():
            assert torch.equal(module.kernel.weight.data, exact[layer].kernel.weight.data), layer


@pytest.mark.parametrize("algorithm", ["NVFP4", "NVFP4_AWQ", "W4A16_AWQ", "W4A8_AWQ"])
def test_modelopt_mixes_by_name_and_reads_a_file_beside(algorithm: str, tmp_path: Path) -> None:
    settings, of_mlp, rounded = CASES[f"modelopt {algorithm}"]
    own = {key: value for key, value in settings.items() if key not in MODELOPT}
    if algorithm.endswith("AWQ"):
        of_mlp, own["pre_quant_scale"] = with_factors(of_mlp), True
    names = [f"model.layers.0.mlp.{part}_proj" for part in ("gate", "up", "down")]
    named: dict[str, Any] = dict.fromkeys(names, own)
    others = [f"model.layers.0.self_attn.{part}_proj" for part in "qkvo"]
    named |= {name: {"quant_algo": "FP8"} for name in others}

    def quantise(name: str, weight: torch.Tensor) -> Any:
        stored, worth = (of_mlp if "mlp" in name else scaled(E4M3, "tensor", True))(name, weight)
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            stored[f"{name[-13]}_scale"] = torch.tensor(1.5)
        return stored, worth

    packed, plain = write_pair(tmp_path, {}, quantise, **SIZES)
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": named}
    mixed["kv_cache_quant_algo"] = "FP8"
    (packed / "hf_quant_config.json").write_text(json.dumps({"quantization": mixed}))
    exact, model = layers(load(plain)), layers(load(packed, quantization="dequantize"))
    for layer, module in model.items():
        assert torch.equal(module.kernel.weight.data, exact[layer].kernel.weight.data), layer
    x = torch.randn(5, SIZES["hidden_size"])  # of a layer without factors of its inputs
    (name,) = (layer for layer in model if layer.endswith("gate_up_proj"))
    want = exact[name].kernel(x if rounded is None else rounded(x))
    torch.testing.assert_close(layers(load(packed))[name].kernel(x), want, rtol=1e-4, atol=1e-4)
    with_scales = load(packed, kv_cache_dtype="fp8").modules()
    assert any(isinstance(module, ScaledCacheAttention) for module in with_scales)


ORDERS: dict[str, tuple[Any, ...]] = {
    "W4A16 act-order": ("dynamic", "GROUP", True),
    "W4A16": ("static", "weight", False, None),
}


@pytest.mark.parametrize("name", ORDERS)
def test_orders_of_inputs_have_other_names(name: str, tmp_path: Path) -> None:
    packed, _ = _pair(name, tmp_path)
    want = logits(load(packed))
    for order in ORDERS[name]:
        settings = compressed(GROUPS | {"actorder": order})
        found = load(packed, hf_overrides={"quantization_config": settings})
        assert torch.equal(logits(found), want), order


CACHE = TENSOR | {"dynamic": False}
CACHES: dict[str, dict[str, Any]] = {
    "compressed-tensors": {"quant_method": "compressed-tensors", "kv_cache_scheme": CACHE},
    "compressed-tensors' attention": compressed(
        FLOAT8,
        config_groups={
            "a": {"targets": ["re:.*self_attn$"], "weights": None, "input_activations": CACHE}
        },
    ),
    "modelopt": {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"},
}


@pytest.mark.parametrize("name", CACHES)
def test_the_cache_alone_may_be_quantised(name: str, tmp_path: Path) -> None:
    def quantise(name: str, weight: torch.Tensor) -> Any:
        scale = {"../k_scale": torch.tensor(1.5), "../v_scale": torch.tensor(0.5)}
        return {"weight": weight} | (scale if "o_proj" in name else {}), weight

    packed, plain = write_pair(tmp_path, CACHES[name], quantise, **SIZES)
    assert torch.equal(logits(load(packed)), logits(load(plain)))
    with_scales = load(packed, kv_cache_dtype="fp8").modules()
    assert any(isinstance(module, ScaledCacheAttention) for module in with_scales)


def test_scales_of_inputs_that_no_setting_uses_are_left(tmp_path: Path) -> None:
    packed, plain = write_pair(tmp_path, CASES["NVFP4A16"][0], nvfp4(True, True), **SIZES)
    assert torch.equal(logits(load(packed, quantization="dequantize")), logits(load(plain)))


@pytest.mark.parametrize("name", [f"modelopt {n}_AWQ" for n in ("W4A16", "W4A8", "NVFP4")])
def test_inputs_may_have_factors(name: str, tmp_path: Path) -> None:
    settings, quantise, rounded = CASES[name]
    packed, plain = write_pair(tmp_path, settings, with_factors(quantise), **SIZES)
    exact, whole = layers(load(plain)), layers(load(packed, quantization="dequantize"))
    for layer, module in whole.items():
        assert torch.equal(module.kernel.weight.data, exact[layer].kernel.weight.data), layer
    for layer, module in layers(load(packed)).items():
        x = torch.randn(5, module._inputs.size)
        factors = torch.ones(x.shape[1])
        if layer.endswith(("o_proj", "down_proj")):
            factors = torch.linspace(0.5, 2, x.shape[1]).bfloat16().float()
        near = x if rounded is None else rounded(x * factors) / factors
        want = exact[layer].kernel(near)
        torch.testing.assert_close(module.kernel(x), want, rtol=1e-4, atol=1e-4)


def test_factors_of_experts_inputs_are_refused_by_name(tmp_path: Path) -> None:
    settings, quantise, _ = CASES["modelopt W4A16_AWQ"]
    sizes = {"hidden_size": 64, "moe_intermediate_size": 64, "head_dim": 32}
    for name, kind in (("with", with_factors(quantise)), ("without", quantise)):
        packed, plain = write_pair(
            tmp_path / name, settings, kind, "qwen3_moe", left_plain="gate.weight", **sizes
        )
        if name == "with":
            with pytest.raises(CheckpointError, match=r"experts.*pre_quant_scale.* has no place"):
                load(packed)
        else:
            torch.testing.assert_close(logits(load(packed)), logits(load(plain)))


TORCHAO: dict[str, tuple[dict[str, Any], Quantise]] = {
    "int8_weight_only": (torchao("Int8WeightOnlyConfig"), torchao_int8),
    "int4_weight_only": (torchao("Int4WeightOnlyConfig", group_size=32), torchao_int4(32)),
    "int8_dynamic_activation_int8_weight": CASES["torchao int8 by int8"][:2],
    "float8_weight_only": (
        torchao("Float8WeightOnlyConfig"),
        torchao_float8(scaled(E4M3, "channel", False)),
    ),
    "float8_dynamic_activation_float8_weight": CASES["torchao float8 of tensors"][:2],
}


@pytest.mark.parametrize("name", TORCHAO)
def test_torchao_functions_are_its_classes(name: str, tmp_path: Path) -> None:
    settings, quantise = TORCHAO[name]
    packed, _ = write_pair(tmp_path, settings, quantise, **SIZES)
    want = logits(load(packed))
    before = {"quant_method": "torchao", "quant_type": name}
    before["quant_type_kwargs"] = {"group_size": 32} if "int4" in name else {}
    assert torch.equal(logits(load(packed, hf_overrides={"quantization_config": before})), want)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (compressed(FLOAT8 | {"dynamic": True}), "weights.dynamic True"),
        (compressed(FLOAT8 | {"num_bits": 5}, TOKENS), "weights.num_bits 5"),
        (compressed(GROUPS | {"group_size": 0}), "weights.group_size 0"),
        (compressed(GROUPS | {"num_bits": 9}), "weights.num_bits 9"),
        (compressed(GROUPS) | {"ignore": ["re:("]}, "pattern"),
        (compressed(FLOAT8, TOKENS | {"type": "complex"}), "input_activations.type"),
        (compressed(FLOAT8 | {"num_bits": 4}, TOKENS), "weights.strategy 'channel'"),
        ({"quant_method": "compressed-tensors"}, "no config_groups"),
        (
            compressed(
                FLOAT8, config_groups={"a": {"targets": ["LlamaAttention"], "weights": FLOAT8}}
            ),
            "the target 'LlamaAttention', a class",
        ),
        (
            compressed(FLOAT8) | {"kv_cache_scheme": TENSOR | {"dynamic": "often"}},
            "kv_cache_scheme.dynamic 'often'",
        ),
        (compressed(FLOAT8, TENSOR | {"symmetric": False}), "input_activations.symmetric False"),
        (compressed(GROUPS | {"actorder": "sideways"}), "weights.actorder 'sideways'"),
        (compressed(FLOAT8 | {"actorder": "group"}), "weights.actorder with float-quantized"),
        (compressed(GROUPS, TENSOR | {"num_bits": 4}), "with static scales 4; this build reads 8"),
        (
            compressed(GROUPS, FLOAT4 | {"type": "int"}),
            r"input_activations with tensor_group \('int', 4\)",
        ),
        (
            compressed(FLOAT8, config_groups={"a": {"targets": ["Linear"], "weights": None}}),
            "no weights for the target 'Linear'",
        ),
        (FP8 | {"scale_fmt": "e5"}, "scale_fmt 'e5'"),
        (
            FP8 | {"scale_fmt": "ue8m0", "activation_scheme": "static"},
            "scale_fmt with static scales 'ue8m0'",
        ),
        (FP8 | {"expert_dtype": "fp5"}, "expert_dtype 'fp5'; this build reads None or 'fp8' or"),
        (FP8 | {"moe_quant_algo": "NVFP4"}, "moe_quant_algo 'NVFP4'"),
        (FP8 | {"kv_cache_scheme": "often"}, "kv_cache_scheme 'often'"),
        (MODELOPT | {"quant_algo": "NVFP4_SVD"}, "quant_algo 'NVFP4_SVD'.*NVFP4_AWQ.*W4A8_AWQ"),
        (MODELOPT | {"quant_algo": None}, "quant_algo"),
        (torchao("Float8StaticActivationFloat8WeightConfig"), "quant_type 'Float8Static"),
        (torchao(BY_FLOAT8, activation_value_lb=0.1), "activation_value_lb 0.1"),
        (torchao("Int8WeightOnlyConfig", granularity=PER_TENSOR), "rows of granularity None"),
        (torchao("IntxWeightOnlyConfig", weight_dtype="int9"), "weight_dtype 'int9'"),
        (torchao(BY_MX, block_size=16), "block_size 16; this build reads 32"),
        (torchao(BY_MX, weight_dtype="fp6_e2m3"), "weight_dtype 'fp6_e2m3'"),
        (torchao(BY_MX, activation_dtype=FP4X2), "activation_dtype 'float4_e2m1fn_x2'"),
        (torchao(BY_MX, scaling_mode="EVEN"), "scaling_mode 'EVEN'"),
        (
            torchao(BY_MX, weight_dtype=FP4X2, activation_dtype=FP4X2, scaling_mode="CEIL"),
            "scaling_mode 'CEIL'; this build reads 'RCEIL' or 'FLOOR'",
        ),
        (torchao(BY_NVFP4, step="prepare"), "step 'prepare'"),
        (torchao("NVFP4WeightOnlyConfig", use_dynamic_per_tensor_scale=1), "per_tensor_scale 1"),
        (
            torchao("Float8DynamicActivationInt4WeightConfig"),
            "int4_packing_format 'preshuffled'; this build reads 'plain'",
        ),
        (FP8 | {"weight_block_size": [64, 40]}, r"weight_block_size \[64, 40\]"),
        (FP8 | {"activation_scheme": "often"}, "activation_scheme 'often'"),
    ],
)
def test_settings_that_cannot_be_read_are_one_line(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    packed, _ = write_pair(tmp_path, settings, lambda _, weight: ({"weight": weight}, weight))
    with pytest.raises(CheckpointError, match=message) as caught:
        load(packed)
    assert "\n" not in str(caught.value)


def test_groups_of_layers_are_unlike_each_other_and_patterns_choose(tmp_path: Path) -> None:
    """Rules for names go before those for all, and what is to be ignored before either."""
    settings = compressed(FLOAT8, TOKENS)
    settings["config_groups"] |= {
        "mlp": {"targets": ["re:.*mlp.*"], "weights": GROUPS, "format": "pack-quantized"},
        "o": {"targets": ["model.layers.0.self_attn.o_proj"], "weights": INT},
    }
    settings["config_groups"]["o"]["format"] = "int-quantized"
    settings |= {"format": "mixed-precision", "ignore": ["re:.*down_proj", "lm_head"]}

    def quantise(name: str, weight: torch.Tensor) -> Any:
        if "down_proj" in name:
            return {"weight": weight}, weight
        if "mlp" in name:
            return words(4, 32, True)(name, weight)
        return scaled(INT8 if "o_proj" in name else E4M3, "channel", False)(name, weight)

    packed, plain = write_pair(tmp_path, settings, quantise, **SIZES)
    exact, model = layers(load(plain)), layers(load(packed, quantization="dequantize"))
    for layer, module in model.items():
        assert torch.equal(module.kernel.weight.data, exact[layer].kernel.weight.data), layer
    formats = {
        name: module.kernel.stored[0].format for name, module in layers(load(packed)).items()
    }
    assert len(set(formats.values())) == 4, formats


def test_fused_layers_of_different_forms_are_one_error(tmp_path: Path) -> None:
    settings = compressed(FLOAT8, TOKENS)
    settings["config_groups"]["k"] = {"targets": ["re:.*k_proj"], "weights": FLOAT8}
    packed, _ = write_pair(tmp_path, settings, scaled(E4M3, "channel", False), **SIZES)
    with pytest.raises(
        CheckpointError,
        match=r"q_proj \(.*token.*\) and .*k_proj \(.*\) are fused but quantised unlike",
    ):
        load(packed)
