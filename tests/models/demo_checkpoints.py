"""Checkpoints of the demo model, whose layers have 576 inputs, in every format that those allow.

benchmarks/format_perplexity.py measures them. Each weight takes its nearest value.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.models import integer_layouts as integers
from tests.models import stored_codes as codes
from tests.models.quantized_checkpoints import Quantise, Stored, awq, gptq, scaled
from tests.models.test_aqlm import FORMS as AQLM
from tests.models.test_fp_quant import FORMS as FP_QUANT
from tests.models.test_fp_quant import written as fp_quant
from tests.models.test_integer_checkpoints import BITBLAS, FORMATS, MARLIN, hqq, torchao
from tests.models.test_quantized_checkpoints import AWQ, GPTQ, TERNARY
from tests.models.test_stored_codes import (
    BY_FLOAT8,
    CASES,
    E4M3,
    MODELOPT,
    PER_ROW,
)

GROUP = 64  # 128 does not divide 576.
Settings = dict[str, Any]
Checkpoint = tuple[Settings, Quantise]
_BNB: Settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
_TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
_FP8_TOKENS = _TOKENS | {"type": "float"}
_AWQ, _GPTQ = AWQ | {"group_size": GROUP}, GPTQ | {"group_size": GROUP}
_BITBLAS = BITBLAS | {"group_size": GROUP}
_AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": GROUP}
_MODELOPT4 = MODELOPT | {"group_size": GROUP, "has_zero_point": False}
_AS_INT4 = codes.words(4, GROUP, True)
# The greatest inputs that a static scale of 1 holds.
_LARGEST = {"int": 127.0, "fp8": 448.0, "fp4": 448.0 * 6}


def nearest_vectors(name: str, weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
    """AQLM's two books of 256 vectors of 8 inputs: each the means of what is left, by k-means."""
    scales = weight.square().mean(1, keepdim=True).sqrt().clamp(min=1e-8).half()
    vectors = (weight / scales.float()).view(-1, 8)
    left, books, chosen = vectors, [], []
    for _ in range(2):
        book = left[torch.randperm(len(left), generator=torch.manual_seed(0))[:256]]
        for _ in range(10):
            found = torch.cdist(left, book).argmin(1)
            counts = torch.bincount(found, minlength=256).clamp(min=1)[:, None]
            book = torch.zeros(256, 8).index_add_(0, found, left) / counts
        book = book.half()
        found = torch.cdist(left, book.float()).argmin(1)
        left = left - book.float()[found]
        books.append(book)
        chosen.append(found)
    indices = torch.stack(chosen, -1).view(len(weight), -1, 2).to(torch.int8)
    stored = {
        "codes": indices,
        "codebooks": torch.stack(books)[:, :, None],
        "scales": scales[..., None, None],
    }
    return stored, ((vectors - left).view_as(weight) * scales.float())


def four_values(name: str, weight: torch.Tensor) -> tuple[Stored, torch.Tensor]:
    """AQLM's one book of 65,536: every choice of a normal distribution's best four values.

    By k-means it would hold almost all the vectors of so small a layer.
    """
    values = torch.tensor([-1.51, -0.4528, 0.4528, 1.51]).half()
    scales = weight.square().mean(1, keepdim=True).sqrt().clamp(min=1e-8).half()
    chosen = torch.bucketize(weight / scales.float(), (values[1:] + values[:-1]).float() / 2)
    indices = (chosen.unflatten(1, (-1, 8)) << torch.arange(14, -1, -2)).sum(-1, keepdim=True)
    stored = {
        "codes": indices.to(torch.int16),
        "codebooks": torch.cartesian_prod(*[values] * 8)[None, :, None],
        "scales": scales[..., None, None],
    }
    return stored, values.float()[chosen] * scales.float()


def fitted(parts: Stored, inputs: str, low: float, high: float) -> Stored:
    """Parts whose scales of inputs, where they are stored, hold those from low to high."""
    factor = _LARGEST.get(inputs[:3], 1.0) / max(-low, high)
    found = {"input_scale": 1 / factor, "input_global_scale": factor}
    if "input_zero_point" in parts:
        scale = (high - low) / 255
        found = {"input_scale": scale, "input_zero_point": round(-128 - low / scale)}
    return parts | {
        name: torch.full_like(parts[name], value) for name, value in found.items() if name in parts
    }


# Name: the inputs' rounding, and the checkpoint.
CHECKPOINTS: dict[str, tuple[str, Settings, Quantise]] = {
    "awq, 4 bits": ("", _AWQ, awq(GROUP)),
    "awq, 4 bits, gemv_fast": (
        *("", _AWQ | {"version": "gemv_fast"}),
        integers.awq_gemv_fast(GROUP),
    ),
    "gptq, 2 bits": ("", _GPTQ | {"bits": 2, "sym": False}, integers.any_bits(GROUP, 2)),
    "gptq, 3 bits": ("", _GPTQ | {"bits": 3, "sym": False}, integers.any_bits(GROUP, 3)),
    "gptq, 4 bits": ("", _GPTQ, gptq(GROUP, 4, True, True)),
    "gptq, 4 bits, act-order": ("", _GPTQ | {"desc_act": True}, gptq(GROUP, 4, True, False)),
    "gptq, 8 bits": ("", _GPTQ | {"bits": 8}, gptq(GROUP, 8, True, True)),
    "marlin_24, 4 bits": (
        *("", MARLIN | {"checkpoint_format": "marlin_24"}),
        integers.marlin_24(GROUP, 4),
    ),
    "qqq": (
        *("", {"quant_method": "qqq", "bits": 4, "group_size": GROUP}),
        integers.qqq(GROUP),
    ),
    "hqq, 2 bits": ("", hqq(2, GROUP), integers.hqq(GROUP, 2)),
    "hqq, 3 bits": ("", hqq(3, GROUP), integers.hqq(GROUP, 3)),
    "hqq, 4 bits": ("", hqq(4, GROUP), integers.hqq(GROUP, 4)),
    "hqq, 8 bits": ("", hqq(8, GROUP), integers.hqq(GROUP, 8)),
    "torchao int8": ("", torchao("Int8WeightOnlyConfig"), integers.torchao_int8),
    "torchao int8, groups of 32": ("", *FORMATS["torchao int8 groups"][:2]),
    **{
        f"torchao {kind}, groups of 32": ("", *FORMATS[f"torchao {kind}"][:2])
        for kind in ("int1", "int3 asymmetric", "int7 asymmetric")
    },
    "torchao int8 by int8": ("int8 by token", *CASES["torchao int8 by int8"][:2]),
    "torchao int4": (
        *("", torchao("Int4WeightOnlyConfig", group_size=GROUP)),
        integers.torchao_int4(GROUP),
    ),
    "torchao int4 by int8, groups of 32": ("int8 by token", *CASES["torchao int4 by int8"][:2]),
    "bitsandbytes int8": (
        *("", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
        integers.llm_int8,
    ),
    "bitsandbytes nf4, double": (
        *("", _BNB | {"bnb_4bit_quant_type": "nf4"}),
        codes.bitsandbytes("nf4", True),
    ),
    "bitsandbytes fp4": (
        *("", _BNB | {"bnb_4bit_quant_type": "fp4"}),
        codes.bitsandbytes("fp4", False),
    ),
    "compressed-tensors W3A16": (
        *("", codes.compressed(_INT4 | {"num_bits": 3})),
        codes.words(3, GROUP, True),
    ),
    "compressed-tensors W4A16": ("", codes.compressed(_INT4), _AS_INT4),
    "compressed-tensors W4A16, asymmetric": (
        *("", codes.compressed(_INT4 | {"symmetric": False})),
        codes.words(4, GROUP, False),
    ),
    "compressed-tensors W4A16, act-order": (
        *("", codes.compressed(_INT4 | {"actorder": "group"})),
        codes.words(4, GROUP, True, is_ordered=False),
    ),
    "compressed-tensors W4A8": (
        *("int8 by token", codes.compressed(_INT4, _TOKENS, format="pack-quantized")),
        _AS_INT4,
    ),
    "compressed-tensors W4AFP8": (
        *("fp8 by token", codes.compressed(_INT4, _FP8_TOKENS, format="pack-quantized")),
        _AS_INT4,
    ),
    "compressed-tensors W4A4": (
        "int4 by token",
        codes.compressed(_INT4, _TOKENS | {"num_bits": 4}, format="pack-quantized"),
        _AS_INT4,
    ),
    "compressed-tensors W4A4, inputs in groups": (
        f"int4 in {GROUP}",
        codes.compressed(_INT4, _INT4 | {"dynamic": True}, format="pack-quantized"),
        _AS_INT4,
    ),
    "compressed-tensors W4AFP4": (
        "fp4 by token",
        codes.compressed(_INT4, _FP8_TOKENS | {"num_bits": 4}, format="pack-quantized"),
        _AS_INT4,
    ),
    "compressed-tensors W5A16, groups of 32": ("", *CASES["W5A16"][:2]),
    "compressed-tensors 2:4": ("", *CASES["2:4"][:2]),
    "compressed-tensors 2:4 int8": ("int8 by token", *CASES["2:4 int"][:2]),
    "compressed-tensors 2:4 fp8": ("fp8 by token", *CASES["2:4 float"][:2]),
    "compressed-tensors W8A16": (
        *("", codes.compressed(_INT4 | {"num_bits": 8})),
        codes.words(8, GROUP, True),
    ),
    "compressed-tensors W8A16 fp8": ("", *CASES["W8A16 float"][:2]),
    "compressed-tensors W8A8": ("int8 by token", *CASES["W8A8 int"][:2]),
    "compressed-tensors W8A8, asymmetric inputs": (
        *("int8 by token", CASES["W8A8 int asymmetric"][0]),
        CASES["W8A8 int"][1],
    ),
    "compressed-tensors W8A8, static": ("int8 by layer", *CASES["W8A8 int static"][:2]),
    "compressed-tensors W8A8, static asymmetric inputs": (
        "int8 by layer",
        *CASES["W8A8 int static asymmetric"][:2],
    ),
    "compressed-tensors W8A8 fp8": ("fp8 by token", *CASES["W8A8 float"][:2]),
    "fp8": ("fp8 by token", *CASES["fp8"][:2]),
    "fp8, static": ("fp8 by layer", *CASES["fp8 static"][:2]),
    "fp8, inputs by powers of two": ("fp8 by token", *CASES["fp8 by powers"][:2]),
    "fp8, blocks of 128x128": ("fp8 in 128", *CASES["fp8 blocks"][:2]),
    "compressed-tensors MXFP8": ("fp8 in 32", *CASES["MXFP8"][:2]),
    "compressed-tensors MXFP6": ("fp6 in 32", *CASES["MXFP6"][:2]),
    "quark fp6_e3m2": ("", *CASES["quark fp6_e3m2"][:2]),
    "quark fp4, fp8 inputs": ("fp8 by token", *CASES["quark fp4, fp8"][:2]),
    "quark fp4, fp6 inputs": ("fp6 in 32", *CASES["quark fp4, fp6"][:2]),
    "compressed-tensors MXFP4": ("fp4 in 32", *CASES["MXFP4"][:2]),
    "compressed-tensors MXFP4A16": ("", *CASES["MXFP4A16"][:2]),
    "compressed-tensors NVFP4": ("fp4 in 16", *CASES["NVFP4"][:2]),
    "compressed-tensors NVFP4A16": ("", *CASES["NVFP4A16"][:2]),
    "modelopt NVFP4": ("fp4 in 16", *CASES["modelopt NVFP4"][:2]),
    **{
        name: (inputs, FP_QUANT[name], fp_quant(FP_QUANT[name]))
        for name, inputs in (
            ("fp_quant nvfp4", "fp4 in 16"),
            ("fp_quant mxfp4", "fp4 in 32"),
            ("fp_quant mxfp4 quest", "fp4 in 32"),
        )
    },
    "modelopt W4A16_NVFP4": ("", *CASES["modelopt W4A16"][:2]),
    "modelopt W4A16_AWQ": (
        *("", _MODELOPT4 | {"quant_algo": "W4A16_AWQ"}),
        codes.modelopt_awq(GROUP),
    ),
    "modelopt W4A8_AWQ": (
        *("fp8 by layer", _MODELOPT4 | {"quant_algo": "W4A8_AWQ"}),
        codes.modelopt_awq(GROUP, has_input_scale=True),
    ),
    "aqlm, 2 books of 256": ("", AQLM["2x8"], nearest_vectors),
    "aqlm, 1 book of 65,536": ("", AQLM["1x16"], four_values),
    "bitnet": ("", *TERNARY["divided"]),
}
_CHANNELS = scaled(E4M3, "channel", False)
# Name: the checkpoint above that has the same numbers in another layout, and this one's.
ALIKE: dict[str, tuple[str, Settings, Quantise]] = {
    "awq, 4 bits, gemv": (
        *("awq, 4 bits", _AWQ | {"version": "gemv"}),
        integers.awq_gemv(GROUP),
    ),
    "awq, 4 bits, around the middle": (
        *("gptq, 4 bits", _AWQ | {"zero_point": False}),
        integers.awq_even(GROUP),
    ),
    "awq, 4 bits, marlin": (
        *("gptq, 4 bits", _AWQ | {"zero_point": False, "version": "marlin"}),
        integers.awq_marlin(GROUP),
    ),
    "gptq, 4 bits, asymmetric": (
        *("awq, 4 bits", _GPTQ | {"sym": False}),
        gptq(GROUP, 4, False, True),
    ),
    "gptq_v2, 4 bits": (
        *("gptq, 4 bits", _GPTQ | {"checkpoint_format": "gptq_v2"}),
        gptq(GROUP, 4, True, True, 0),
    ),
    "marlin, 4 bits": (
        *("gptq, 4 bits", {"quant_method": "marlin", "group_size": GROUP}),
        integers.marlin(GROUP, 4),
    ),
    "marlin, 8 bits": (
        *("gptq, 8 bits", MARLIN | {"checkpoint_format": "marlin", "bits": 8}),
        integers.marlin(GROUP, 8),
    ),
    "compressed-tensors marlin-24": (
        *("marlin_24, 4 bits", codes.compressed(_INT4, format="marlin-24")),
        integers.marlin_24_packed(GROUP, 4),
    ),
    "bitblas, 2 bits": (
        *("gptq, 2 bits", _BITBLAS | {"bits": 2, "sym": False}),
        integers.bitblas(GROUP, 2, False),
    ),
    "bitblas, 4 bits": ("gptq, 4 bits", _BITBLAS, integers.bitblas(GROUP, 4, True)),
    "bitblas, 8 bits": (
        *("gptq, 8 bits", _BITBLAS | {"bits": 8}),
        integers.bitblas(GROUP, 8, True, is_signed=True),
    ),
    "auto-round": ("gptq, 4 bits", _AUTO_ROUND | {"sym": True}, gptq(GROUP, 4, True, True)),
    "auto-round awq": (
        *("awq, 4 bits", _AUTO_ROUND | {"packing_format": "auto_round:auto_awq"}),
        awq(GROUP),
    ),
    "torchao float8": (
        *("compressed-tensors W8A16 fp8", torchao("Float8WeightOnlyConfig")),
        integers.torchao_float8(_CHANNELS),
    ),
    "torchao float8 by float8": (
        *("compressed-tensors W8A8 fp8", torchao(BY_FLOAT8, granularity=[PER_ROW, PER_ROW])),
        integers.torchao_float8(_CHANNELS),
    ),
    "torchao float8 by float8, of tensors": ("fp8", *CASES["torchao float8 of tensors"][:2]),
    "fbgemm_fp8": ("compressed-tensors W8A8 fp8", *CASES["fbgemm_fp8"][:2]),
    "modelopt FP8_PER_CHANNEL_PER_TOKEN": (
        "compressed-tensors W8A8 fp8",
        *CASES["modelopt channels"][:2],
    ),
    "quark fp8 by token": ("compressed-tensors W8A8 fp8", *CASES["quark fp8 tokens"][:2]),
    "compressed-tensors W8A8 fp8, static": ("fp8, static", *CASES["W8A8 float tensor"][:2]),
    "modelopt FP8": ("fp8, static", *CASES["modelopt FP8"][:2]),
    "quark fp8, static": ("fp8, static", *CASES["quark fp8"][:2]),
    "quark int8": ("compressed-tensors W8A8", *CASES["quark int8"][:2]),
    "quark int8, static": ("compressed-tensors W8A8, static", *CASES["quark int8 static"][:2]),
    "quark int8, static asymmetric inputs": (
        "compressed-tensors W8A8, static asymmetric inputs",
        *CASES["quark int8 shifted"][:2],
    ),
    "mxfp8": ("compressed-tensors MXFP8", *CASES["mxfp8"][:2]),
    "modelopt MXFP8": ("compressed-tensors MXFP8", *CASES["modelopt MXFP8"][:2]),
    "quark fp6_e2m3": ("compressed-tensors MXFP6", *CASES["quark fp6_e2m3"][:2]),
    "quark fp4": ("compressed-tensors MXFP4", *CASES["quark fp4"][:2]),
    "modelopt NVFP4_AWQ": ("modelopt NVFP4", *CASES["modelopt NVFP4_AWQ"][:2]),
    "quark nvfp4": ("modelopt NVFP4", *CASES["quark nvfp4"][:2]),
}
