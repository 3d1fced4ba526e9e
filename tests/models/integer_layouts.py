"""Writers of layouts of integers in groups, from what their tools store.

Each was compared once with its package: HQQ 0.2.8, bitsandbytes 0.50.2 and torchao 0.18.0 as
installed, AutoAWQ's, Marlin's, QQQ's and BitBLAS's packing as published. They go place by place,
unlike the readers under test.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tests.models.quantized_checkpoints import AWQ_ORDER, Quantise, Stored, rounded, words


def in_groups(weight: Tensor, group: int, bits: int, is_symmetric: bool = False) -> Any:
    size = weight.shape[1]
    return rounded(weight, torch.arange(size) // (group if group > 0 else size), bits, is_symmetric)


def awq_gemv(group: int) -> Quantise:
    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        codes, zeros, scales, worth = in_groups(weight, group, 4)
        missing = _gemv_groups(zeros.shape[1], group) - zeros.shape[1]
        stored = {
            "qweight": words(codes, 4),
            "qzeros": words(pad(zeros, (0, missing)), 4),
            "scales": pad(scales, (0, missing)),
        }
        return stored, worth

    return quantise


def awq_gemv_fast(group: int) -> Quantise:
    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        codes, zeros, scales, _ = in_groups(weight, group, 4)
        rows, size = codes.shape
        minimums = -(scales.float() * zeros).half()
        order = []
        for start in range(0, 32, 8):  # eight of every 32: pairs that are 8 apart, even ones first
            pairs = [start // 4 + 8 * place + one for place in range(4) for one in range(2)]
            order += [pairs[place] for place in (0, 2, 4, 6, 1, 3, 5, 7)]
        shuffled = codes.reshape(rows, -1, 32)[:, :, order].reshape(rows, size)
        packed = torch.zeros(rows // 4, size, dtype=torch.int64)
        for place in range(4):
            for column in range(size):
                # Four rows of 64 columns lie one after another, four codes in a word.
                flat = column % 64 * 4 + place
                row, within = flat // 64, flat % 64
                source = shuffled[row::4, column // 64 * 64 + within]
                packed[:, column] |= source << (4 * place)
        missing = _gemv_groups(zeros.shape[1], group) - zeros.shape[1]
        stored = {
            "qweight": packed.where(packed < 2**15, packed - 2**16).short(),
            "qzeros": pad(minimums, (0, missing)).T,
            "scales": pad(scales, (0, missing)).T,
        }
        wide = scales.float().repeat_interleave(size // zeros.shape[1], 1)
        worth = codes * wide + minimums.float().repeat_interleave(size // zeros.shape[1], 1)
        return stored, worth

    return quantise


def _gemv_groups(groups: int, group: int) -> int:
    count = 8 * {32: 4, 64: 2}.get(group, 1)
    return math.ceil(groups / count) * count


def any_bits(group: int, bits: int, less_by: int = 1, is_symmetric: bool = False) -> Quantise:
    """GPTQ of bits that words of 32 need not hold whole."""

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        codes, zeros, scales, worth = in_groups(weight, group, bits, is_symmetric)
        stored = {
            "qweight": bit_stream(codes, bits).T,
            "qzeros": bit_stream((zeros - less_by).T, bits),
            "scales": scales.T,
        }
        return stored, worth

    return quantise


def bitblas(
    group: int,
    bits: int,
    is_symmetric: bool,
    dtype: torch.dtype = torch.float16,
    zeros_name: str = "zeros",
    is_signed: bool = False,
) -> Quantise:
    """BitBLAS's, which vLLM reads: compressed bytes, interleaved for inputs of float16.

    GPTQModel's later releases have `qzeros`, which are empty where all are the middle.
    """

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        size = weight.shape[1] if group == -1 else group
        codes, zeros, scales, _ = in_groups(weight, size, bits, is_symmetric)
        scales, per_word, is_paired = scales.to(dtype), 32 // bits, dtype is torch.float16
        if bits == 8:  # are not interleaved
            is_paired = False
        of_inputs = [plane.repeat_interleave(size, 1) for plane in (zeros, scales.float())]
        worth = (codes - of_inputs[0]) * of_inputs[1]
        # Number i goes to a half of the word by its last bit, one after another.
        pairs = [i % 2 * 16 + i // 2 * bits for i in range(per_word)]
        shifts = torch.tensor(pairs if is_paired else range(0, 32, bits))
        words = (codes.long().unflatten(1, (-1, per_word)) << shifts).sum(-1)
        rows = words.where(words < 2**31, words - 2**32).int().view(torch.int8)
        if bits == 2 and is_paired:  # the middle bytes change places
            rows = rows.unflatten(1, (-1, 4))[..., [0, 2, 1, 3]].flatten(1)
        stored = {"qweight": rows ^ -128 if is_signed else rows, "scales": scales}
        if not is_symmetric:
            places = torch.arange(8 // bits) * bits
            packed = (zeros.T.long().unflatten(1, (-1, 8 // bits)) << places).sum(-1)
            stored[zeros_name] = packed.to(torch.uint8).view(torch.int8)
        elif zeros_name == "qzeros":
            stored["qzeros"] = torch.empty(0, dtype=torch.int8)
        elif bits == 4:
            stored["zeros"] = torch.zeros(scales.shape[1], len(weight) // 2, dtype=torch.int8)
        return stored, worth

    return quantise


def bit_stream(numbers: Tensor, bits: int) -> Tensor:
    """Numbers along the last dimension as int32 words, bit after bit."""
    flags = (numbers[..., None] >> torch.arange(bits)) & 1
    flags = flags.flatten(-2)
    flags = pad(flags, (0, -flags.shape[-1] % 32)).unflatten(-1, (-1, 32))
    packed = (flags << torch.arange(32)).sum(-1)
    return packed.where(packed < 2**31, packed - 2**32).int()


def marlin(group: int, bits: int) -> Quantise:
    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        codes, _, scales, worth = in_groups(weight, group, bits, is_symmetric=True)
        stored = {
            "B": tiles(codes.T, bits, _marlin_place),
            "s": _scales(scales.T),
            "workspace": torch.zeros(len(weight) // 128 * 16 + 1, dtype=torch.int32),
        }
        return stored, worth

    return quantise


def qqq(group: int) -> Quantise:
    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        codes, _, scales, _ = in_groups(weight, group, 4, is_symmetric=True)
        empty: Stored = {"s_group": torch.zeros(0, dtype=torch.float16)}
        if group < 0:
            signed = codes - 8
            channel = (scales.float() / 16).T
            stored = {"B": tiles((signed & 15).T, 4, _qqq_place, (4, 0, 5, 1, 6, 2, 7, 3))}
            return stored | empty | {"s_channel": _scales(channel)}, signed * (channel.T * 16)
        channel = scales.float().amax(1, keepdim=True) / 16
        of_groups = (scales.float() / channel).half()
        stored = {
            "B": tiles(codes.T, 4, _qqq_place),
            "s_group": _scales(of_groups.T),
            "s_channel": _scales(channel.T),
        }
        wide = (of_groups.float() * channel).repeat_interleave(group, 1)
        return stored, (codes - 8) * wide

    return quantise


def marlin_24(group: int, bits: int) -> Quantise:
    """Of each four inputs two are kept, as CUTLASS lays out sparse matrices."""

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        codes, _, scales, _ = in_groups(weight, group, bits, is_symmetric=True)
        rows, size = codes.shape
        middle = 2 ** (bits - 1)
        quads = codes.reshape(rows, -1, 4)
        kept = quads.sub(middle).abs().argsort(-1)[..., 2:].sort(-1).values
        left = quads.gather(-1, kept)
        dense = torch.full_like(quads, middle).scatter_(-1, kept, left).reshape(rows, size)
        nibbles = (kept[..., 0] | kept[..., 1] << 2).reshape(rows, -1, 4)
        meta = (nibbles << torch.arange(0, 16, 4)).sum(-1)  # [M, N / 16]
        flat = torch.zeros(meta.numel(), dtype=torch.int64)
        columns = meta.shape[1]
        for row in range(rows):
            for column in range(columns):
                to = row // 64 * 64 + row % 2 * 2 + row % 8 // 4 + row % 4 // 2 * 32
                to, across = to + row % 64 // 8 * 4, column
                if to % 2 == 0 and column % 2 == 1:
                    to, across = to + 1, column - 1
                elif to % 2 == 1 and column % 2 == 0:
                    to, across = to - 1, column + 1
                flat[across // 2 * rows * 2 + to * 2 + across % 2] = meta[row, column]
        stored = {
            "B_24": tiles(left.reshape(rows, -1).T, bits, _sparse_place),
            "B_meta": flat.where(flat < 2**15, flat - 2**16).short().reshape(-1, 2 * rows),
            "s": _sparse_scales(scales.T),
            "workspace": torch.zeros(16, dtype=torch.int32),
        }
        wide = scales.float().repeat_interleave(size // scales.shape[1], 1)
        return stored, (dense - middle) * wide

    return quantise


def _marlin_place(lane: int, step: int, block: int, number: int) -> int:
    row = (2 * (lane % 4), 2 * (lane % 4) + 1, 2 * (lane % 4 + 4), 2 * (lane % 4 + 4) + 1)[number]
    return 16 * row + lane // 4 + 8 * block + 256 * step


def _qqq_place(lane: int, step: int, block: int, number: int) -> int:
    return 16 * (4 * (lane % 4) + number) + lane // 4 + 8 * block + 256 * step


def _sparse_place(lane: int, step: int, block: int, number: int) -> int:
    row = (2 * (lane % 4), 2 * (lane % 4) + 1, 2 * (lane % 4 + 4), 2 * (lane % 4 + 4) + 1)[number]
    column = lane // 4
    return 16 * row + column // 2 * 256 + 8 * (column % 2) + 4 * block + step


def tiles(codes: Tensor, bits: int, place: Any, within: tuple[int, ...] = ()) -> Tensor:
    """Codes [N, M] in tiles of 16 by 64, as 32 lanes read them."""
    within = within or ((0, 2, 4, 6, 1, 3, 5, 7) if bits == 4 else (0, 2, 1, 3))
    order = [
        place(lane, step, block, number)
        for lane in range(32)
        for step in range(4)
        for block in range(2)
        for number in range(4)
    ]
    count = len(within)
    order = [order[start + one] for start in range(0, 1024, count) for one in within]
    size, rows = codes.shape
    runs = codes.reshape(size // 16, 16, rows // 16, 16).permute(0, 2, 1, 3)
    runs = runs.reshape(-1, 1024)[:, order].reshape(size // 16, -1)
    return words(runs, bits)


def _scales(scales: Tensor) -> Tensor:
    """Scales [G, M] by eights across, or for whole rows as a lane's eight outputs."""
    order = [place + 8 * step for place in range(8) for step in range(8)]
    if len(scales) == 1:
        order = [2 * lane + one for lane in range(4) for one in (0, 1, 8, 9, 16, 17, 24, 25)]
    return scales.reshape(-1, len(order))[:, order].reshape(scales.shape)


def _sparse_scales(scales: Tensor) -> Tensor:
    order = list(range(64))
    if len(scales) > 1:
        order = [8 * run + place for run in range(8) for place in (0, 4, 1, 5, 2, 6, 3, 7)]
    return scales.reshape(-1, 64)[:, order].reshape(scales.shape)


def hqq(group: int | None, bits: int, number: torch.dtype = torch.float16) -> Quantise:
    """HQQ's rows of a group each; zero points are floats."""

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        groups = weight.reshape(-1, group or weight.shape[1])
        low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
        scale = ((high - low) / (2**bits - 1)).to(number)
        zero = (-low / scale.float()).to(number)
        codes = (groups / scale.float() + zero.float()).round().clamp(0, 2**bits - 1).long()
        count = 10 if bits == 3 else 8 // bits
        runs = pad(codes, (0, 0, 0, -len(codes) % count)).chunk(count)
        packed = sum(run << (bits * place) for place, run in enumerate(reversed(runs)))
        assert isinstance(packed, Tensor)
        worth = (codes - zero.float()) * scale.float()
        notes = {"nbits": bits, "axis": 1, "group_size": group or 0}
        stored = {"W_q": packed.int() if bits == 3 else packed.byte(), "scale": scale, "zero": zero}
        stored |= {name: torch.tensor(value) for name, value in notes.items()}
        return stored, worth.reshape(weight.shape)

    return quantise


def llm_int8(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
    """bitsandbytes' rows of eight bits."""
    largest = weight.abs().amax(1)
    codes = (weight * (127 / largest)[:, None]).round()
    worth = codes * (largest / 127)[:, None]
    stored = {"weight": codes.to(torch.int8), "SCB": largest}
    return stored | {"weight_format": torch.tensor(0, dtype=torch.uint8)}, worth


def torchao_int8(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127.5
    codes = (weight / scale).round().clamp(-128, 127).to(torch.int8)
    stored = {"_weight_qdata": codes, "_weight_scale": scale}
    if "q_proj" in name:  # later versions have zero points
        stored["_weight_zero_point"] = torch.zeros_like(scale, dtype=torch.int8)
    return stored, codes * scale


def torchao_intx(group: int, bits: int, is_shifted: bool) -> Quantise:
    """A byte for each signed number, and zero points of them."""

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        groups, low_code = weight.reshape(len(weight), -1, group), -(2 ** (bits - 1))
        low, high = groups.amin(2), groups.amax(2)
        if not is_shifted:
            high = torch.maximum(high, -low)
            low = -high
        scale = ((high - low) / (2**bits - 1)).bfloat16().float()
        zero = (low_code - low / scale).round() if is_shifted else torch.zeros_like(scale)
        zero = zero.clamp(low_code, -low_code - 1)
        codes = (groups / scale[..., None]).round() + zero[..., None]
        codes = codes.clamp(low_code, -low_code - 1)
        stored = {
            "_weight_qdata": codes.flatten(1).to(torch.int8),
            "_weight_scale": scale.bfloat16(),
            "_weight_zero_point": zero.to(torch.int8),
        }
        return stored, ((codes - zero[..., None]) * scale[..., None]).reshape(weight.shape)

    return quantise


def torchao_float8(quantise: Quantise) -> Quantise:
    """Codes and scales by torchao's names; one scale has two dimensions."""

    def renamed(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        stored, worth = quantise(name, weight)
        scale = stored.get("weight_scale", stored.get("weight_scale_inv"))
        assert scale is not None
        scale = scale if scale.dim() else scale.view(1, 1)
        return {"_weight_qdata": stored["weight"], "_weight_scale": scale}, worth

    return renamed


def viewed(quantise: Quantise, storage: str) -> Quantise:
    """Bytes as numbers of another type, as sharded training stores them."""

    def quantise_viewed(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        stored, worth = quantise(name, weight)
        codes = stored["weight"].flatten().view(getattr(torch, storage))
        return stored | {"weight": codes[:, None]}, worth

    return quantise_viewed


def awq_even(group: int) -> Quantise:
    """AWQ's words of codes around their middle; some tools store the middle, some do not."""

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        codes, zeros, scales, worth = in_groups(weight, group, 4, is_symmetric=True)
        stored = {"qweight": words(codes.T, 4, AWQ_ORDER), "scales": scales.T}
        if "down" in name:
            stored["qzeros"] = words(zeros.T, 4, AWQ_ORDER)
        return stored, worth

    return quantise


def awq_marlin(group: int) -> Quantise:
    """AutoAWQ's names of Marlin's tiles."""

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        stored, worth = marlin(group, 4)(name, weight)
        return {"qweight": stored["B"], "scales": stored["s"]}, worth

    return quantise


def torchao_int4(group: int) -> Quantise:
    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        groups = weight.reshape(len(weight), -1, group)
        low, high = groups.amin(2), groups.amax(2)
        scale = ((high - low) / 15).bfloat16()
        zero = (low + scale.float() * 8).bfloat16()
        codes = (groups - zero.float()[..., None]) / scale.float()[..., None]
        codes = codes.round().clamp(-8, 7).long()
        flat = codes.reshape(weight.shape) & 15
        packed = flat[:, ::2] | flat[:, 1::2] << 4
        stored = {
            "_weight_qdata": packed.byte().view(torch.int8),
            "_weight_scale": scale.T,
            "_weight_zero_point": zero.T,
        }
        worth = codes * scale.float()[..., None] + zero.float()[..., None]
        return stored, worth.reshape(weight.shape)

    return quantise


def marlin_24_packed(group: int, bits: int) -> Quantise:
    """As compressed-tensors names it."""
    names = {"B_24": "weight_packed", "s": "scale_packed", "B_meta": "meta"}

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        stored, worth = marlin_24(group, bits)(name, weight)
        return {names[key]: part for key, part in stored.items() if key in names}, worth

    return quantise
