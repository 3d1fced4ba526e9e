"""Linear methods for checkpoints of packed codes, in the device's own format and exact.

The operations multiply by the grouped weight. On a CPU those of GGUF's types are faster, except
for bfloat16 on tiles: the smallest one that holds every value is chosen, if there is one. Where
bfloat16 has a dot product of pairs, codes with zero points and those of two or three bits stay in
groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.codebook_weight import PackedWeight
from vllm_lite.kernels.dispatch import gpu_only_ops, has_bfloat16_pairs, has_tiles, ops
from vllm_lite.kernels.grouped_weight import GroupedWeight, expand, integers
from vllm_lite.kernels.reference.ops import Ops
from vllm_lite.kernels.reference.quantized import GROUP, QuantizedRows
from vllm_lite.kernels.reference.rounding import ActivationRounding
from vllm_lite.quantization.ggml_blocks import fifth_bits, nibbles
from vllm_lite.quantization.method import EmbeddingTable, LinearKernel, LinearMethod, StoredTensor
from vllm_lite.quantization.quantized import quantized_kernel
from vllm_lite.quantization.storage import StoredWeight, StoringKernel
from vllm_lite.quantization.unquantized import PlainTable, UnquantizedLinearMethod, plain_kernel

_Q4_0, _Q5_0, _Q8_0 = 2, 6, 8
# Numbers that `as_rows` converts at a time: copies stay small, and in a core's cache.
_NUMBERS_AT_ONCE = 1 << 18


class PackedLayout(Protocol):
    """Packs and unpacks a checkpoint's weights."""

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        """Unfilled tensors by suffix; raises CheckpointError for sizes that do not fit."""

    def read(self, weights: Mapping[str, Tensor]) -> GroupedWeight:
        """Read the weight of filled tensors; ValueError if they contradict each other."""


@dataclass(frozen=True, slots=True)
class GroupedKernel:
    """[T, N] -> [T, M] by a grouped weight, of activations rounded first if so described."""

    weight: PackedWeight
    bias: Tensor | None
    out_dtype: torch.dtype | None
    ops: Ops
    rounding: ActivationRounding | None = None

    @property
    def stored(self) -> tuple[StoredWeight, ...]:
        """For the log line at start."""
        weight = self.weight
        return (StoredWeight(weight.kind, weight.nbytes, weight.codes),)

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        out_dtype = self.out_dtype or x.dtype
        return self.ops.grouped_linear(x, self.weight, self.bias, out_dtype, out, self.rounding)

    def gated(self, activation: str) -> LinearKernel | None:
        """See `gated_kernel`."""
        gpu = gpu_only_ops()
        if gpu is None or self.out_dtype is not None or self.rounding is not None:
            return None
        return lambda x: gpu.gated_grouped_linear(x, self.weight, self.bias, activation)


def grouped_kernel(
    weight: GroupedWeight,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    rounding: ActivationRounding | None = None,
    is_exact: bool = False,
) -> LinearKernel:
    """The fastest kernel by `weight`, with `rounding`.

    Unless `is_exact`, it may be one of GGUF's types, which rounds activations to bytes.
    """
    if weight.num_padded:
        return _padded_kernel(weight, bias, out_dtype, rounding, is_exact)
    wide = None if bias is None else bias.float()
    may_round = rounding is None and not is_exact and gpu_only_ops() is None
    if may_round and not _is_smaller_in_groups(weight):
        rows = as_rows(weight)
        if rows is not None:
            return quantized_kernel([rows], bias, out_dtype)
    return GroupedKernel(ops().pack_grouped(weight), wide, out_dtype, ops(), rounding)


def _padded_kernel(
    weight: GroupedWeight,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    rounding: ActivationRounding | None,
    is_exact: bool,
) -> LinearKernel:
    """The kernel of a weight with padded groups, by inputs that are spread with zeros first."""
    order = weight.permutation
    spread = replace(weight, permutation=None, num_padded=0)
    kernel = grouped_kernel(spread, bias, out_dtype, rounding, is_exact)
    return StoringKernel(
        lambda x: kernel(torch.nn.functional.pad(x, (0, 1))[:, order]),
        getattr(kernel, "stored", ()),
    )


def _is_smaller_in_groups(weight: GroupedWeight) -> bool:
    """Whether every type of GGUF's is much larger than codes that are looked up in pairs.

    It depends on no code, so that the experts of a mixture agree.
    """
    has_zeros = weight.zeros is not None and weight.high_codes is None
    return (has_zeros or weight.bits < 4) and has_bfloat16_pairs()


class GroupedTable:
    """Rows of a grouped weight for look-ups and for a tied head."""

    def __init__(self, weight: PackedWeight, dtype: torch.dtype) -> None:
        self._weight = ops().pack_grouped(weight)
        self._dtype = dtype
        self._lookup = ops().grouped_lookup

    def lookup(self, ids: Tensor, first_row: int | None = None) -> Tensor:
        return self._lookup(self._weight, ids, self._dtype, first_row)

    def linear_kernel(self, out_dtype: torch.dtype, bias: Tensor | None = None) -> LinearKernel:
        wide = None if bias is None else bias.float()
        return GroupedKernel(self._weight, wide, out_dtype, ops())


class GroupedLinearMethod(UnquantizedLinearMethod):
    """Multiplies by a checkpoint's packed integers, and looks them up."""

    def __init__(
        self,
        layout: PackedLayout,
        dtype: torch.dtype,
        keeps_packed: bool = True,
        is_exact: bool = False,
        rounding: ActivationRounding | None = None,
    ) -> None:
        """Unless `keeps_packed`, weights are dequantised to dtype as they are loaded.

        If `is_exact`, activations are rounded by `rounding` only.
        """
        self._layout = layout
        super().__init__(dtype)
        self._keeps_packed = keeps_packed
        self._is_exact = is_exact
        self._rounding = rounding

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        return self._layout.create_weights(input_size, output_size)

    def for_vocabulary(self) -> LinearMethod:
        return GroupedLinearMethod(self._layout, self._dtype, self._keeps_packed, is_exact=True)

    def make_table(self, weights: Mapping[str, StoredTensor]) -> EmbeddingTable:
        return make_table(read_weight(self._layout, weights), self._dtype, self._keeps_packed)

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        weight = read_weight(self._layout, weights)
        if not self._keeps_packed:
            return plain_kernel(expand(weight).to(self._dtype), bias, out_dtype)
        is_exact = self._is_exact or is_fast_in_groups(self._dtype)
        return grouped_kernel(weight, bias, out_dtype, self._rounding, is_exact)


def is_fast_in_groups(dtype: torch.dtype) -> bool:
    """Whether activations of dtype are multiplied as fast by groups as by GGUF's types."""
    return dtype is torch.bfloat16 and has_tiles()


def read_weight(layout: PackedLayout, weights: Mapping[str, StoredTensor]) -> GroupedWeight:
    """Read the weight of a filled layer; raises CheckpointError."""
    try:
        return layout.read({name: stored.placed() for name, stored in weights.items()})
    except ValueError as error:
        raise CheckpointError(f"a layer cannot be read: {error}") from None


def make_table(weight: GroupedWeight, dtype: torch.dtype, keeps_packed: bool) -> EmbeddingTable:
    """A table of the weight's rows, of dtype once they are looked up."""
    if keeps_packed and not weight.num_padded:
        return GroupedTable(weight, dtype)
    return PlainTable(expand(weight).to(dtype))


def as_rows(weight: GroupedWeight) -> QuantizedRows | None:
    """Convert the weight to GGUF rows; None if that is not exact."""
    others = (weight.table, weight.minimums, weight.super_scales, weight.permutation)
    if any(plane is not None for plane in others):
        return None
    if weight.zeros is not None and weight.zeros.dtype is not torch.uint8:
        return None
    if weight.num_inputs % GROUP or weight.num_inputs % weight.group_size:
        return None
    scales = weight.scales.half()
    is_exact = torch.equal(scales.to(weight.scales.dtype), weight.scales)
    if not is_exact or weight.group_size % GROUP:
        return None
    by_group = scales.T.repeat_interleave(weight.group_size // GROUP, dim=1)
    head = by_group.contiguous()[..., None].view(torch.uint8)
    count = max(1, _NUMBERS_AT_ONCE // weight.num_inputs)
    parts, low, high = [], 0, 0
    for first in range(0, weight.num_outputs, count):
        numbers = integers(weight, slice(first, first + count))
        least, most = (int(end) for end in numbers.aminmax())
        low, high = min(low, least), max(high, most)
        parts.append(numbers.clamp(-128, 127).to(torch.int8).view(len(numbers), -1, GROUP))
    if low < -128 or high > 127:
        return None
    kind, packed = _Q8_0, _as_bytes
    if low >= -8 and high <= 7:
        kind, packed = _Q4_0, _as_nibbles
    elif low >= -16 and high <= 15:
        kind, packed = _Q5_0, _as_five_bits
    blocks = [
        torch.cat([scale, packed(part)], 2).flatten(1)
        for scale, part in zip(torch.split(head, count), parts, strict=True)
    ]
    return QuantizedRows(torch.cat(blocks), kind, weight.num_inputs)


def _as_bytes(numbers: Tensor) -> Tensor:
    """Numbers [M, G, 32] int8 as Q8_0 has them."""
    return numbers.view(torch.uint8)


def _as_nibbles(numbers: Tensor) -> Tensor:
    """The same, from -8 to 7, as Q4_0 has them."""
    return nibbles((numbers + 8).to(torch.uint8))


def _as_five_bits(numbers: Tensor) -> Tensor:
    """The same, from -16 to 15, as Q5_0 has them."""
    codes = (numbers + 16).to(torch.uint8)
    return torch.cat([fifth_bits(codes), nibbles(codes)], 2)
