"""Names of --quantization as a checkpoint's quant_method: read, or refused with what they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import TINY_FACTS, core_config
from tests.unit.config.test_quantized_settings import (
    AUTO_ROUND,
    AWQ,
    BITSANDBYTES,
    FP8,
    GPTQ,
    OF_TENSORS,
    modelopt,
    quark,
)
from vllm_lite.config.facts import method_of
from vllm_lite.config.quantized.in_flight import EXPERTS, IN_FLIGHT
from vllm_lite.config.quantized.registry import (
    HARDWARE,
    OTHER_NAMES,
    READABLE,
    READERS,
    check_quantization,
    read_scheme,
)
from vllm_lite.errors import CheckpointError, UsageError

NAMES = sorted({*READABLE, *OTHER_NAMES, *IN_FLIGHT, *EXPERTS, *HARDWARE})


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_a_format_or_says_what_it_is(name: str) -> None:
    try:
        read_scheme("there", {"quantization_config": {"quant_method": name}})
    except CheckpointError as error:
        assert str(error).startswith(f"there is quantised by {name}")
        assert "which this build cannot run" not in str(error)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("deepseek_v4_fp8", "fp8"),
        ("petit_nvfp4", "modelopt"),
        ("modelopt_mxfp8", "modelopt"),
        ("gpt_oss_mxfp4", "mxfp4"),
        ("inc", "auto-round"),
        ("spqr", "spqr"),
        (7, None),
    ],
)
def test_tools_and_kernels_have_names_for_one_method(name: object, method: str | None) -> None:
    assert method_of({"quantization_config": {"quant_method": name}}) == method


MIXED = modelopt("MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "FP8"}})
MODELOPT = ("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "petit_nvfp4")
GPTQ_KERNELS = ("gptq", "gptq_marlin", "auto_gptq", "marlin", "bitblas", "gptq_bitblas", "ipex")
# A checkpoint, names for its method, and those among them that fit it.
FITTING: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "modelopt FP8": (modelopt("FP8"), MODELOPT, ("modelopt",)),
    "modelopt INT4": (modelopt("W4A16_AWQ", group_size=128), MODELOPT, ("modelopt",)),
    "modelopt NVFP4": (
        modelopt("NVFP4"),
        MODELOPT,
        ("modelopt", "modelopt_fp4", "petit_nvfp4"),
    ),
    "modelopt MXFP8": (modelopt("MXFP8"), MODELOPT, ("modelopt", "modelopt_mxfp8")),
    "modelopt mixed": (MIXED, MODELOPT, ("modelopt", "modelopt_mixed")),
    "modelopt's cache alone": (
        {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"},
        MODELOPT,
        ("modelopt",),
    ),
    "gptq": (GPTQ, (*GPTQ_KERNELS, "gptq_marlin_24"), GPTQ_KERNELS),
    "gptq 2:4": (
        GPTQ | {"checkpoint_format": "marlin_24"},
        ("gptq", "gptq_marlin", "gptq_marlin_24"),
        ("gptq", "gptq_marlin", "gptq_marlin_24"),
    ),
    "awq": (
        AWQ,
        ("awq_marlin", "auto_awq", "moe_wna16", "ipex", "gptq"),
        (
            "awq_marlin",
            "auto_awq",
            "moe_wna16",
            "ipex",
        ),
    ),
    "auto-round": (AUTO_ROUND, ("inc", "gptq_marlin", "petit_nvfp4"), ("inc", "gptq_marlin")),
    "fp8 blocks": (FP8, ("fp8", "deepseek_v4_fp8", "mxfp8"), ("fp8", "deepseek_v4_fp8")),
    "fp8 blocks of other sizes": (
        FP8 | {"weight_block_size": [64, 64]},
        ("fp8", "deepseek_v4_fp8"),
        ("fp8",),
    ),
    "fp8 tensors": (FP8 | {"weight_block_size": None}, ("fp8", "deepseek_v4_fp8"), ("fp8",)),
    "quark": (quark(OF_TENSORS), ("quark", "fp8"), ("quark",)),
}


@pytest.mark.parametrize("name", FITTING)
def test_a_name_that_contradicts_the_checkpoint_is_one_clear_error(name: str) -> None:
    settings, names, fitting = FITTING[name]
    facts = replace(TINY_FACTS, path="there", hf_config={"quantization_config": settings})
    for given in names:
        if given in fitting:
            check_quantization(given, facts)
            continue
        with pytest.raises(UsageError) as caught:
            check_quantization(given, facts)
        message = str(caught.value)
        assert message.startswith(f"--quantization {given} ") and "there" in message
        assert "leave the option out" in message and "\n" not in message


@pytest.mark.parametrize("name", sorted({*READABLE} - {*IN_FLIGHT}))
def test_a_name_for_checkpoints_says_what_quantises_them(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_quantization(name, TINY_FACTS)
    _, _, methods = str(caught.value).partition(f"--quantization {name} needs a checkpoint that ")
    known = methods.partition(" quantised;")[0].split(" or ")
    assert set(known) <= {*READERS, "mxfp4"}
    assert set(known) >= set(OTHER_NAMES.get(name, ()))


LOADED_AS_BITSANDBYTES: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "plain": ({}, ("bitsandbytes", "nf4"), ("fp8", "int8", "q4_k", "experts_int8", "dequantize")),
    "its own": (BITSANDBYTES, ("bitsandbytes", "dequantize"), ("fp8", "nf4")),
    "another's": (FP8, (), ("bitsandbytes", "fp8", "dequantize")),
}


@pytest.mark.parametrize("name", LOADED_AS_BITSANDBYTES)
def test_the_load_format_bitsandbytes_is_a_quantization(name: str) -> None:
    settings, fitting, others = LOADED_AS_BITSANDBYTES[name]
    facts = replace(TINY_FACTS, path="there", hf_config={"quantization_config": settings})
    plain = core_config()
    load = replace(plain.load, load_format="bitsandbytes")
    for given in (*fitting, *others):
        model = replace(plain.model, quantization=given)
        if given in fitting:
            replace(plain, facts=facts, model=model, load=load)
            continue
        with pytest.raises(UsageError, match=f"--quantization {given}"):
            replace(plain, facts=facts, model=model, load=load)
