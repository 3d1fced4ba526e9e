"""Linear methods for checkpoints of packed integers, in the device's own format and exact.

A GPU's operations multiply by the grouped weight itself. A CPU's take GGUF types: the smallest one
that holds every value is chosen, and if there is none, the weight is dequantised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import gpu_only_ops
from vllm_lite.kernels.grouped_weight import GroupedWeight, expand, integers
from vllm_lite.kernels.reference.ops import GpuOps
from vllm_lite.kernels.reference.quantized import GROUP, QuantizedRows
from vllm_lite.log import init_logger
from vllm_lite.quantization.method import (
    LinearKernel,
    StoredTensor,
)
from vllm_lite.quantization.quantized import quantized_kernel
from vllm_lite.quantization.storage import StoredWeight, StoringKernel
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod, plain_kernel

logger = init_logger(__name__)

_Q4_0, _Q5_0, _Q8_0 = 2, 6, 8


class PackedLayout(Protocol):
    """Packs and unpacks a checkpoint's weights."""

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        """Unfilled tensors by suffix; raises CheckpointError for sizes that do not fit."""
        ...

    def read(self, weights: Mapping[str, Tensor]) -> GroupedWeight:
        """Read the weight of filled tensors; ValueError if they contradict each other."""
        ...


@dataclass(frozen=True, slots=True)
class GroupedKernel:
    """[T, N] -> [T, M] by a grouped weight."""

    weight: GroupedWeight
    bias: Tensor | None
    out_dtype: torch.dtype | None
    ops: GpuOps

    @property
    def stored(self) -> tuple[StoredWeight, ...]:
        """For the log line at start."""
        name = f"int{self.weight.bits} groups"
        return (StoredWeight(name, self.weight.nbytes, self.weight.codes),)

    def __call__(self, x: Tensor) -> Tensor:
        return self.ops.grouped_linear(x, self.weight, self.bias, self.out_dtype)


class GroupedLinearMethod(UnquantizedLinearMethod):
    """Multiplies by a checkpoint's packed integers; the embedding and the output head are plain."""

    def __init__(self, layout: PackedLayout, dtype: torch.dtype, keeps_packed: bool = True) -> None:
        """Unless `keeps_packed`, weights are dequantised to dtype as they are loaded."""
        self._layout = layout
        super().__init__(dtype)
        self._keeps_packed = keeps_packed
        self._ops = gpu_only_ops()
        self._has_logged = False

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        return self._layout.create_weights(input_size, output_size)

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        try:
            weight = self._layout.read(
                {name: stored.on_device(stored.data) for name, stored in weights.items()}
            )
        except ValueError as error:
            raise CheckpointError(f"a quantised layer cannot be read: {error}") from None
        if not self._keeps_packed:
            return plain_kernel(expand(weight).to(self._dtype), bias, out_dtype)
        if self._ops is not None:
            return GroupedKernel(weight, bias, out_dtype, self._ops)
        rows = as_rows(weight)
        if rows is None:
            self._log_dequantising()
            return plain_kernel(expand(weight).to(self._dtype), bias, out_dtype)
        kernel = quantized_kernel([rows], bias, out_dtype)
        order = weight.permutation
        if order is None:
            return kernel
        return StoringKernel(lambda x: kernel(x.index_select(1, order)), kernel.stored)

    def _log_dequantising(self) -> None:
        if not self._has_logged:
            self._has_logged = True
            logger.info(
                "Some layers are dequantised to %s: no kernel of this device takes their numbers",
                str(self._dtype).removeprefix("torch."),
            )


def as_rows(weight: GroupedWeight) -> QuantizedRows | None:
    """Convert the weight to GGUF rows, in the order of its planes; None if that is not exact."""
    scales = weight.scales.half()
    is_exact = torch.equal(scales.to(weight.scales.dtype), weight.scales)
    has_more = weight.minimums is not None or weight.super_scales is not None
    if not is_exact or has_more or weight.group_size % GROUP or weight.num_inputs % GROUP:
        return None
    numbers = integers(weight)
    low, high = (int(end) for end in numbers.aminmax())
    by_group = scales.T.repeat_interleave(weight.group_size // GROUP, dim=1)
    head = by_group.contiguous()[..., None].view(torch.uint8)
    groups = numbers.view(weight.num_outputs, -1, GROUP)
    if low >= -8 and high <= 7:
        kind, parts = _Q4_0, [_halves_as_nibbles(groups + 8)]
    elif low >= -16 and high <= 15:
        kind, parts = _Q5_0, [_fifth_bits(groups + 16), _halves_as_nibbles(groups + 16)]
    elif low >= -128 and high <= 127:
        kind, parts = _Q8_0, [groups.to(torch.int8).view(torch.uint8)]
    else:
        return None
    return QuantizedRows(torch.cat([head, *parts], 2).flatten(1), kind, weight.num_inputs)


def _halves_as_nibbles(codes: Tensor) -> Tensor:
    """Pack codes [..., 32] to bytes [..., 16]: the first sixteen in the lower four bits."""
    low = (codes & 15).to(torch.uint8)
    return low[..., :16] | low[..., 16:] << 4


def _fifth_bits(codes: Tensor) -> Tensor:
    """Pack the fifth bits of codes [..., 32] to bytes [..., 4], lowest bits first."""
    bits = ((codes >> 4) & 1).reshape(*codes.shape[:-1], 4, 8)
    worth = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], device=codes.device)
    return (bits * worth).sum(-1).to(torch.uint8)
