"""Layers of integers in groups: their tensors, and the GroupedWeight that these become.

Each tensor is unpacked to rows of outputs as it is read, so that any part of it can be cut out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import PackedIntegers
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.cpu.mapped_memory import empty_on_host
from vllm_lite.kernels.grouped_weight import GroupedWeight, make_grouped
from vllm_lite.quantization.layouts.packed import LAYOUTS, Packed
from vllm_lite.quantization.layouts.tiles import spread
from vllm_lite.quantization.method import StoredTensor, Unpacking


class IntegerLayout:
    """The tensors of a layer in the layout of a form."""

    def __init__(self, form: PackedIntegers) -> None:
        self._form = form
        self._tensors = LAYOUTS[form.layout](form)

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        """Unfilled tensors by suffix; raises CheckpointError for sizes that do not fit."""
        group = self._form.group_size or input_size
        if input_size % group:
            raise CheckpointError(f"{input_size} inputs of a layer are no groups of {group}")
        return {
            suffix: _unfilled(packed, input_size, output_size, self._form.group_size)
            for suffix, packed in self._tensors.items()
        }

    def read(self, weights: Mapping[str, Tensor]) -> GroupedWeight:
        """Read the weight of filled tensors; ValueError if they contradict each other."""
        form = self._form
        held = {self._tensors[suffix].role: tensor for suffix, tensor in weights.items()}
        scales, middle = held["scales"], 2 ** (form.bits - 1)
        codes = held["codes"]
        if "pairs" in held:
            codes = spread(codes, held["pairs"], middle)
        if "channels" in held:
            scales = scales * held["channels"]
        zeros, minimums = held.get("zeros"), held.get("negated_minimums")
        offset = int(form.zeros_are_less_by_one) if zeros is not None else middle
        if zeros is not None and zeros.is_floating_point():
            zeros, minimums = _split_zeros(zeros, scales)
            offset = 0
        if zeros is not None and torch.equal(zeros, zeros[:1, :1].expand_as(zeros)):
            offset, zeros = offset + int(zeros[0, 0]), None
        if minimums is not None and "negated_minimums" in held:
            minimums, offset = -minimums, middle if form.is_symmetric else 0
        codes, permutation = _by_group(codes, held.get("order"), scales.shape[1])
        return make_grouped(
            codes,
            smallest(scales),
            form.bits,
            offset,
            zeros=zeros,
            minimums=None if minimums is None else smallest(minimums),
            permutation=permutation,
        )


def smallest(scales: Tensor) -> Tensor:
    """Convert scales to float16 if that is exact."""
    half = scales.half()
    return half if torch.equal(half.float(), scales) else scales


def _unfilled(packed: Packed, inputs: int, outputs: int, group_size: int | None) -> StoredTensor:
    dtype = torch.uint8
    if packed.role in ("scales", "channels", "negated_minimums") or packed.dtype is None:
        dtype = torch.float32
    per_item = packed.inputs_per_item
    input_dim: int | None = 1
    if packed.role == "order":
        shape: tuple[int, ...] = (inputs,)
        dtype, input_dim = torch.int32, 0
    elif packed.role in ("codes", "pairs"):
        shape = (outputs, inputs // per_item)
    elif packed.role == "channels" or group_size is None:
        shape, input_dim = (outputs, 1), None
    else:
        shape, per_item = (outputs, inputs // group_size), group_size
    if packed.default is None:
        data = empty_on_host(shape, dtype)
    else:
        data = torch.full(shape, packed.default, dtype=dtype, device="cpu")
    return StoredTensor(
        data,
        output_dim=None if packed.role == "order" else 0,
        input_dim=input_dim,
        device=torch.get_default_device(),
        inputs_per_item=per_item,
        unpacking=_unpacking(packed),
        is_optional=packed.default is not None,
    )


def _unpacking(packed: Packed) -> Unpacking:
    def values(stored: Tensor, shape: Sequence[int]) -> Tensor:
        rows, columns = _two(shape)
        unpacked = packed.values(stored, rows, columns)
        return unpacked[tuple(slice(size) for size in shape)]

    return Unpacking(
        packed.dtype, lambda shape: packed.shape(*_two(shape)), values, fill=packed.fill
    )


def _two(shape: Sequence[int]) -> tuple[int, int]:
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])


def _split_zeros(zeros: Tensor, scales: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Zero points as bytes if they are such, else as minimums: (zeros, minimums)."""
    whole = zeros.clamp(0, 255).to(torch.uint8)
    if torch.equal(whole.float(), zeros):
        return whole, None
    return None, zeros * scales


def _by_group(codes: Tensor, groups: Tensor | None, count: int) -> tuple[Tensor, Tensor | None]:
    """Codes [M, N] with the inputs of each group together, and the inputs' order if it changed.

    `groups` [N] are the inputs' groups; zeros for all mean that they are in order.
    """
    if groups is None or not bool(groups.any()):
        return codes, None
    size = codes.shape[1] // count
    in_order = torch.arange(len(groups), device=groups.device) // size
    # A rank has the scales of its own inputs' groups.
    groups = groups.long() - groups.min()
    if torch.equal(groups, in_order):
        return codes, None
    permutation = groups.argsort(stable=True)
    if not torch.equal(groups[permutation], in_order):
        raise ValueError(
            "g_idx does not name each group as often as the others; with act-order use "
            "--tensor-parallel-size 1"
        )
    return codes[:, permutation], permutation
