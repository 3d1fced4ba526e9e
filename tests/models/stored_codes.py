"""Writers of floats and integers with scales, as tools store them, and of rounded activations.

Written from the formats' descriptions, independently of the readers under test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.models.quantized_checkpoints import Quantise, Stored

Round = Callable[[Tensor], Tensor]
E4M3 = torch.float8_e4m3fn


def float_values(exponent_bits: int, mantissa_bits: int, bias: int) -> list[float]:
    """Every value of a small float, by its code; the sign is the highest bit."""
    values = []
    for code in range(2 ** (exponent_bits + mantissa_bits)):
        exponent, mantissa = divmod(code, 2**mantissa_bits)
        if exponent:
            values.append((1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias))
        else:
            values.append(mantissa / 2**mantissa_bits * 2.0 ** (1 - bias))
    return values + [-value for value in values]


FP4 = torch.tensor(float_values(2, 1, 1))
SMALL = {
    "fp4": (FP4, 4),
    "fp6_e2m3": (torch.tensor(float_values(2, 3, 1)), 6),
    "fp6_e3m2": (torch.tensor(float_values(3, 2, 3)), 6),
}


def nearest(x: Tensor, values: Tensor) -> Tensor:
    """The codes of the values that are nearest to x, of a tie the even one."""
    half = len(values) // 2
    middles = (values[1:half].double() + values[: half - 1].double()) / 2
    size = x.abs().double()
    codes = torch.bucketize(size, middles)
    is_odd_tie = (codes % 2 == 1) & (size == middles[codes.clamp(max=half - 2)])
    return codes + is_odd_tie + half * x.signbit()


def in_bytes(codes: Tensor, bits: int) -> Tensor:
    """Codes [M, N] one after another in bytes, lowest bits first."""
    shifts = torch.arange(bits)
    places = (codes[..., None] >> shifts & 1).flatten(1).unflatten(1, (-1, 8))
    return (places << torch.arange(8)).sum(-1).to(torch.uint8)


def power_of_two(groups: Tensor, largest: float) -> Tensor:
    """Scales [..., 1] of groups as the OCP formats have them."""
    exponents = [
        math.floor(math.log2(top)) - math.floor(math.log2(largest)) if top > 0 else 0
        for top in groups.abs().amax(-1).flatten().tolist()
    ]
    return torch.tensor([2.0**e for e in exponents]).view(*groups.shape[:-1], 1)


def exponents(scales: Tensor) -> Tensor:
    return (scales.log2() + 127).to(torch.uint8).squeeze(-1)


def mx(kind: str, weight_name: str = "weight", scale_name: str = "weight_scale") -> Quantise:
    """fp8, fp4 or fp6 with a power of two for each 32 inputs."""

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        groups = weight.unflatten(1, (-1, 32))
        scales = power_of_two(groups, 448.0 if kind == "fp8" else float(SMALL[kind][0].max()))
        if kind == "fp8":
            codes = (groups / scales).clamp(-448, 448).to(E4M3)
            worth, packed = codes.float() * scales, codes.flatten(1)
        else:
            values, bits = SMALL[kind]
            found = nearest(groups / scales, values)
            worth, packed = values[found] * scales, in_bytes(found.flatten(1), bits)
        return {weight_name: packed, scale_name: exponents(scales)}, worth.flatten(1)

    return quantise


def deepseek_v4(scale_name: str = "scale") -> Quantise:
    """Routed experts as mx fp4, two to a signed byte, others as fp8 in blocks of 128 by 128.

    All scales are powers of two, of a type of their own.
    """

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        if ".experts." in name:
            stored, worth = mx("fp4")(name, weight)
            codes, scales = stored["weight"].view(torch.int8), stored["weight_scale"]
        else:
            rows, columns = weight.shape
            whole = torch.nn.functional.pad(weight, (0, -columns % 128, 0, -rows % 128))
            blocks = whole.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).transpose(1, 2)
            powers = power_of_two(blocks.flatten(2), 448.0) * 2  # none is beyond
            wide = powers.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns, 0]
            codes = (weight / wide).to(E4M3)
            worth, scales = codes.float() * wide, exponents(powers)
        return {"weight": codes, scale_name: scales.view(torch.float8_e8m0fnu)}, worth

    return quantise


def sparse(quantise: Quantise) -> Quantise:
    """Without two of each four values, as sparse-24-bitmask stores what is left."""

    def quantise_left(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        quads = weight.unflatten(1, (-1, 4))
        dropped = quads.abs().argsort(-1)[..., :2]
        stored, worth = quantise(name, quads.scatter(-1, dropped, 0.0).flatten(1))
        codes = stored.pop("weight")
        is_left = torch.ones_like(quads).scatter(-1, dropped, 0.0).flatten(1).bool()
        bare = codes.view(torch.uint8 if codes.element_size() == 1 else codes.dtype)
        stored["compressed"] = bare[is_left].view(codes.dtype).view(len(weight), -1)
        stored["bitmask"] = in_bytes(is_left.long(), 1)
        return stored | {"shape": torch.tensor(weight.shape)}, worth

    return quantise_left


def nvfp4(is_divided: bool, has_input_scale: bool, is_bare: bool = False) -> Quantise:
    """compressed-tensors' names and divisors, or ModelOpt's names and factors."""

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        groups = weight.unflatten(1, (-1, 16))
        factor = weight.abs().amax() / (448 * 6)
        factor = 2.0 ** factor.log2().round() if is_divided else factor
        factor = torch.ones(()) if is_bare else factor
        scales = (groups.abs().amax(-1, keepdim=True) / 6 / factor).clamp(max=448).to(E4M3)
        wide = scales.float() * factor
        codes = nearest(torch.where(wide > 0, groups / wide, 0.0), FP4)
        stored = {
            "weight_packed" if is_divided else "weight": in_bytes(codes.flatten(1), 4),
            "weight_scale": scales.squeeze(-1),
            "weight_global_scale" if is_divided else "weight_scale_2": (
                (1 / factor).view(1) if is_divided else factor
            ),
        }
        if is_bare:
            del stored["weight_scale_2"]
        if has_input_scale:
            own = torch.tensor([1 / INPUT_FACTOR if is_divided else INPUT_FACTOR])
            stored["input_global_scale" if is_divided else "input_scale"] = own
        return stored, (FP4[codes] * wide).flatten(1)

    return quantise


def torchao_tiled(quantise: Quantise) -> Quantise:
    """ModelOpt's names as torchao's, and scales in tiles of 128 by 4, padded with zeros."""
    names = {"weight": "qdata", "weight_scale_2": "per_tensor_scale"}
    names["input_scale"] = "act_per_tensor_scale"

    def quantise_tiled(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        stored, worth = quantise(name, weight)
        scales = stored.pop("weight_scale")
        rows, columns = torch.meshgrid(*map(torch.arange, scales.shape), indexing="ij")
        down, across = (-(-size // of) for size, of in zip(scales.shape, (128, 4), strict=True))
        places = (rows // 128 * across + columns // 4) * 512
        places += rows % 32 * 16 + rows % 128 // 32 * 4 + columns % 4
        tiled = torch.zeros(down * across * 512, dtype=torch.uint8)
        tiled[places.flatten()] = scales.flatten().view(torch.uint8)
        kind = torch.float8_e8m0fnu if scales.dtype is torch.uint8 else scales.dtype
        parts = {f"_weight_{names[part]}": tensor for part, tensor in stored.items()}
        if "input_scale" in stored:
            parts["_weight_act_per_tensor_scale"] = stored["input_scale"].view(())
        return parts | {"_weight_scale": tiled.view(kind).view(down * 32, across * 16)}, worth

    return quantise_tiled


# bitsandbytes' values, in the order of its codes; those of fp4 from its bits.
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
BNB_FP4 = tuple(
    sign * value / 12.0
    for sign in (1, -1)
    for value in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
)
BNB_VALUES = {"nf4": torch.tensor(NF4), "fp4": torch.tensor(BNB_FP4)}


def bitsandbytes(kind: str, is_nested: bool, block: int = 64) -> Quantise:
    """Four bits, the first of two in the upper half; blocks run from row to row."""

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        line, values = weight.flatten(), BNB_VALUES[kind]
        blocks = torch.nn.functional.pad(line, (0, -len(line) % block)).view(-1, block)
        absmax = blocks.abs().amax(1)
        settings: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "float32"}
        settings["shape"] = list(weight.shape)
        stored = {"weight.quant_map": values.clone(), "weight.absmax": absmax}
        if is_nested:
            nested = torch.linspace(-1, 1, 256)
            offset, size = float(absmax.mean()), 256
            rest = absmax - offset
            groups = torch.nn.functional.pad(rest, (0, -len(rest) % size)).view(-1, size)
            largest = groups.abs().amax(1)
            near = (groups / largest[:, None]).flatten()[: len(rest), None] - nested
            codes = near.abs().argmin(1)
            absmax = nested[codes] * largest.repeat_interleave(size)[: len(rest)] + offset
            stored |= {"weight.absmax": codes.byte(), "weight.nested_absmax": largest}
            stored["weight.nested_quant_map"] = nested
            settings |= {"nested_blocksize": size, "nested_dtype": "float32"}
            settings["nested_offset"] = offset
        found = ((blocks / absmax[:, None])[..., None] - values).abs().argmin(-1)
        worth = (values[found] * absmax[:, None]).flatten()[: len(line)].view(weight.shape)
        codes = found.flatten()[: len(line)].byte().view(-1, 2)
        stored["weight"] = (codes[:, :1] << 4) | codes[:, 1:]
        text = json.dumps(settings).encode()
        blob = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return stored | {f"weight.quant_state.bitsandbytes__{kind}": blob}, worth

    return quantise


# Of NVFP4's inputs.
INPUT_FACTOR = 2.0**-9


def words(
    bits: int, group: int, is_symmetric: bool, is_ordered: bool = True, is_dense: bool = True
) -> Quantise:
    """compressed-tensors' pack-quantized: int32 along inputs, of zero points along outputs.

    Codes run on from word to word; in earlier releases what was left of a word stayed empty.
    """

    def packed(codes: Tensor) -> Tensor:
        if is_dense and 32 % bits:
            padded = torch.nn.functional.pad(codes, (0, -codes.shape[1] % 32))
            flat = in_bytes(padded, bits).view(torch.int32)
            return flat[:, : -(-codes.shape[1] * bits // 32)]
        count = 32 // bits
        padded = torch.nn.functional.pad(codes, (0, -codes.shape[1] % count))
        places = padded.unflatten(1, (-1, count)) << (bits * torch.arange(count))
        whole = places.sum(-1)
        return whole.where(whole < 2**31, whole - 2**32).int()

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        size, middle = weight.shape[1], 2 ** (bits - 1)
        order = torch.arange(size) // group
        if not is_ordered:
            order = order[torch.randperm(size, generator=torch.Generator().manual_seed(size))]
        scales = torch.empty(len(weight), size // group)
        zeros = torch.zeros(len(weight), size // group, dtype=torch.long)
        codes = torch.empty(weight.shape, dtype=torch.long)
        for g in range(size // group):
            part = weight[:, order == g]
            low, high = part.amin(1), part.amax(1)
            if is_symmetric:
                high = torch.maximum(high, -low)
                low = -high
            scales[:, g] = (high - low) / (2**bits - 1)
            if not is_symmetric:
                zeros[:, g] = (-middle - low / scales[:, g]).round().clamp(-middle, middle - 1)
            near = (part / scales[:, g, None]).round().long() + zeros[:, g, None]
            codes[:, order == g] = near.clamp(-middle, middle - 1)
        stored = {
            "weight_packed": packed(codes + middle),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not is_symmetric:
            stored["weight_zero_point"] = packed((zeros + middle).T).T
        if not is_ordered:
            stored["weight_g_idx"] = order.int()
        return stored, (codes - zeros[:, order]).float() * scales[:, order]

    return quantise


def round_tokens(largest: float, group: int = 0) -> Round:
    """Rows, or groups of inputs, to int8 (127) or fp8 (448) by their largest values."""

    def rounded(x: Tensor) -> Tensor:
        size = group or x.shape[1]
        padded = torch.nn.functional.pad(x, (0, -x.shape[1] % size)).unflatten(1, (-1, size))
        scale = padded.abs().amax(-1, keepdim=True) / largest
        codes = torch.where(scale > 0, padded / scale, 0.0)
        codes = codes.round() if largest == 127 else codes.to(E4M3).float()
        return (codes * scale).flatten(1)[:, : x.shape[1]]

    return rounded


def round_by_powers(group: int = 0, values: Tensor | None = None) -> Round:
    """The same to fp8 or `values`, by the least powers of two that leave no value out of range."""
    most = 448.0 if values is None else float(values.max())

    def rounded(x: Tensor) -> Tensor:
        groups = x.unflatten(1, (-1, group or x.shape[1]))
        scale = torch.ones(*groups.shape[:-1], 1)
        while bool((is_above := groups.abs().amax(-1, keepdim=True) > most * scale).any()):
            scale = torch.where(is_above, scale * 2, scale)
        while bool((is_far := groups.abs().amax(-1, keepdim=True) <= most / 2 * scale).any()):
            scale = torch.where(is_far, scale / 2, scale)
        steps = groups / scale
        codes = steps.to(E4M3).float() if values is None else values[nearest(steps, values)]
        return (codes * scale).flatten(1)

    return rounded


# Integers of four bits, as those of small floats are listed.
INT4 = torch.tensor([*range(8), *(-value for value in range(8))]).float()


def round_small(values: Tensor, group: int = 0) -> Round:
    """Rows, or groups of inputs, to small numbers by their largest values."""

    def rounded(x: Tensor) -> Tensor:
        groups = x.unflatten(1, (-1, group or x.shape[1]))
        scale = groups.abs().amax(-1, keepdim=True) / values.max()
        codes = nearest(torch.where(scale > 0, groups / scale, 0.0), values)
        return (values[codes] * scale).flatten(1)

    return rounded


def modelopt_awq(group: int, has_input_scale: bool = False) -> Quantise:
    """ModelOpt's integers of four bits, those of two outputs in a byte.

    Where inputs are floats of eight bits, a scale says how weights become such too.
    """

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        groups = weight.unflatten(1, (-1, group))
        scales = groups.abs().amax(-1) / 7
        codes = (groups / scales[..., None]).round().int().clamp(-8, 7)
        numbers = codes.flatten(1) & 15
        stored = {"weight": (numbers[::2] | numbers[1::2] << 4).to(torch.uint8)}
        if has_input_scale:
            stored["input_scale"] = torch.tensor(0.04 if "q_proj" in name else 0.05)
            stored["weight_scale_2"] = weight.abs().amax() / 448
        return stored | {"weight_scale": scales}, (codes * scales[..., None]).flatten(1)

    return quantise


def with_factors(quantise: Quantise) -> Quantise:
    """A number for each input of some layers, as AWQ leaves those that follow no norm."""

    def quantise_with(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        stored, worth = quantise(name, weight)
        if "o_proj" not in name and "down_proj" not in name:
            return stored, worth
        factors = torch.linspace(0.5, 2, weight.shape[1]).bfloat16()
        return stored | {"pre_quant_scale": factors}, worth * factors.float()

    return quantise_with


def round_by(scale: float, largest: float) -> Round:
    def rounded(x: Tensor) -> Tensor:
        codes = (x / scale).clamp(-largest, largest)
        return (codes.round() if largest == 127 else codes.to(E4M3).float()) * scale

    return rounded


def with_zero_points(quantise: Quantise, other: int = -20) -> Quantise:
    """The code of zero for inputs beside their scale; those of fused layers cover unlike ranges."""

    def quantise_shifted(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        stored, worth = quantise(name, weight)
        # Of q_proj, whose scale is 0.04: from -5.04 to 5.16. Of others -5.4 to 7.35.
        zero = torch.tensor([-2 if "q_proj" in name and other else other], dtype=torch.int8)
        return stored | {"input_zero_point": zero}, worth

    return quantise_shifted


def round_by_shift(scale: float, zero: int) -> Round:
    def rounded(x: Tensor) -> Tensor:
        codes = ((x / scale).round() + zero).clamp(-128, 127)
        return (codes - zero) * scale

    return rounded


def round_mx(kind: str) -> Round:
    def rounded(x: Tensor) -> Tensor:
        _, worth = mx(kind)("", x)
        return worth

    return rounded


def round_nvfp4(x: Tensor, factor: float = INPUT_FACTOR) -> Tensor:
    groups = x.unflatten(1, (-1, 16))
    scales = (groups.abs().amax(-1, keepdim=True) / 6 / factor).clamp(max=448)
    wide = scales.to(E4M3).float() * factor
    codes = nearest(torch.where(wide > 0, groups / wide, 0.0), FP4)
    return (FP4[codes] * wide).flatten(1)


def compressed(
    weights: dict[str, Any], inputs: dict[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
        **settings,
    }


def round_shifted(x: Tensor) -> Tensor:
    """Rows to int8 from their least value to their largest, zero among them."""
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    scale = (high - low) / 255
    zero = (-128 - low / scale).round().clamp(-128, 127)
    codes = ((x / scale).round() + zero).clamp(-128, 127)
    return (codes - zero) * scale
