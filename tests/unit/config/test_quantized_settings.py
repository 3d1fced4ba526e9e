"""Settings of quantised checkpoints, as published ones have them: read, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from vllm_lite.config.quantized.fp8 import TENSOR
from vllm_lite.config.quantized.in_flight import in_flight
from vllm_lite.config.quantized.registry import READERS, read_scheme
from vllm_lite.config.quantized.schemes import PackedIntegers, Scheme, StoredCodes
from vllm_lite.errors import CheckpointError, UsageError

Settings = dict[str, Any]


def scheme(settings: Settings) -> Scheme:
    found = read_scheme("there", {"quantization_config": settings})
    assert found is not None
    return found


def compressed(weights: Settings, inputs: Settings | None = None, **settings: Any) -> Settings:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    groups = {"group_0": group | {"output_activations": None}}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": groups,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.13.0",
    } | settings


def quark(weight: Any, inputs: Any = None, **settings: Any) -> Settings:
    whole = {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None}
    return {
        "quant_method": "quark",
        "algo_config": None,
        "exclude": ["lm_head"],
        "export": {"kv_cache_group": [], "pack_method": "reorder"},
        "global_quant_config": whole,
        "layer_quant_config": {},
        "layer_type_quant_config": {},
    } | settings


def modelopt(algorithm: str, **settings: Any) -> Settings:
    nested = {"quant_algo": algorithm, "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    return {"producer": {"name": "modelopt"}, "quantization": nested | settings} | {
        "quant_method": "modelopt"
    }


def torchao(name: str, **data: Any) -> Settings:
    kind = {"_type": name, "_version": 2, "_data": data}
    return {"quant_method": "torchao", "quant_type": {"default": kind}, "quant_type_kwargs": {}}


AWQ: Settings = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "version": "gemm",
    "zero_point": True,
}
GPTQ: Settings = {
    "quant_method": "gptq",
    "bits": 4,
    "damp_percent": 0.1,
    "desc_act": True,
    "group_size": 128,
    "sym": True,
    "true_sequential": True,
}
FP8: Settings = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
}
FLOAT8: Settings = {
    "actorder": None,
    "block_structure": None,
    "dynamic": False,
    "group_size": None,
    "num_bits": 8,
    "observer": "minmax",
    "observer_kwargs": {},
    "strategy": "channel",
    "symmetric": True,
    "type": "float",
}
TOKENS = FLOAT8 | {"strategy": "token", "dynamic": True, "observer": None}
INT4 = FLOAT8 | {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
FLOAT4 = INT4 | {"type": "float", "strategy": "tensor_group", "group_size": 16}
MX4 = INT4 | {"type": "float", "group_size": 32, "scale_dtype": "torch.uint8"}
BITSANDBYTES: Settings = {
    "quant_method": "bitsandbytes",
    "_load_in_4bit": True,
    "_load_in_8bit": False,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "llm_int8_skip_modules": ["lm_head", "multi_modal_projector"],
    "load_in_4bit": True,
    "load_in_8bit": False,
}
AUTO_ROUND: Settings = {
    "quant_method": "auto-round",
    "act_bits": 16,
    "backend": "auto_round:gptq:exllamav2",
    "bits": 4,
    "block_name_to_quantize": None,
    "data_type": "int",
    "group_size": 128,
    "sym": True,
}
HQQ: Settings = {"axis": 1, "group_size": 64, "nbits": 4, "view_as_float": False}
OF_TENSORS = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
FP_QUANT: dict[str, Any] = {"quant_method": "fp_quant", "forward_dtype": "nvfp4"}
OCP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
GROUPS = {"_type": "PerGroup", "_data": {"group_size": 32}}
AQLM: Settings = {
    "quant_method": "aqlm",
    "in_group_size": 8,
    "nbits_per_codebook": 16,
    "num_codebooks": 1,
    "out_group_size": 1,
}
DOWN = "model.layers.0.mlp.down_proj"


def rotated(*locations: str) -> Settings:
    apply = [{"targets": ["re:.*down_proj$"], "location": where} for where in locations]
    rotation = {"type": "hadamard", "apply": apply}
    return compressed(INT4, transform_config={"config_groups": {"R4": rotation}})


def of_outputs(group: list[str], *names: str) -> Settings:
    """Quark's, whose layers `names` round their outputs too."""
    layer = {"weight": OF_TENSORS, "input_tensors": OF_TENSORS, "output_tensors": OF_TENSORS}
    export = {"kv_cache_group": group, "pack_method": "reorder"}
    return quark(OF_TENSORS, layer_quant_config=dict.fromkeys(names, layer), export=export)


def turned(**rotation: Any) -> Settings:
    return quark(OCP4, algo_config=[{"name": "rotation", "r1": True, "r2": True, **rotation}])


# Settings, and why they are refused: "", they are read.
PUBLISHED: dict[str, tuple[Settings, str]] = {
    "AWQ": (AWQ | {"backend": "autoawq", "do_fuse": False, "exllama_config": None}, ""),
    "AWQ of an MLA": (AWQ | {"modules_to_not_convert": ["self_attn.kv_a_proj_with_mqa"]}, ""),
    "AWQ of gptqmodel": (AWQ | {"checkpoint_format": "gemm", "sym": False, "dynamic": None}, ""),
    "AWQ in Marlin's tiles": (AWQ | {"version": "marlin", "zero_point": False}, ""),
    "AWQ of 8 bits": (AWQ | {"bits": 8}, "bits 8"),
    "AWQ of another layout": (AWQ | {"version": "llm-awq"}, "version 'llm-awq'"),
    "GPTQ": (GPTQ | {"model_file_base_name": "model", "static_groups": False}, ""),
    "GPTQ of 8 bits": (GPTQ | {"bits": 8, "exllama_config": {"version": 1}, "dataset": None}, ""),
    "GPTQ of gptqmodel": (GPTQ | {"dynamic": None, "pack_dtype": "int32", "lm_head": False}, ""),
    "GPTQ with rules": (GPTQ | {"dynamic": {"-:.*gate$": {}, "+:.*down": {"bits": 8}}}, ""),
    "GPTQ of some modules": (GPTQ | {"modules_in_block_to_quantize": [["mlp.up_proj"]]}, ""),
    "GPTQ's Marlin": (GPTQ | {"is_marlin_format": True, "desc_act": False}, ""),
    "GPTQ of BitBLAS's 3 bits": (GPTQ | {"checkpoint_format": "bitblas", "bits": 3}, "bits 3"),
    "W8A8 of floats": (compressed(FLOAT8, TOKENS, format="float-quantized"), ""),
    "the method's other name": (
        compressed(FLOAT8, TOKENS, quant_method="compressed_tensors"),
        "",
    ),
    "W8A8 of tensors, a cache too": (
        compressed(
            FLOAT8 | {"strategy": "tensor"},
            FLOAT8 | {"strategy": "tensor"},
            kv_cache_scheme=FLOAT8 | {"strategy": "tensor"},
        ),
        "",
    ),
    "W8A8 of integers": (
        compressed(FLOAT8 | {"type": "int"}, TOKENS | {"type": "int"}, format="int-quantized"),
        "",
    ),
    "W4A16": (compressed(INT4, format="pack-quantized", ignore=None), ""),
    "W4A16, asymmetric": (compressed(INT4 | {"symmetric": False, "zp_dtype": "torch.int8"}), ""),
    "W4A16 with a pattern": (compressed(INT4, ignore=["lm_head", "re:.*self_attn.*"]), ""),
    "NVFP4": (
        compressed(FLOAT4, FLOAT4 | {"dynamic": "local"}, format="nvfp4-pack-quantized"),
        "",
    ),
    "MXFP4": (compressed(MX4, MX4 | {"dynamic": True}, format="mxfp4-pack-quantized"), ""),
    "2:4": (
        compressed(
            FLOAT8,
            TOKENS,
            sparsity_config={"format": "sparse-24-bitmask", "sparsity_structure": "2:4"},
        ),
        "",
    ),
    "weights that nothing packed": (compressed(INT4, format="fakequant"), "format 'fakequant'"),
    "rotations of weights": (rotated("weight_input", "weight_output"), ""),
    **{
        f"rotations of {where}": (
            rotated("weight_input", where),
            f"transform_config.R4.location '{where}'",
        )
        for where in ("input", "output", "q_attn", "k_cache")
    },
    "outputs": (
        compressed(
            FLOAT8,
            config_groups={
                "a": {"targets": ["Linear"], "weights": FLOAT8, "output_activations": FLOAT8}
            },
        ),
        "output_activations",
    ),
    "dynamic weights": (compressed(FLOAT8 | {"dynamic": True}), "weights.dynamic True"),
    "integers of 9 bits": (compressed(INT4 | {"num_bits": 9}), "weights.num_bits 9"),
    "a scheme's name": (compressed(INT4, config_groups={"W4A16": ["Linear"]}), "of another kind"),
    "modelopt FP8": (modelopt("FP8", kv_cache_quant_algo="FP8"), ""),
    "modelopt NVFP4": (
        modelopt("NVFP4", group_size=16, exclude_modules=["lm_head", "model.layers.0.self_attn*"]),
        "",
    ),
    "modelopt NVFP4 in config.json": (
        compressed(
            {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
            quant_method="modelopt",
            quant_algo="NVFP4",
            kv_cache_scheme={"dynamic": False, "num_bits": 8, "type": "float"},
        ),
        "",
    ),
    "modelopt W4A8_AWQ": (modelopt("W4A8_AWQ", group_size=128, pre_quant_scale=True), ""),
    "modelopt INT8": (modelopt("W8A8_SQ_PER_CHANNEL"), "quant_algo 'W8A8_SQ_PER_CHANNEL'"),
    "modelopt, a cache of NVFP4": (
        modelopt("NVFP4", kv_cache_quant_algo="NVFP4"),
        "",
    ),
    "fp_quant": (FP_QUANT, ""),
    "fp_quant MXFP4": (
        FP_QUANT
        | {"forward_dtype": "mxfp4", "forward_method": "quest", "hadamard_group_size": 128},
        "",
    ),
    "fp_quant by spread": (FP_QUANT | {"forward_method": "quest"}, "forward_method 'quest'"),
    "fp_quant in groups of 48": (
        FP_QUANT | {"hadamard_group_size": 48},
        "hadamard_group_size 48",
    ),
    "fp_quant for training": (
        FP_QUANT | {"store_master_weights": True},
        "store_master_weights True",
    ),
    "quark FP8": (quark(OF_TENSORS | {"symmetric": False}, OF_TENSORS | {"symmetric": None}), ""),
    "quark MXFP4": (quark(OCP4, OCP4 | {"is_dynamic": True, "symmetric": None}), ""),
    "quark by layer": (quark(OCP4, layer_quant_config={"*k_proj": {"weight": OF_TENSORS}}), ""),
    "quark INT8": (
        quark({"dtype": "int8", "qscheme": "per_channel", "symmetric": False}),
        "weight.symmetric False",
    ),
    "quark of outputs": (of_outputs([], "*k_proj"), "output_tensors"),
    "quark of other outputs": (of_outputs(["*k_proj"], "*k_proj", "*o_proj"), "output_tensors"),
    "quark of a cache": (
        of_outputs(["*k_proj", "*v_proj"], "*q_proj", "*k_proj", "*v_proj"),
        "",
    ),
    "quark of biases": (
        quark(None, global_quant_config={"weight": OF_TENSORS, "bias": OF_TENSORS}),
        "a quantised bias",
    ),
    "quark rotated": (turned(r3=False, r4=False, online_r1_rotation=False), ""),
    "quark rotated by r2": (turned(r1=False, online_r1_rotation=True), ""),
    "quark smoothed": (quark(OCP4, algo_config=[{"name": "smooth", "alpha": 0.5}]), ""),
    **{
        f"quark rotating {name}": (turned(**{name: True}), f"algo_config.{name}")
        for name in ("r3", "r4", "online_r1_rotation", "online_had")
    },
    "quark rotating layers": (
        turned(online_config={"online_rotation_layers": [DOWN]}),
        "algo_config.online_rotation_layers",
    ),
    "quark UINT4": (quark({"dtype": "uint4", "qscheme": "per_group"}), "weight.dtype 'uint4'"),
    "fp8": (FP8 | {"modules_to_not_convert": ["lm_head", "gate"]}, ""),
    "fp8 by powers of two": (FP8 | {"scale_fmt": "ue8m0"}, ""),
    "fp8 static": (
        FP8 | {"activation_scheme": "static", "weight_block_size": None, "dequantize": False},
        "",
    ),
    "fp8 of another kind": (FP8 | {"fmt": "e5m2"}, "fmt 'e5m2'"),
    "fbgemm": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, ""),
    "torchao": (
        torchao("Int4WeightOnlyConfig", group_size=128, layout={"_type": "TensorCoreTiledLayout"}),
        "",
    ),
    "torchao of FP8": (
        torchao(
            "Float8DynamicActivationFloat8WeightConfig",
            granularity=[{"_type": "PerRow", "_data": {"dim": -1}}] * 2,
            mm_config={"_type": "Float8MMConfig", "_data": {"emulate": False}},
        ),
        "",
    ),
    "torchao tiled": (
        torchao("Int4WeightOnlyConfig", int4_packing_format="tile_packed_to_4d"),
        "int4_packing_format 'tile_packed_to_4d'",
    ),
    "torchao int4 by fp8": (
        torchao(
            "Float8DynamicActivationInt4WeightConfig",
            int4_packing_format={"_type": "Int4PackingFormat", "_data": "PLAIN"},
        ),
        "",
    ),
    "torchao int4 by fp8, shuffled": (
        torchao("Float8DynamicActivationInt4WeightConfig"),
        "int4_packing_format 'preshuffled'",
    ),
    "torchao autoquant": (torchao("AutoQuantConfig"), "quant_type 'AutoQuantConfig'"),
    "hqq": ({"quant_method": "hqq", "quant_config": {"weight_quant_params": HQQ}}, ""),
    "hqq by layer": (
        {
            "quant_method": "hqq",
            "quant_config": {"mlp.down_proj": {"weight_quant_params": HQQ}, "mlp.up_proj": None},
        },
        "",
    ),
    "bitsandbytes": (BITSANDBYTES, ""),
    "bitsandbytes of none": (
        BITSANDBYTES | {"_load_in_4bit": False, "load_in_4bit": False},
        "load_in_8bit False",
    ),
    "auto-round": (AUTO_ROUND | {"extra_config": {DOWN: {"bits": 16, "data_type": "float"}}}, ""),
    "auto-round MXFP4": (AUTO_ROUND | {"data_type": "mx_fp"}, "data_type 'mx_fp'"),
    "auto-round rotated": (AUTO_ROUND | {"rotation_config": {"r4": True}}, "rotation_config"),
    "aqlm": (AQLM, ""),
    "aqlm 1x12": (AQLM | {"nbits_per_codebook": 12}, "nbits_per_codebook 12"),
    "exl3": ({"quant_method": "exl3", "bits": 4.0}, "by exl3, which this build cannot run"),
    "MLX": ({"group_size": 64, "bits": 4, "mode": "affine"}, "by an unnamed method"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings_are_read_or_refused_in_one_line(name: str) -> None:
    settings, reason = PUBLISHED[name]
    if not reason:
        scheme(settings)
        return
    with pytest.raises(CheckpointError) as caught:
        scheme(settings)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


# What each reader has that names layers, as a list of `names`.
LISTS: dict[str, Callable[[Any], Settings]] = {
    "awq": lambda names: AWQ | {"modules_to_not_convert": names},
    "fp8": lambda names: FP8 | {"modules_to_not_convert": names},
    "fp8 ignored": lambda names: FP8 | {"ignored_layers": names},
    "fbgemm_fp8": lambda names: {"quant_method": "fbgemm_fp8", "modules_to_not_convert": names},
    "ptpc_fp8": lambda names: {"quant_method": "ptpc_fp8", "ignored_layers": names},
    "mxfp8": lambda names: {"quant_method": "mxfp8", "modules_to_not_convert": names},
    "modelopt": lambda names: modelopt("FP8", exclude_modules=names),
    "modelopt ignore": lambda names: {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "ignore": names,
    },
    "quark": lambda names: quark(OF_TENSORS, exclude=names),
    "compressed-tensors": lambda names: compressed(FLOAT8, ignore=names),
    "compressed-tensors targets": lambda names: compressed(
        FLOAT8, config_groups={"a": {"targets": names, "weights": FLOAT8}}
    ),
    "auto-round": lambda names: AUTO_ROUND | {"block_name_to_quantize": names},
    "hqq": lambda names: PUBLISHED["hqq"][0] | {"skip_modules": names},
    "bitsandbytes": lambda names: BITSANDBYTES | {"llm_int8_skip_modules": names},
    "torchao": lambda names: torchao("Int8WeightOnlyConfig") | {"modules_to_not_convert": names},
    "fp_quant": lambda names: FP_QUANT | {"modules_to_not_convert": names},
    "bitnet": lambda names: {"quant_method": "bitnet", "modules_to_not_convert": names},
    "aqlm": lambda names: AQLM | {"linear_weights_not_to_quantize": names},
}
# Readers that have no such setting.
WITHOUT = {"gptq", "marlin", "bitblas", "qqq"}


def test_every_reader_is_in_the_list() -> None:
    assert {name.split()[0] for name in LISTS} | WITHOUT == set(READERS)


@pytest.mark.parametrize("name", LISTS)
def test_a_name_may_stand_for_a_list_of_it(name: str) -> None:
    with_names = LISTS[name]
    alone, listed, without = map(scheme, map(with_names, (DOWN, [DOWN], [])))
    assert alone == listed != without
    is_chosen = name.endswith("targets") or name == "auto-round"
    assert (listed.form_of(DOWN) is not None) == is_chosen
    other = DOWN.replace("down", "up")
    assert (listed.form_of(other) is None) == is_chosen
    for odd in (7, {"a": "b"}, [7], True):
        with pytest.raises(CheckpointError, match="; this build reads a list of names") as caught:
            scheme(with_names(odd))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["ignore", "targets"])
def test_so_it_may_for_what_is_rounded_in_flight(part: str) -> None:
    alone, listed = (in_flight("fp8", {part: names}) for names in (DOWN, [DOWN]))
    assert alone == listed and (alone.name_of(DOWN) is None) == (part == "ignore")
    with pytest.raises(UsageError, match=f"{part} 7 has to be a list of names"):
        in_flight("fp8", {part: 7})


@pytest.mark.parametrize("word", ["*down_proj", "re:.*down_proj", "mlp.down_proj", f"{DOWN}."])
@pytest.mark.parametrize("name", ["fp8", "awq", "modelopt", "quark", "hqq"])
def test_layers_are_named_by_wildcards_patterns_and_ends(name: str, word: str) -> None:
    found = scheme(LISTS[name]([word]))
    assert found.form_of(DOWN) is None
    assert found.form_of(DOWN.replace("down", "up")) is not None


def test_compressed_tensors_takes_what_its_package_does_for_what_is_missing() -> None:
    """Eight bits, symmetric integers; of groups if there is a size, of outputs for -1."""
    for missing, said in (
        ({}, {"num_bits": 8, "type": "int", "strategy": "tensor", "symmetric": True}),
        ({"type": "FLOAT"}, {"num_bits": 8, "type": "float", "strategy": "tensor"}),
        ({"num_bits": 4, "group_size": 64}, INT4 | {"group_size": 64}),
        ({"num_bits": 4, "group_size": -1}, INT4 | {"group_size": None, "strategy": "channel"}),
    ):
        kind: Any = {"format": "pack-quantized" if "num_bits" in missing else "naive-quantized"}
        assert scheme(compressed(missing, **kind)) == scheme(compressed(said, **kind))
        inputs = {"dynamic": True, **missing, "group_size": None}
        told = {**inputs, "strategy": "tensor", "num_bits": missing.get("num_bits", 8)}
        assert scheme(compressed(FLOAT8, inputs)) == scheme(compressed(FLOAT8, told))


def test_layers_of_a_mixture_have_settings_of_their_own() -> None:
    layers = {
        "a": {"quant_algo": "W4A16_AWQ", "group_size": 128, "has_zero_point": False},
        "b": {"quant_algo": "w4a8_awq", "group_size": 64, "pre_quant_scale": True},
        "c": {"quant_algo": "NVFP4_AWQ", "group_size": 16},
    }
    named = scheme(modelopt("MIXED_PRECISION", group_size=7, quantized_layers=layers)).named
    first, second, third = (named[name] for name in "abc")
    assert isinstance(first, StoredCodes) and first.block == (1, 128)
    assert second == replace(first, block=(1, 64), rounding=TENSOR, input_scale="input_scale")
    assert isinstance(third, StoredCodes) and third.input_factor == first.input_factor
    for damage, reason in (
        ({"has_zero_point": True}, "has_zero_point True"),
        ({"group_size": None}, "group_size None"),
        ({"quant_algo": None}, "quant_algo ''"),
        ({"quant_algo": "MIXED_PRECISION"}, "MIXED_PRECISION within a layer"),
    ):
        odd = layers | {"a": layers["a"] | damage}
        with pytest.raises(CheckpointError, match=reason):
            scheme(modelopt("MIXED_PRECISION", quantized_layers=odd))
    with pytest.raises(CheckpointError, match="layer a 'FP8'; this build reads an object"):
        scheme(modelopt("MIXED_PRECISION", quantized_layers={"a": "FP8"}))


def test_rules_of_gptq_do_not_reach_other_layers() -> None:
    found = scheme(PUBLISHED["GPTQ with rules"][0])
    form = found.form_of(DOWN)
    assert isinstance(form, PackedIntegers) and form.bits == 8
    assert found.form_of("model.layers.0.mlp.gate") is None
