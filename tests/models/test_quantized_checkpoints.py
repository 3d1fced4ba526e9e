"""Checkpoints of AWQ, GPTQ, fp8 and compressed-tensors are worth what their formats say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.checkpoints import make_model, save
from tests.models.quantized_checkpoints import (
    Quantise,
    awq,
    gptq,
    scaled,
    ternary,
    write_pair,
)
from tests.models.runner import PagedRunner, load
from tests.models.test_gguf import IDS
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.kernels.dispatch import has_bfloat16_pairs
from vllm_lite.kernels.metadata import AttentionMetadata, attention_metadata
from vllm_lite.kernels.reference.quantized import round_activations
from vllm_lite.layers.attention import Attention, LayerCache, ScaledCacheAttention
from vllm_lite.loader.forms.ternary import _warn_of_floats
from vllm_lite.quantization.grouped import GroupedKernel
from vllm_lite.quantization.unquantized import PackedKernel

SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 32,
}
SQUARE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
PACKED: dict[str, tuple[dict[str, Any], Quantise, str]] = {
    "awq": (AWQ, awq(32), "Q5_0"),
    "gptq": (GPTQ, gptq(32, 4, True, True), "Q4_0"),
    "gptq whole": (GPTQ | {"group_size": -1}, gptq(-1, 4, True, True), "Q4_0"),
    "gptq act-order": (GPTQ | {"desc_act": True}, gptq(32, 4, False, False), "int4 groups"),
    "gptq v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, gptq(32, 4, False, True, 0), "Q5_0"),
    "gptq 8": (GPTQ | {"bits": 8}, gptq(32, 8, True, True), "Q8_0"),
}
TENSORS: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
TOKENS = TENSORS | {"strategy": "token", "dynamic": True}
CHANNELS = TENSORS | {"strategy": "channel"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def compressed(weights: dict[str, Any], inputs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, **changes}
    return {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


E4M3, INT8 = torch.float8_e4m3fn, torch.int8
INTEGERS = {"type": "int"}
CODES: dict[str, tuple[dict[str, Any], Quantise]] = {
    "fp8": (FP8, scaled(E4M3, "tensor", False)),
    "fp8 static": (FP8 | {"activation_scheme": "static"}, scaled(E4M3, "tensor", True)),
    "fp8 blocks": (FP8 | {"weight_block_size": [128, 128]}, scaled(E4M3, "block", False)),
    "fp8 blocks by powers": (
        FP8 | {"weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
        scaled(E4M3, "block", False),
    ),
    "float channels": (compressed(CHANNELS, TOKENS), scaled(E4M3, "channel", False)),
    "float tensors": (compressed(TENSORS, TENSORS), scaled(E4M3, "tensor", True)),
    "int channels": (
        compressed(CHANNELS | INTEGERS, TOKENS | INTEGERS),
        scaled(INT8, "channel", False),
    ),
}


def write_with_cache_scales(
    directory: Path, scales: tuple[float, float] = (1.5, 0.05), inputs: Any = TOKENS
) -> Any:
    """A pair whose quantised half has scales for keys and values."""
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    settings = compressed(CHANNELS, inputs) | {"kv_cache_scheme": scheme}

    def quantise(name: str, weight: torch.Tensor) -> Any:
        stored, worth = scaled(E4M3, "channel", False)(name, weight)
        if name.endswith("o_proj.weight"):
            stored["../k_scale"] = torch.tensor([scales[0]])
            stored["../v_scale"] = torch.tensor(scales[1])
        return stored, worth

    return write_pair(directory, settings, quantise, **SIZES)


def logits(model: Any) -> torch.Tensor:
    return PagedRunner(model).step({"a": IDS})["a"].float()


def layers(model: Any) -> dict[str, Any]:
    return {name: m for name, m in model.named_modules() if name.endswith("_proj")}


@pytest.mark.parametrize("name", PACKED)
def test_packed_integers_are_multiplied_as_they_are(name: str, tmp_path: Path) -> None:
    settings, quantise, kind = PACKED[name]
    packed, plain = write_pair(tmp_path, settings, quantise, **SIZES)
    if kind == "Q5_0" and has_bfloat16_pairs():
        kind = "int4 groups"
    exact = layers(load(plain))
    model = load(packed)
    for layer, module in layers(model).items():
        assert [weight.format for weight in module.kernel.stored] == [kind]
        x = torch.randn(7, SIZES["intermediate_size" if "down" in layer else "hidden_size"])
        if kind.endswith("groups"):
            torch.testing.assert_close(module.kernel(x), exact[layer].kernel(x))
            continue
        want = exact[layer].kernel(round_activations(x))
        torch.testing.assert_close(module.kernel(x), want, rtol=1e-4, atol=1e-4 * want.abs().max())
    whole = logits(load(packed, quantization="dequantize"))
    torch.testing.assert_close(whole, logits(load(plain)))


def test_weights_beyond_ggufs_types_are_multiplied_in_groups(tmp_path: Path) -> None:
    packed, plain = write_pair(
        tmp_path, GPTQ | {"bits": 8, "sym": False}, gptq(32, 8, False, True), **SIZES
    )
    model = load(packed)
    assert all(isinstance(m.kernel, GroupedKernel) for m in layers(model).values())
    torch.testing.assert_close(logits(model), logits(load(plain)))


EXPERTS: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
}
BLOCKS: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
}
# Of the latents' layers and of the attention's output, blocks are cut.
LATENTS: dict[str, Any] = {
    "kv_lora_rank": 128,
    "q_lora_rank": 150,
    "qk_nope_head_dim": 22,
    "qk_rope_head_dim": 10,
    "v_head_dim": 34,
}
HEADS: dict[str, Any] = {"head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 4}
STATIC = FP8 | {"activation_scheme": "static"}
NEWER: dict[str, tuple[dict[str, Any], Quantise, dict[str, Any]]] = {
    "qwen3_moe blocks": (*CODES["fp8 blocks"], {**BLOCKS, **HEADS}),
    "deepseek_v3 blocks": (*CODES["fp8 blocks"], {**BLOCKS, **LATENTS}),
    "deepseek_v3 awq": (AWQ, awq(32), {**EXPERTS, **dict.fromkeys(LATENTS, 32)}),
    "mixtral awq": (
        AWQ | {"modules_to_not_convert": ["gate"]},
        awq(32),
        {"hidden_size": 64, "intermediate_size": 32, "head_dim": 32},
    ),
    "qwen2_moe gptq": (
        GPTQ | {"dynamic": {r"-:.*mlp\.gate$": {}}},
        gptq(32, 4, True, True),
        {**EXPERTS, "num_attention_heads": 2, "shared_expert_intermediate_size": 32},
    ),
    "granite_hybrid fp8": (*CODES["fp8"], {}),
    "qwen3_next channels": (*CODES["float channels"], {}),
    # A layer's one scale has the factor of its weights.
    "falcon_h1 static": (
        STATIC,
        scaled(E4M3, "tensor", True),
        {"key_multiplier": 0.5, "attention_in_multiplier": 0.7, "ssm_in_multiplier": 1.3},
    ),
    "mamba2 fp8": (*CODES["fp8"], {}),
}


@pytest.mark.parametrize("name", NEWER)
def test_mixtures_and_states_are_worth_what_they_store(name: str, tmp_path: Path) -> None:
    settings, quantise, sizes = NEWER[name]
    packed, plain = write_pair(tmp_path, settings, quantise, name.split()[0], **sizes)
    torch.testing.assert_close(
        logits(load(packed, quantization="dequantize")), logits(load(plain)), rtol=1e-5, atol=2e-5
    )
    assert logits(load(packed)).isfinite().all()


def test_layers_whose_blocks_are_cut_within_a_product_are_refused(tmp_path: Path) -> None:
    settings, quantise, sizes = NEWER["qwen3_moe blocks"]
    sizes = sizes | {"moe_intermediate_size": 192}
    packed, _ = write_pair(tmp_path, settings, quantise, "qwen3_moe", **sizes)
    with pytest.raises(CheckpointError, match="parts of no whole 128 outputs"):
        load(packed)


@pytest.mark.parametrize(
    ("settings", "quantise", "left_plain"),
    [
        (AWQ | {"modules_to_not_convert": ["lm_head", "mlp"]}, awq(32), "mlp"),
        (AWQ | {"modules_to_not_convert": ["layers.0.mlp.down"]}, awq(32), "down_proj"),
        (
            FP8 | {"ignored_layers": ["model.layers.0.self_attn"]},
            scaled(E4M3, "tensor", False),
            "self_attn",
        ),
        (
            compressed(CHANNELS, TOKENS) | {"ignore": ["lm_head", "re:.*down_proj"]},
            scaled(E4M3, "channel", False),
            "down_proj",
        ),
    ],
    ids=["awq", "awq part of a name", "fp8", "compressed"],
)
def test_layers_may_be_left_plain(
    settings: dict[str, Any], quantise: Quantise, left_plain: str, tmp_path: Path
) -> None:
    packed, plain = write_pair(tmp_path, settings, quantise, left_plain=left_plain, **SIZES)
    whole = load(packed, quantization="dequantize")
    torch.testing.assert_close(logits(whole), logits(load(plain)))
    kernels = {name: module.kernel for name, module in layers(load(packed)).items()}
    for name, kernel in kernels.items():
        is_plain = isinstance(kernel, PackedKernel)
        assert is_plain == (left_plain in name), name


def test_layers_of_one_product_are_all_quantised_or_none(tmp_path: Path) -> None:
    settings = AWQ | {"modules_to_not_convert": ["k_proj"]}
    packed, _ = write_pair(tmp_path, settings, awq(32), left_plain="k_proj", **SIZES)
    with pytest.raises(CheckpointError, match=r"k_proj is not quantised .*q_proj"):
        load(packed)


@pytest.mark.parametrize("name", ["awq", "gptq", "fp8", "int channels"])
def test_fused_layers_of_a_checkpoint_are_cut_between_words(name: str, tmp_path: Path) -> None:
    settings, quantise = CODES[name] if name in CODES else PACKED[name][:2]
    sizes = {**SIZES, "hidden_size": 96, "num_key_value_heads": 3}
    del sizes["head_dim"]
    packed, plain = write_pair(tmp_path, settings, quantise, family="phi3", **sizes)
    whole = load(packed, quantization="dequantize")
    torch.testing.assert_close(logits(whole), logits(load(plain)))


def test_layers_of_a_checkpoint_are_cut_within_words(tmp_path: Path) -> None:
    sizes = {**SIZES, "num_attention_heads": 8, "num_key_value_heads": 1}
    del sizes["head_dim"]
    packed, plain = write_pair(tmp_path, AWQ, awq(32), family="phi3", left_plain="down", **sizes)
    whole = load(packed, quantization="dequantize")
    torch.testing.assert_close(logits(whole), logits(load(plain)))


BITNET = {"quant_method": "bitnet"}
TERNARY: dict[str, tuple[dict[str, Any], Quantise]] = {
    "divided": (BITNET | {"modules_to_not_convert": None}, ternary(True, False)),
    "multiplied": (BITNET | {"linear_class": "autobitlinear"}, ternary(False, False)),
    "rounded": (
        BITNET | {"linear_class": "autobitlinear", "quantization_mode": "online"},
        ternary(False, True),
    ),
}


@pytest.mark.parametrize("name", TERNARY)
def test_three_values_are_kept_in_two_bits_where_rows_are_whole_blocks(
    name: str, tmp_path: Path
) -> None:
    settings, quantise = TERNARY[name]
    narrow = write_pair(tmp_path / "narrow", settings, quantise, family="bitnet")
    torch.testing.assert_close(*map(logits, map(load, narrow)))
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
    packed, plain = write_pair(tmp_path / "wide", settings, quantise, **sizes)
    exact, model = layers(load(plain)), load(packed)
    for layer, module in layers(model).items():
        assert {weight.format for weight in module.kernel.stored} == {"Q2_K"}
        x = torch.randn(7, sizes["intermediate_size" if "down" in layer else "hidden_size"])
        want = exact[layer].kernel(round_activations(x))
        got = module.kernel(x)
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))
    assert logits(model).isfinite().all()
    assert logits(load(packed, quantization="int8")).isfinite().all()


def test_layers_of_no_whole_blocks_are_dequantised_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_floats.cache_clear()
    packed, _ = write_pair(tmp_path, *TERNARY["divided"], **SIZES)
    load(packed, quantization="dequantize")
    assert not caplog.messages
    load(packed)
    said = [text for text in caplog.messages if "dequantised to float32" in text]
    assert len(said) == 2, said  # of 96 inputs and of 64


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "phi3"])
def test_layers_of_any_name_are_rounded_unless_they_are_to_be_left(
    family: str, tmp_path: Path
) -> None:
    settings, quantise = TERNARY["rounded"]
    settings = settings | {"modules_to_not_convert": ["lm_head", "o_proj"]}
    packed, plain = write_pair(tmp_path, settings, quantise, family, left_plain="o_proj")
    torch.testing.assert_close(logits(load(packed)), logits(load(plain)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (BITNET | {"use_rms_norm": True}, "bitnet with use_rms_norm True; this build reads False"),
        ({"quant_method": "spqr"}, "quantised by spqr"),
        (AWQ | {"bits": 3}, "awq with bits 3; this build reads 4"),
        (AWQ | {"version": "gems"}, "with version 'gems'; this build reads 'gemm'"),
        (GPTQ | {"bits": 5}, "bits 5; this build reads 2 or 3 or 4 or 8"),
        (GPTQ | {"group_size": 0}, "group_size 0; this build reads -1, or 1 and more"),
        (
            GPTQ | {"group_size": 48, "checkpoint_format": "marlin"},
            "group_size 48; this build reads -1, 16 or a multiple of 32",
        ),
        (GPTQ | {"dynamic": {"+:(": {}}}, r"the pattern '\(' "),
    ],
)
def test_unreadable_checkpoint_is_one_clear_error(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    packed, _ = write_pair(tmp_path, settings, lambda _, weight: ({"weight": weight}, weight))
    with pytest.raises(CheckpointError, match=message):
        load(packed)


def test_checkpoint_must_match_its_description(tmp_path: Path) -> None:
    packed, plain = write_pair(tmp_path, AWQ | {"group_size": 64}, awq(32), **SIZES)
    with pytest.raises(CheckpointError, match="96 inputs of a layer are no groups of 64"):
        load(packed)
    with pytest.raises(UsageError, match=r"int4 does not fit .*quantised by awq"):
        load(packed, quantization="int4")
    with pytest.raises(UsageError, match="gptq needs a checkpoint that gptq or bitblas quantised"):
        load(plain, quantization="gptq")


def test_groups_that_are_not_alike_are_refused(tmp_path: Path) -> None:
    def quantise(name: str, weight: torch.Tensor) -> Any:
        stored, worth = gptq(32, 4, True, True)(name, weight)
        stored["g_idx"][0] = 1
        return stored, worth

    packed, _ = write_pair(tmp_path, GPTQ | {"desc_act": True}, quantise, **SIZES)
    with pytest.raises(CheckpointError, match="g_idx does not name each group as often"):
        load(packed)


def test_narrow_numbers_are_no_plain_weights(tmp_path: Path) -> None:
    packed, _ = write_pair(tmp_path, {}, scaled(INT8, "tensor", False), **SIZES)
    with pytest.raises(CheckpointError, match="stored as I8; supported are F64"):
        load(packed)


@pytest.mark.parametrize("settings", [AWQ, GPTQ, FP8], ids=lambda s: s["quant_method"])
def test_made_up_weights_have_a_quantised_model_s_shapes(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    path = save(make_model("llama", **SIZES, quantization_config=None), tmp_path)
    model = load(path, load_format="dummy", hf_overrides={"quantization_config": settings})
    assert logits(model).isfinite().all()


def test_a_cache_of_fp8_uses_the_checkpoint_s_scales(tmp_path: Path) -> None:
    packed, plain = write_with_cache_scales(tmp_path, inputs={})
    exact = logits(load(plain))
    torch.testing.assert_close(logits(load(packed)), exact)  # no scales without fp8
    with_scales = logits(load(packed, kv_cache_dtype="fp8"))
    assert float((with_scales - exact).norm() / exact.norm()) < 0.25
    attention = [m for m in load(packed, kv_cache_dtype="fp8").modules() if hasattr(m, "_window")]
    assert [type(module).__name__ for module in attention] == ["ScaledCacheAttention"]


@pytest.mark.parametrize("settings", [{"kv_cache_scheme": "static"}, {}], ids=["said", "stored"])
@pytest.mark.parametrize("names", [("k_scale", "v_scale"), ("kv_scale",)], ids=["two", "one"])
def test_fp8_s_own_scales_of_the_cache(
    names: tuple[str, ...], settings: dict[str, Any], tmp_path: Path
) -> None:
    def quantise(name: str, weight: torch.Tensor) -> Any:
        stored, worth = scaled(E4M3, "tensor", False)(name, weight)
        scales = {f"../{each}": torch.tensor(0.5 + i) for i, each in enumerate(names)}
        return stored | (scales if "o_proj" in name else {}), worth

    packed, _ = write_pair(tmp_path, FP8 | settings, quantise, **SIZES)
    load(packed)
    modules = load(packed, kv_cache_dtype="fp8").modules()
    (attend,) = (module for module in modules if isinstance(module, ScaledCacheAttention))
    assert (attend._key_scale, attend._value_scale) == (0.5, 0.5 + len(names) - 1)


# Families, the scales of keys where tools write them in their checkpoints, and the queries'.
CACHE_NAMES: dict[str, tuple[str, str, str]] = {
    "in attention": ("llama", "../attn.k_scale", "../attn.q_scale"),
    "of keys": ("llama", "../k_proj.k_scale", "../q_proj.q_scale"),
    "of outputs": ("llama", "../k_proj.output_scale", "../q_proj.output_scale"),
    "of all three": ("llama", "../qkv_proj.k_scale", "../qkv_proj.q_scale"),
    "of a fused layer": ("phi3", "../qkv_proj.k_scale", "../qkv_proj.q_scale"),
    "of a fused layer, as Qwen": ("llama", "../qkqkv_proj.k_scale", "../qkqkv_proj.q_scale"),
    "of a cache": ("llama", "../k_cache.scale", "../q.scale"),
    "in a mixer": ("nemotron_h", "../k_proj.k_scale", "../q_proj.q_scale"),
}


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_scales_of_the_cache_have_several_names(name: str, tmp_path: Path) -> None:
    family, of_keys, of_queries = CACHE_NAMES[name]
    of_values = re.sub(r"(?<=[./])k(?=_)", "v", of_keys)

    def quantise(name: str, weight: torch.Tensor) -> Any:
        stored, worth = scaled(E4M3, "tensor", False)(name, weight)
        scales = {each: torch.tensor(0.5 + i) for i, each in enumerate((of_keys, of_values))}
        scales[of_queries] = torch.tensor(1.0)
        return stored | (scales if "o_proj" in name else {}), worth

    sizes = {} if family == "nemotron_h" else SIZES | {"head_dim": 32}
    packed, _ = write_pair(tmp_path, FP8, quantise, family, **sizes)
    assert logits(load(packed)).isfinite().all()
    modules = load(packed, kv_cache_dtype="fp8").modules()
    attends = [module for module in modules if isinstance(module, ScaledCacheAttention)]
    assert {(each._key_scale, each._value_scale) for each in attends} == {(0.5, 1.5)}


def test_scales_keep_small_values_apart(tmp_path: Path) -> None:
    """Values below fp8's smallest number are lost without a scale and kept with one."""
    attend = ScaledCacheAttention(0.3)
    for slot, number in zip(attend.weight_slots(), (0.5, 2.0**-12), strict=True):
        slot.slot.tensor.fill_(number)
    attend.process_weights_after_loading()
    key, value = torch.randn(5, 1, 16), torch.randn(5, 1, 16) * 2.0**-12
    query = torch.randn(5, 2, 16)
    step = AttentionMetadata(
        query_start_loc=torch.tensor([0, 5], dtype=torch.int32),
        seq_lens=torch.tensor([5], dtype=torch.int32),
        block_tables=(torch.zeros(1, 1, dtype=torch.int32),),
        slot_mappings=(torch.arange(5),),
        num_tokens=5,
        num_requests=1,
        max_query_len=5,
        max_seq_len=5,
    )
    results = []
    for layer, number in ((attend, E4M3), (Attention(0.3), torch.float32)):
        layer.bind_kv_cache(LayerCache(*torch.zeros(2, 1, 1, 8, 16).to(number)))
        with attention_metadata(step):
            results.append(layer.forward(query, key, value))
    assert float((results[0] - results[1]).norm() / results[1].norm()) < 0.1


def test_scales_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    packed, _ = write_with_cache_scales(tmp_path, (0.0, 1.0))
    with pytest.raises(CheckpointError, match=r"scales of a layer's cache are 0.0 and 1.0"):
        load(packed, kv_cache_dtype="fp8")
