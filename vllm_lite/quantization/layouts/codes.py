"""Codes of a few bits with scales of any blocks, as most tools store them: outputs first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import StoredCodes
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.cpu.mapped_memory import empty_on_host
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.grouped_weight import GroupedWeight, make_grouped
from vllm_lite.kernels.pieces import rows_at_once
from vllm_lite.quantization.layouts.numbers import values_of
from vllm_lite.quantization.method import StoredTensor, Unpacking

_BYTES = {
    "int": torch.int8,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
_SCALES = {
    "float32": torch.float32,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "e8m0": torch.uint8,
}
# Scales of floats of eight bits beyond this are damage.
_LARGEST = 1e15
_CACHED_CODES = 1 << 18
# Bits of a code in a GroupedWeight.
_WIDTHS = (2, 3, 4, 5, 6, 8)


class CodesLayout:
    """The tensors of layers in one form."""

    def __init__(self, form: StoredCodes) -> None:
        self._form = form

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        """Unfilled tensors by suffix; raises CheckpointError for sizes that do not fit."""
        form = self._form
        rows, columns = form.block
        if rows == 1 and columns and input_size % columns:
            raise CheckpointError(f"{input_size} inputs of a layer are no groups of {columns}")
        weights = {form.weight: self._codes(input_size, output_size)}
        if form.block == (None, None):
            weights[form.scale] = _one_number(output_size)
        else:
            shape = (-(-output_size // (rows or 1)), -(-input_size // (columns or input_size)))
            scales = torch.empty(shape, dtype=_SCALES[form.scale_number], device="cpu")
            unpacking = None
            if form.scale_shape == "tiles":
                unpacking = _swizzled(scales.dtype)
            elif form.scale_shape == "bytes":
                unpacking = _as_bytes(scales.dtype)
            elif form.scale_shape != "matrix":
                unpacking = _reshaped(scales.dtype, form.scale_shape)
            weights[form.scale] = _stored(scales, form.block, unpacking)
            if form.zero_point:
                zeros = torch.full(shape, 2 ** (form.bits - 1), dtype=torch.uint8, device="cpu")
                stored = _stored(zeros, form.block, self._zeros())
                weights[form.zero_point] = replace(stored, is_optional=form.may_lack_zeros)
        for name in (form.super_scale, form.input_scale):
            if name:
                weights[name] = _one_number(output_size)
        if form.input_zero_point:
            weights[form.input_zero_point] = _one_number(output_size, torch.int8)
        if form.order:
            order = torch.empty(input_size, dtype=torch.int32, device="cpu")
            weights[form.order] = StoredTensor.on_host(order, None, 0)
        if form.input_factor:
            factors = torch.ones(input_size, dtype=torch.float32, device="cpu")
            stored = StoredTensor.on_host(factors, None, 0)
            weights[form.input_factor] = replace(stored, is_optional=True)
        if form.input_transform:
            size = form.transform_size
            if input_size % size:
                raise CheckpointError(f"{input_size} inputs of a layer are no groups of {size}")
            matrix = torch.empty(size, size, dtype=torch.float32, device="cpu")
            weights[form.input_transform] = StoredTensor.on_host(matrix, None, None)
        return weights

    def read(self, weights: Mapping[str, Tensor]) -> GroupedWeight:
        """Read the weight of filled tensors; ValueError if they contradict each other."""
        form = self._form
        codes, zeros = weights[form.weight], None
        is_integer, middle = form.number == "int", 2 ** (form.bits - 1)
        if codes.dtype is torch.int8:
            codes = _unsigned(codes, form.bits)
        codes = codes.view(torch.uint8)
        if form.zero_point and not bool((weights[form.zero_point] == middle).all()):
            zeros = weights[form.zero_point]
        if form.packing == "bytes" and form.bits < 8:
            for suffix, plane in ((form.weight, codes), (form.zero_point, zeros)):
                if plane is not None and int(plane.amax()) >= 2**form.bits:
                    raise ValueError(f"{suffix} holds numbers of more than {form.bits} bits")
        permutation = None
        if form.order:
            permutation = _permutation(weights[form.order], form.block[1] or codes.shape[1])
            codes = codes if permutation is None else codes[:, permutation]
        super_scales = None
        if form.super_scale:
            super_scales = weights[form.super_scale][:, None]
            super_scales = super_scales.reciprocal() if form.divides else super_scales
        return make_grouped(
            codes,
            self.scales(weights, len(codes)),
            next(width for width in _WIDTHS if width >= form.bits),
            middle if is_integer and zeros is None else 0,
            zeros=zeros,
            super_scales=super_scales,
            permutation=permutation,
            table=None if is_integer else values_of(form.number).to(codes.device),
            group_size=form.block[1] or codes.shape[1],
        )

    def scales(self, weights: Mapping[str, Tensor], num_outputs: int) -> Tensor:
        """The scales of each output and group, [M, G]."""
        scales = weights[self._form.scale]
        scales = scales if scales.dim() == 2 else scales[:, None]
        shared = self._form.block[0] or 1
        scales = scales.repeat_interleave(shared, dim=0)[:num_outputs] if shared > 1 else scales
        if self._form.scale_number == "e8m0":
            scales = scales.view(torch.float8_e8m0fnu)
        if scales.dtype is not torch.float32:
            # Compared so that what is no number fails too.
            if not bool((scales.float().abs() < _LARGEST).all()):
                raise ValueError(f"{self._form.scale} holds scales that are no numbers, or huge")
            return scales
        half = scales.half()
        return half if torch.equal(half.float(), scales.float()) else scales

    def _codes(self, input_size: int, output_size: int) -> StoredTensor:
        form = self._form
        if form.packing == "bytes":
            data = empty_on_host((output_size, input_size), _BYTES[form.number])
            return _stored(data, (1, 1), None)
        unpacked = empty_on_host((output_size, input_size), torch.uint8)
        if form.packing == "outputs":
            return _stored(unpacked, (1, 1), _PAIRS_OF_OUTPUTS)
        return _stored(unpacked, (1, 1), _in_pieces(_PACKINGS[form.packing](form.bits)))

    def _zeros(self) -> Unpacking:
        """Of zero points, which lie along outputs where they are packed."""
        if self._form.packing == "bytes":
            bits = self._form.bits
            return Unpacking(torch.int8, tuple, lambda stored, _: _unsigned(stored, bits))
        return _turned(_words(self._form.bits))


def _unsigned(stored: Tensor, bits: int) -> Tensor:
    """Signed numbers in bytes as codes from 0; those of more bits are codes beyond the last."""
    codes: Tensor = stored.view(torch.uint8) ^ 128
    codes -= 128 - 2 ** (bits - 1)
    return codes


def _in_pieces(packed: Unpacking) -> Unpacking:
    """The same, some rows at a time: numbers are much wider while they are unpacked."""

    def fill(stored: Tensor, codes: Tensor) -> None:
        count = rows_at_once(codes.shape[1], stored.device, _CACHED_CODES)
        for to, rows in zip(*(torch.split(each, count) for each in (codes, stored)), strict=True):
            to.copy_(packed.values(rows, to.shape))

    def values(stored: Tensor, shape: Sequence[int]) -> Tensor:
        codes = torch.empty(tuple(shape), dtype=torch.uint8)
        fill(stored, codes)
        return codes

    earlier = None if packed.earlier is None else _in_pieces(packed.earlier)
    return Unpacking(packed.dtype, packed.shape, values, earlier, fill)


def _turned(words: Unpacking) -> Unpacking:
    """Words along the first dimension."""
    return Unpacking(
        torch.int32,
        lambda shape: words.shape(shape[::-1])[::-1],
        lambda stored, shape: words.values(stored.t(), shape[::-1]).t(),
        None if words.earlier is None else _turned(words.earlier),
    )


def _words(bits: int) -> Unpacking:
    """Codes in the lowest bits of a word first, of 32 / bits each; else on through all words."""

    def values(stored: Tensor, shape: Sequence[int]) -> Tensor:
        return ops().unpack_words(stored, bits)[:, : shape[1]]

    def shape(full: Sequence[int]) -> tuple[int, ...]:
        return (full[0], -(-full[1] * bits // 32))

    earlier = None if 32 % bits == 0 else _whole_words(bits)
    return Unpacking(torch.int32, shape, values, earlier)


def _whole_words(bits: int) -> Unpacking:
    """Codes in the lowest bits of a word first; bits that are left stay empty."""
    per_word = 32 // bits

    def values(stored: Tensor, shape: Sequence[int]) -> Tensor:
        shifts = torch.arange(per_word, dtype=torch.int32) * bits
        codes: Tensor = (stored[..., None] >> shifts) & (2**bits - 1)
        return codes.to(torch.uint8).flatten(1)[:, : shape[1]]

    return Unpacking(torch.int32, lambda shape: (shape[0], -(-shape[1] // per_word)), values)


def _pairs(bits: int) -> Unpacking:
    return Unpacking(torch.uint8, _halved, lambda stored, _: _joined(stored & 15, stored >> 4))


def _swapped_pairs(bits: int) -> Unpacking:
    return Unpacking(torch.uint8, _halved, lambda stored, _: _joined(stored >> 4, stored & 15))


def _fours(bits: int) -> Unpacking:
    """Codes of six bits, the first in the lowest bits of three bytes."""

    def values(stored: Tensor, shape: Sequence[int]) -> Tensor:
        runs = stored.view(len(stored), -1, 3).int()
        words = runs[..., 0] | runs[..., 1] << 8 | runs[..., 2] << 16
        codes = [(words >> shift) & 63 for shift in (0, 6, 12, 18)]
        return torch.stack(codes, -1).to(torch.uint8).flatten(-2)

    return Unpacking(torch.uint8, lambda shape: (shape[0], -(-shape[1] // 4) * 3), values)


_PACKINGS: dict[str, Callable[[int], Unpacking]] = {
    "words": _words,
    "pairs": _pairs,
    "swapped pairs": _swapped_pairs,
    "fours": _fours,
}


# Two's complement: turned about the middle they are codes from zero.
_PAIRS_OF_OUTPUTS = Unpacking(
    torch.uint8,
    lambda shape: (-(-shape[0] // 2), shape[1]),
    lambda stored, _: torch.stack((stored & 15, stored >> 4), 1).flatten(0, 1) ^ 8,
)


def _halved(shape: Sequence[int]) -> tuple[int, ...]:
    return (shape[0], -(-shape[1] // 2))


def _joined(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack((first, second), -1).flatten(-2)


def _reshaped(dtype: torch.dtype, kind: str) -> Unpacking:
    """Scales that are stored as a row of numbers, or with dimensions of one between theirs."""

    def shape(full: Sequence[int]) -> tuple[int, ...]:
        return (full[0],) if kind == "flat" else (full[0], 1, full[1], 1)

    stored = None if dtype is torch.float32 else dtype
    return Unpacking(stored, shape, lambda values, full: values.reshape(tuple(full)))


def _as_bytes(dtype: torch.dtype) -> Unpacking:
    """Scales whose bits are stored as integers."""
    return Unpacking(torch.uint8, tuple, lambda stored, _: stored.view(dtype))


def _swizzled(dtype: torch.dtype) -> Unpacking:
    """Scales in tiles of 128 outputs by four groups; four outputs, 32 apart, are a tile's row."""
    number = torch.float8_e8m0fnu if dtype is torch.uint8 else dtype

    def tiles(full: Sequence[int]) -> tuple[int, int]:
        return -(-full[0] // 128), -(-full[1] // 4)

    def shape(full: Sequence[int]) -> tuple[int, ...]:
        down, across = tiles(full)
        return down * 32, across * 16

    def values(stored: Tensor, full: Sequence[int]) -> Tensor:
        down, across = tiles(full)
        quads = stored.to(number).view(dtype).view(down, across, 32, 4, 4)
        whole = quads.permute(0, 3, 2, 1, 4).reshape(down * 128, across * 4)
        return whole[: full[0], : full[1]]

    # Powers of two are numbers in the file.
    return Unpacking(None if dtype is torch.uint8 else dtype, shape, values)


def _stored(
    data: Tensor, block: tuple[int | None, int | None], unpacking: Unpacking | None
) -> StoredTensor:
    rows, columns = block
    return StoredTensor(
        data,
        output_dim=0 if rows else None,
        input_dim=1 if columns else None,
        device=torch.get_default_device(),
        outputs_per_item=rows or 1,
        inputs_per_item=columns or 1,
        unpacking=unpacking,
    )


def _one_number(output_size: int, dtype: torch.dtype = torch.float32) -> StoredTensor:
    data = torch.empty(output_size, dtype=dtype, device="cpu")
    device = torch.get_default_device()
    return StoredTensor(data, output_dim=0, input_dim=None, device=device, is_one_number=True)


def _permutation(order: Tensor, group_size: int) -> Tensor | None:
    """Inputs sorted by their groups `order` [N]; None if they are already.

    Zeros for all mean so too, as GPTQ's.
    """
    groups = order - order.min()
    in_order = torch.arange(len(order), device=order.device) // group_size
    if bool((order < 0).any()) or not bool(order.any()) or torch.equal(groups.long(), in_order):
        return None
    permutation = groups.argsort(stable=True)
    if not torch.equal(groups[permutation].long(), in_order):
        raise ValueError("weight_g_idx does not name each group as often as the others")
    return permutation
