"""Experts in groups that are padded: layers widened so that one operation multiplies by all.

Columns of padding multiply zeros, which follow the inputs of both layers. Those of the first layer
are added to the rows of a call; those of the second are outputs of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from vllm_lite.config.quantized.schemes import StoredCodes
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.grouped_weight import GroupedWeight, expand
from vllm_lite.kernels.reference.rounding import ActivationRounding
from vllm_lite.quantization.grouped import (
    GroupedKernel,
    GroupedLinearMethod,
    PackedLayout,
    read_weight,
)
from vllm_lite.quantization.method import LinearKernel, StoredTensor
from vllm_lite.quantization.stored_codes import rounding_of


@dataclass(frozen=True, slots=True)
class UnpackedKernel:
    """An expert's weight as it was read, until those of all experts are packed."""

    weight: GroupedWeight
    bias: Tensor | None
    rounding: ActivationRounding | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, expand(self.weight).to(x.dtype), self.bias)


class UnpackedMethod(GroupedLinearMethod):
    """Leaves the packing of a layer's weight to the mixture of its expert."""

    def __init__(
        self, layout: PackedLayout, dtype: torch.dtype, form: StoredCodes | None = None
    ) -> None:
        """`form` says how inputs are rounded; None: they are not."""
        super().__init__(layout, dtype)
        self._form = form

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        weight = read_weight(self._layout, weights)
        rounding = None if self._form is None else rounding_of(self._form, weights, weight)
        return UnpackedKernel(weight, bias, rounding)


def widened(
    gate_up: Sequence[UnpackedKernel], down: Sequence[UnpackedKernel]
) -> tuple[list[LinearKernel], list[LinearKernel]]:
    """Both layers of all experts, packed, with outputs of zeros up to the rows of the next one."""
    inner, hidden = down[0].weight, gate_up[0].weight
    size = inner.num_inputs - inner.num_padded
    # Gates, if any, come before what they scale.
    runs = hidden.num_outputs // size
    first = [_with_outputs(kernel, runs, inner.row_size - size) for kernel in gate_up]
    more = hidden.row_size - inner.num_outputs
    return first, [_with_outputs(kernel, 1, more) for kernel in down]


def _with_outputs(kernel: UnpackedKernel, runs: int, count: int) -> LinearKernel:
    """The packed kernel with `count` outputs of zeros after each of as many equal runs of them."""

    def longer(plane: Tensor | None, dim: int = 1) -> Tensor | None:
        if plane is None:
            return None
        apart = torch.unflatten(plane, dim, (runs, -1))
        rest = (0, 0) * (apart.dim() - dim - 2)
        return pad(apart, (*rest, 0, count)).flatten(dim, dim + 1)

    weight = kernel.weight
    codes, scales = longer(weight.codes), longer(weight.scales)
    assert codes is not None and scales is not None
    whole = replace(
        weight,
        codes=codes,
        high_codes=longer(weight.high_codes),
        scales=scales,
        minimums=longer(weight.minimums),
        zeros=longer(weight.zeros),
        num_outputs=weight.num_outputs + runs * count,
    )
    bias = None if kernel.bias is None else longer(kernel.bias.float(), 0)
    return GroupedKernel(ops().pack_grouped(whole), bias, None, ops(), kernel.rounding)
