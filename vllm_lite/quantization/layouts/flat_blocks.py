"""bitsandbytes' codes of four bits, whose blocks run through a matrix from row to row.

A group here is what a row and a block have in common everywhere, so that any row may be cut out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import FlatBlocks
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.cpu.mapped_memory import empty_on_host
from vllm_lite.kernels.grouped_weight import GroupedWeight, make_grouped
from vllm_lite.quantization.layouts.numbers import values_of
from vllm_lite.quantization.method import StoredTensor, Unpacking

# Values that share a scale, as the loader gives them out.
BLOCK = 64


class FlatBlocksLayout:
    """The tensors of layers in one form: `weight` as it is stored, and `absmax`."""

    def __init__(self, form: FlatBlocks) -> None:
        self._form = form

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        """Unfilled tensors by suffix; raises CheckpointError for sizes that do not fit."""
        group = math.gcd(input_size, BLOCK)
        if group % 16:
            raise CheckpointError(
                f"{input_size} inputs of a layer have no common groups with blocks of {BLOCK}"
            )
        codes = empty_on_host((output_size, input_size), torch.uint8)
        scales = torch.empty(output_size, input_size // group, device="cpu")
        return {
            "weight": _stored(codes, _codes_of(getattr(torch, self._form.storage)), 1),
            "absmax": _stored(scales, Unpacking(None, _blocks_of(group), _scales_of(group)), group),
        }

    def read(self, weights: Mapping[str, Tensor]) -> GroupedWeight:
        """Read the weight of filled tensors; ValueError if they contradict each other."""
        codes = weights["weight"]
        table = values_of(self._form.number).to(codes.device)
        return make_grouped(codes, weights["absmax"], 4, table=table)


def _codes_of(storage: torch.dtype) -> Unpacking:
    """Two codes to a byte, and its bytes as numbers of the type `storage`."""

    def in_line(shape: Sequence[int]) -> tuple[int, ...]:
        return (-(-math.prod(shape) // (2 * storage.itemsize)), 1)

    def values(stored: Tensor, shape: Sequence[int]) -> Tensor:
        pairs = stored.contiguous().view(torch.uint8).flatten()
        line = torch.stack((pairs >> 4, pairs & 15), -1).flatten()
        return line[: math.prod(shape)].view(tuple(shape))

    return Unpacking(None if storage.is_floating_point else storage, in_line, values)


def _blocks_of(group: int) -> Callable[[Sequence[int]], tuple[int, ...]]:
    return lambda shape: (-(-math.prod(shape) * group // BLOCK),)


def _scales_of(group: int) -> Callable[[Tensor, Sequence[int]], Tensor]:
    def values(stored: Tensor, shape: Sequence[int]) -> Tensor:
        line = stored.repeat_interleave(BLOCK // group)
        return line[: math.prod(shape)].view(tuple(shape))

    return values


def _stored(data: Tensor, unpacking: Unpacking, inputs_per_item: int) -> StoredTensor:
    return StoredTensor(
        data,
        output_dim=0,
        input_dim=1,
        device=torch.get_default_device(),
        inputs_per_item=inputs_per_item,
        unpacking=unpacking,
    )
