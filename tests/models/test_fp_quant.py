"""FP-Quant's checkpoints: inputs turned by a matrix, then rounded, times floats of four bits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.quantized_checkpoints import Quantise, Stored, gptq, write_pair
from tests.models.runner import load
from tests.models.stored_codes import (
    FP4,
    Round,
    modelopt_awq,
    mx,
    nvfp4,
    round_by_powers,
    round_nvfp4,
)
from tests.models.test_quantized_checkpoints import GPTQ, SQUARE, layers
from vllm_lite.errors import CheckpointError

FP_QUANT: dict[str, Any] = {"quant_method": "fp_quant", "backward_dtype": "bf16"}
MXFP4 = FP_QUANT | {"forward_dtype": "mxfp4", "hadamard_group_size": 64}
FORMS: dict[str, dict[str, Any]] = {
    "fp_quant nvfp4": FP_QUANT | {"forward_dtype": "nvfp4"},
    "fp_quant mxfp4": MXFP4,
    "fp_quant mxfp4 quest": MXFP4 | {"forward_method": "quest"},
}
INPUT_FACTOR = 0.25
SIZES = SQUARE | {"intermediate_size": 192}


def matrix(form: dict[str, Any]) -> Tensor:
    """A Hadamard matrix whose columns have other places, so that it is not its own inverse."""
    size = form.get("hadamard_group_size", 16)
    made = torch.ones(1, 1)
    while len(made) < size:
        made = torch.cat((torch.cat((made, made), 1), torch.cat((made, -made), 1)))
    return made.roll(1, dims=1) * size**-0.5


def turned(x: Tensor, by: Tensor) -> Tensor:
    return (x.unflatten(1, (-1, len(by))) @ by).flatten(1)


def written(form: dict[str, Any]) -> Quantise:
    """Names as FP-Quant's, and powers of two as factors: sums are exact, in any order."""
    by = matrix(form)

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        if form["forward_dtype"] == "nvfp4":
            stored, worth = nvfp4(True, False)(name, turned(weight, by))
            factors = stored["weight_global_scale"], torch.tensor([1 / INPUT_FACTOR])
            codes, scales = stored["weight_packed"], stored["weight_scale"].view(torch.uint8)
        else:
            stored, worth = mx("fp4")(name, 4 * turned(weight, by))
            factors, worth = (torch.tensor([4.0]), torch.tensor([3.0])), worth / 4
            codes, scales = stored["weight"], stored["weight_scale"]
        named = {"qweight": codes, "scales": scales, "forward_hadamard_matrix": by.bfloat16()}
        named |= {"weight_global_scale": factors[0], "act_global_scale": factors[1]}
        return named | {"backward_hadamard_matrix": by.clone()}, turned(worth, by.T)

    return quantise


def round_by_spread(x: Tensor) -> Tensor:
    """QuEST's powers of two, as FP-Quant's kernel has them (`mxfp4_forward_kernel`)."""
    groups = x.unflatten(1, (-1, 32))
    spread = (groups.square().mean(-1, True) - groups.mean(-1, True).square()).sqrt()
    scale = torch.exp2(torch.floor(torch.log2(2.92247856 / 6 * spread + 1e-8)))
    steps = groups / scale
    nearest = FP4[(steps.abs().unsqueeze(-1) - FP4).abs().argmin(-1)]
    return (nearest * steps.sign() * scale).flatten(1)


def rounding(form: dict[str, Any]) -> Round:
    if form["forward_dtype"] == "nvfp4":
        return partial(round_nvfp4, factor=INPUT_FACTOR)
    return round_by_spread if "forward_method" in form else round_by_powers(32, FP4 / 3)


@pytest.mark.parametrize("name", FORMS)
@torch.inference_mode()
def test_weights_and_products_are_what_the_settings_say(name: str, tmp_path: Path) -> None:
    form, rounded = FORMS[name], rounding(FORMS[name])
    by = matrix(form)
    packed, plain = write_pair(tmp_path, form, written(form), **SIZES)
    exact, whole = layers(load(plain)), layers(load(packed, quantization="dequantize"))
    for layer, module in layers(load(packed)).items():
        assert torch.equal(whole[layer].kernel.weight.data, exact[layer].kernel.weight.data), layer
        x = torch.randn(5, module._inputs.size)
        near = turned(rounded(turned(x, by)), by.T)
        found = module.kernel(x)
        torch.testing.assert_close(found, exact[layer].kernel(near), rtol=1e-4, atol=1e-4)
        assert torch.equal(module.kernel(x[2:3]), found[2:3])


def of_other_parts(quantise: Quantise, suffix: str) -> Quantise:
    """Other numbers under `suffix` for keys."""

    def quantise_unlike(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        stored, worth = quantise(name, weight)
        if suffix not in stored:
            stored[suffix] = torch.ones(weight.shape[1])
        if "k_proj" in name:
            stored[suffix] = stored[suffix].flip(0) * 2
        return stored, worth

    return quantise_unlike


UNLIKE = {
    "forward_hadamard_matrix": (FORMS["fp_quant nvfp4"], written(FORMS["fp_quant nvfp4"])),
    "pre_quant_scale": (
        {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 32},
        modelopt_awq(32),
    ),
    "g_idx": (GPTQ | {"desc_act": True}, gptq(32, 4, True, False)),
}


@pytest.mark.parametrize("suffix", UNLIKE)
def test_parts_of_a_fused_layer_have_to_share_their_inputs(suffix: str, tmp_path: Path) -> None:
    settings, quantise = UNLIKE[suffix]
    packed, _ = write_pair(tmp_path, settings, of_other_parts(quantise, suffix), **SIZES)
    with pytest.raises(CheckpointError, match=f"unlike {suffix}"):
        load(packed)
