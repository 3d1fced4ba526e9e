"""Quantises a plain checkpoint by the formats' own packages, in an environment of theirs.

compressed-tensors, bitsandbytes, torchao, HQQ and AutoAWQ, whose models are not needed.

    PYTHON tests/models/written_by_packages.py PLAIN OUT

Run by test_packages.py. Writes OUT/CASE/packed, and OUT/CASE/plain with the values that the
package itself makes of what it stored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
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
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchao.core.config import config_to_dict
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MappingType,
    PerGroup,
    quantize_,
)

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


def by_torchao(config: Any) -> Quantise:
    def quantise(weight: Tensor) -> tuple[Parts, Tensor]:
        layer = _layer(weight)
        quantize_(layer, config)
        stored, _ = flatten_tensor_state_dict({"x.weight": layer.weight})
        parts = {name.removeprefix("x."): part for name, part in stored.items()}
        return parts, layer.weight.dequantize().float()

    return quantise


def torchao_configs() -> Iterator[Any]:
    group: dict[str, Any] = {"granularity": PerGroup(32)}
    yield Int8WeightOnlyConfig()
    yield Int8WeightOnlyConfig(**group)
    yield Float8WeightOnlyConfig()
    yield Int8DynamicActivationInt8WeightConfig()
    for name in ("int2", "int3", "int4", "int7", "int8"):
        dtype = getattr(torch, name)
        yield IntxWeightOnlyConfig(weight_dtype=dtype, **group)
        shifted = {"mapping_type": MappingType.ASYMMETRIC}
        yield IntxWeightOnlyConfig(weight_dtype=dtype, **group, **shifted)
    yield Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    )


def by_hqq(bits: int, group: int) -> Quantise:
    settings = BaseQuantizeConfig(nbits=bits, group_size=group, axis=1)

    def quantise(weight: Tensor) -> tuple[Parts, Tensor]:
        made = HQQLinear(_layer(weight), settings, compute_dtype=torch.float32, device="cpu")
        return dict(made.state_dict()), made.dequantize().float()

    return quantise


def by_awq(kind: str, group: int) -> Quantise:
    """AutoAWQ's layers, of numbers that are what the codes are worth."""
    if "awq" not in sys.modules:
        spec, package = find_spec("awq"), ModuleType("awq")
        package.__path__ = list((spec and spec.submodule_search_locations) or ())
        sys.modules["awq"] = package
    from awq.modules import linear

    tool = getattr(linear, f"WQLinear_{kind}")

    def quantise(weight: Tensor) -> tuple[Parts, Tensor]:
        groups = weight.unflatten(1, (-1, group))
        low, high = groups.amin(-1), groups.amax(-1)
        if kind == "Marlin":
            high = torch.maximum(high, -low)
            low = -high
        scales = ((high - low) / 15).half().float()
        zeros = (-low / scales).round().clamp(0, 15)
        zeros = zeros if kind != "Marlin" else torch.full_like(zeros, 8)
        codes = ((groups / scales[..., None]).round() + zeros[..., None]).clamp(0, 15)
        worth = ((codes - zeros[..., None]) * scales[..., None]).flatten(1)
        given = {"scales": scales, "zeros": None if kind == "Marlin" else zeros}
        if kind == "GEMM":
            given = {"scales": scales.t().contiguous(), "zeros": zeros.t().contiguous()}
        made = tool.from_linear(_layer(worth), 4, group, **given)
        if kind == "GEMVFast":  # whose zero points are worth float16
            minimums = (scales * zeros).half().float()
            worth = (codes * scales[..., None] - minimums[..., None]).flatten(1)
        return dict(made.state_dict()), worth

    return quantise


def _layer(weight: Tensor) -> torch.nn.Linear:
    layer = torch.nn.Linear(*reversed(weight.shape), bias=False)
    layer.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    return layer


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
    for i, config in enumerate(torchao_configs()):
        kind = {"quant_method": "torchao", "quant_type": {"default": config_to_dict(config)}}
        write(plain, out / f"torchao {i} {type(config).__name__}", kind, by_torchao(config))
    for bits, group in ((2, 16), (3, 64), (4, 64), (8, 128)):
        weights = {"nbits": bits, "group_size": group, "axis": 1}
        settings = {"quant_method": "hqq", "quant_config": {"weight_quant_params": weights}}
        write(plain, out / f"hqq {bits}", settings, by_hqq(bits, group))
    for kind in ("GEMM", "GEMV", "GEMVFast", "Marlin"):
        version = {"GEMVFast": "gemv_fast"}.get(kind, kind.lower())
        settings = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": version}
        settings["zero_point"] = kind != "Marlin"
        write(plain, out / f"awq {kind}", settings, by_awq(kind, 128))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
