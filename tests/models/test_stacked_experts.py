"""Experts that lie in stacks, plain or quantised, or one by one where a family has stacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.quantized_checkpoints import Quantise, Stored, scaled, write_pair
from tests.models.runner import load
from tests.models.test_integer_checkpoints import FORMATS
from tests.models.test_quantized_checkpoints import FP8, SIZES, logits
from tests.models.test_stored_codes import CASES, STATIC8, mx, ocp, quark

E4M3 = torch.float8_e4m3fn
SQUARE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama4": SQUARE | {"intermediate_size_mlp": 128},
    "gpt_oss": SQUARE,
    "granite_moe": {"hidden_size": 128, "intermediate_size": 64},
    "dbrx": {},
}
# A part of the names of stacks that look like a layer's matrix.
STACKS = "block_sparse_moe"
# The name of a stack and its values [E, M, N], outputs by inputs, to what is stored, and its worth.
Store = Callable[[str, Tensor], tuple[Stored, Tensor]]


def one_by_one(quantise: Quantise, is_split: bool) -> Store:
    """An expert's layers under its number; gates and factors apart where `is_split`."""

    def store(name: str, values: Tensor) -> tuple[Stored, Tensor]:
        block, _, layer = name.rpartition(".")
        stored: Stored = {}
        worth = []
        for number, expert in enumerate(values):
            parts = {layer: expert}
            if is_split and layer == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), expert.chunk(2), strict=True))
            found = {part: quantise(f"{part}.weight", each) for part, each in parts.items()}
            for part, (held, _) in found.items():
                stored |= {f"{block}.{number}.{part}.{own}": each for own, each in held.items()}
            worth.append(torch.cat([each for _, each in found.values()]))
        return stored, torch.stack(worth)

    return store


def in_stacks(scale_name: str, dims: tuple[int, ...], is_turned: bool, **beside: Tensor) -> Store:
    """Codes in stacks; the maximum over `dims` has a scale, and `beside` are further tensors."""

    def store(name: str, values: Tensor) -> tuple[Stored, Tensor]:
        scales = values.abs().amax(dims, keepdim=True) / 448
        codes = (values / scales).to(E4M3)
        turned = [each.transpose(1, 2) if is_turned else each for each in (codes, scales)]
        shown = turned[1].squeeze() if len(dims) == 3 else turned[1]
        layer = name.removesuffix(".weight")
        held = {f"{layer}{suffix}": number.clone() for suffix, number in beside.items()}
        return {name: turned[0], f"{layer}{scale_name}": shown} | held, codes.float() * scales

    return store


def write(
    directory: Path, family: str, settings: Any, quantise: Quantise, store: Store
) -> tuple[Path, Path]:
    """(quantised, plain): a family's stacks stored by `store`, and their worth."""
    pair = write_pair(directory, settings, quantise, family, STACKS, **FAMILIES[family])
    stored, state = (load_file(path / "model.safetensors") for path in pair)
    is_turned = family != "granite_moe"
    for name, values in list(stored.items()):
        layer = name.rpartition(".")[2]
        if values.dim() == 3:
            upright = values.transpose(1, 2) if is_turned else values
            held, worth = store(name, upright)
            del stored[name]
            stored |= held
            state[name] = worth.transpose(1, 2) if is_turned else worth
        elif layer.endswith("_proj_bias") and any(".0.gate_up_proj." in key for key in stored):
            block = name.removesuffix(layer)
            own = f"{layer.removesuffix('_bias')}.bias"
            stored |= {f"{block}{i}.{own}": each.clone() for i, each in enumerate(values)}
            del stored[name]
    for path, tensors in zip(pair, (stored, state), strict=True):
        whole = {name: each.contiguous() for name, each in tensors.items()}
        save_file(whole, path / "model.safetensors", {"format": "pt"})
    return pair


CHANNELS, QUANTISE = CASES["W8A8 float"][:2]
BY_CHANNEL = CHANNELS | {"ignore": ["lm_head", "re:.*router"]}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "*router*"]}
FBGEMM = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head", "router"]}
INPUT = {"_input_scale": torch.tensor(0.05)}
FP4_BY_FP8 = quark(ocp("fp4"), STATIC8) | {"exclude": ["*self_attn*", "*router*", "lm_head"]}


def with_input_scale(quantise: Quantise) -> Quantise:
    def quantise_with(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        stored, worth = quantise(name, weight)
        return stored | {"input_scale": torch.tensor(0.05)}, worth

    return quantise_with


LAYOUTS: dict[str, tuple[str, Any, Quantise, Store]] = {
    "llama4 one by one": ("llama4", BY_CHANNEL, QUANTISE, one_by_one(QUANTISE, True)),
    "llama4 modelopt": (
        *("llama4", MODELOPT, scaled(E4M3, "tensor", True)),
        in_stacks("_weight_scale", (0, 1, 2), True, **INPUT),
    ),
    "llama4 fbgemm": (
        *("llama4", FBGEMM, scaled(E4M3, "channel", False)),
        in_stacks("_scale", (2,), True),
    ),
    "gpt_oss one by one": ("gpt_oss", BY_CHANNEL, QUANTISE, one_by_one(QUANTISE, False)),
    "gpt_oss quark": (
        *("gpt_oss", FP4_BY_FP8, lambda _, weight: ({"weight": weight}, weight)),
        one_by_one(with_input_scale(mx("fp4")), False),
    ),
    "granite_moe channels": (
        *("granite_moe", BY_CHANNEL, QUANTISE),
        in_stacks(".weight_scale", (2,), False),
    ),
    "granite_moe tensors": (
        *("granite_moe", FP8 | {"activation_scheme": "static"}, scaled(E4M3, "tensor", True)),
        in_stacks(".weight_scale", (1, 2), False, **{".input_scale": torch.full((5,), 0.05)}),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_experts_are_worth_what_they_store(name: str, tmp_path: Path) -> None:
    packed, plain = write(tmp_path, *LAYOUTS[name])
    whole = load(packed, quantization="dequantize")
    torch.testing.assert_close(logits(whole), logits(load(plain)), rtol=1e-5, atol=1e-5)
    assert logits(load(packed)).isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["W8A8 float", "bitsandbytes"])
def test_plain_stacks_stay_plain_beside_quantised_layers(
    name: str, family: str, tmp_path: Path
) -> None:
    settings, quantise, *_ = CASES[name] if name in CASES else FORMATS[name]
    sizes = FAMILIES[family]
    packed, plain = write_pair(tmp_path, settings, quantise, family, STACKS, **sizes)
    whole = load(packed, quantization="dequantize")
    torch.testing.assert_close(logits(whole), logits(load(plain)), rtol=1e-5, atol=1e-5)


def test_plain_experts_of_other_names_stay_plain(tmp_path: Path) -> None:
    """Mixtral's are w1, w2 and w3, for which the model has other names."""
    settings, quantise, *_ = CASES["W8A8 float"]
    sizes = {name: size for name, size in SIZES.items() if name != "num_hidden_layers"}
    packed, plain = write_pair(
        tmp_path, settings, quantise, "mixtral", left_plain="experts", **sizes
    )
    whole = load(packed, quantization="dequantize")
    torch.testing.assert_close(logits(whole), logits(load(plain)), rtol=1e-5, atol=1e-5)
