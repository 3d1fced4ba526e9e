"""Quantises a plain checkpoint by compressed-tensors and bitsandbytes, in an environment of theirs.

    PYTHON tests/models/written_by_packages.py PLAIN OUT

Run by test_packages.py. Writes OUT/CASE/packed, and OUT/CASE/plain with the values that the
package itself makes of what it stored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_quant, quantize_4bit
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import load_file, save_file
from torch import Tensor

Parts = dict[str, Tensor]
Quantise = Callable[[Tensor], tuple[Parts, Tensor]]

GROUPS: dict[str, Any] = {"type": "int", "strategy": "group", "group_size": 32}
TOKENS = QuantizationArgs(num_bits=8, type="int", strategy="token", dynamic=True)
SHIFTED = TOKENS.model_copy(update={"symmetric": False})
PRESETS = ("W8A8", "FP8_DYNAMIC", "NVFP4A16", "NVFP4", "MXFP4A16", "MXFP4", "MXFP8")


def schemes() -> Iterator[tuple[str, QuantizationScheme]]:
    for name in PRESETS:
        yield name, preset_name_to_scheme(name, ["Linear"])
    for bits in (2, 3, 4, 5, 6, 8):
        for is_symmetric in (True, False):
            weights = QuantizationArgs(num_bits=bits, symmetric=is_symmetric, **GROUPS)
            name = f"W{bits}A16{'' if is_symmetric else ' asymmetric'}"
            yield name, QuantizationScheme(targets=["Linear"], weights=weights)
    channels = QuantizationArgs(num_bits=8, type="int", strategy="channel")
    yield (
        "W8A8 shifted",
        QuantizationScheme(targets=["Linear"], weights=channels, input_activations=SHIFTED),
    )
    tensor = QuantizationArgs(num_bits=8, type="float", strategy="tensor")
    yield "W8A16 float", QuantizationScheme(targets=["Linear"], weights=tensor)
    six = QuantizationArgs(num_bits=6, type="float", strategy="group", group_size=32)
    six = six.model_copy(update={"scale_dtype": torch.uint8, "zp_dtype": torch.uint8})
    yield "MXFP6", QuantizationScheme(targets=["Linear"], weights=six)


def compressed(scheme: QuantizationScheme, kind: str) -> Quantise:
    """By the package's own scales, compressor and decompressor."""
    args, tool = scheme.weights, BaseCompressor.get_value_from_registry(kind)
    assert args is not None

    def quantise(weight: Tensor) -> tuple[Parts, Tensor]:
        size = args.group_size if args.strategy in ("group", "tensor_group") else weight.shape[1]
        groups = weight.unflatten(1, (-1, size))
        low, high = groups.amin(-1), groups.amax(-1)
        if args.strategy == "tensor":
            low, high = weight.amin().view(1), weight.amax().view(1)
        parts = {"weight": weight.clone()}
        whole = None
        if args.strategy == "tensor_group":
            whole = generate_gparam(weight.amin(), weight.amax())
            parts["weight_global_scale"] = whole
        parts["weight_scale"], parts["weight_zero_point"] = calculate_qparams(
            low, high, args, global_scale=whole
        )
        stored = tool.compress(parts, scheme)
        worth = tool.decompress(stored, scheme)["weight"]
        inputs = scheme.input_activations
        if inputs is not None and inputs.strategy == "tensor_group":
            stored["input_global_scale"] = torch.tensor([100.0])
        return stored, worth.float()

    return quantise


def four_bits(kind: str, is_nested: bool) -> Quantise:
    def quantise(weight: Tensor) -> tuple[Parts, Tensor]:
        codes, state = quantize_4bit(weight, quant_type=kind, compress_statistics=is_nested)
        stored = {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
        return stored | {"weight": codes}, dequantize_4bit(codes, state)

    return quantise


def eight_bits(weight: Tensor) -> tuple[Parts, Tensor]:
    codes, largest, _ = int8_vectorwise_quant(weight.half())
    return {"weight": codes, "SCB": largest}, codes.float() * (largest[:, None] / 127)


def write(plain: Path, out: Path, settings: dict[str, Any], quantise: Quantise) -> None:
    state, stored = load_file(plain / "model.safetensors"), {}
    for name, tensor in list(state.items()):
        if not name.endswith("_proj.weight"):
            stored[name] = tensor
            continue
        parts, worth = quantise(tensor)
        state[name] = worth.contiguous()
        layer = name.removesuffix(".weight")
        stored |= {f"{layer}.{suffix}": part.clone().contiguous() for suffix, part in parts.items()}
    config = json.loads((plain / "config.json").read_text())
    for name, tensors in (("packed", stored), ("plain", state)):
        (out / name).mkdir(parents=True)
        save_file(tensors, out / name / "model.safetensors", {"format": "pt"})
        held = config | ({"quantization_config": settings} if name == "packed" else {})
        (out / name / "config.json").write_text(json.dumps(held, default=str))


def main(plain: Path, out: Path) -> None:
    for name, scheme in schemes():
        kind = infer_module_format(torch.nn.Linear, scheme).value
        whole = QuantizationConfig(
            config_groups={"group_0": scheme}, format=kind, ignore=["lm_head"]
        )
        settings = json.loads(whole.model_dump_json()) | {"quantization_status": "compressed"}
        write(plain, out / name, settings, compressed(scheme, kind))
    both = {"quant_method": "bitsandbytes"}
    for kind in ("nf4", "fp4"):
        for is_nested in (False, True):
            settings = both | {"load_in_4bit": True, "bnb_4bit_quant_type": kind}
            name = f"bitsandbytes {kind}{' nested' * is_nested}"
            write(plain, out / name, settings, four_bits(kind, is_nested))
    write(plain, out / "bitsandbytes", both | {"load_in_8bit": True}, eight_bits)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
