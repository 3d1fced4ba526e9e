"""Linear methods for checkpoints whose layers are StoredCodes: floats and integers with scales.

A GPU's operations multiply codes of one byte by activations rounded to such codes; everything else
is multiplied as a grouped weight, by activations that are rounded first where the form says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import Rounding, StoredCodes
from vllm_lite.kernels.grouped_weight import GroupedWeight, expand
from vllm_lite.kernels.reference.ops import GpuOps
from vllm_lite.kernels.reference.rounding import ActivationRounding
from vllm_lite.kernels.reference.scaled_linear import SCALE_BLOCK
from vllm_lite.quantization.grouped import (
    grouped_kernel,
    is_fast_in_groups,
    make_table,
    read_weight,
)
from vllm_lite.quantization.layouts.codes import CodesLayout
from vllm_lite.quantization.layouts.numbers import values_of
from vllm_lite.quantization.method import EmbeddingTable, LinearKernel, LinearMethod, StoredTensor
from vllm_lite.quantization.scaled import ScaledKernel
from vllm_lite.quantization.storage import StoringKernel
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod, plain_kernel

_ROUNDED = {
    "int": torch.int8,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}


class StoredCodesMethod(UnquantizedLinearMethod):
    """Multiplies by a checkpoint's codes, and looks them up."""

    def __init__(
        self,
        form: StoredCodes,
        dtype: torch.dtype,
        keeps_codes: bool = True,
        is_exact: bool = False,
        ops: GpuOps | None = None,
    ) -> None:
        """Unless `keeps_codes`, weights are dequantised to dtype as they are loaded.

        If `is_exact`, activations are rounded only as the form says. `ops` multiply codes of one
        byte; None: all weights are grouped.
        """
        super().__init__(dtype)
        self._form = form
        self._layout = CodesLayout(form)
        self._keeps_codes = keeps_codes
        self._is_exact = is_exact
        self._ops = ops

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        return self._layout.create_weights(input_size, output_size)

    def for_vocabulary(self) -> LinearMethod:
        by = (self._form, self._dtype, self._keeps_codes)
        return StoredCodesMethod(*by, is_exact=True, ops=self._ops)

    def for_experts(self) -> LinearMethod:
        """The method of a mixture's experts, whose operation takes grouped weights alone.

        Scales decide what fits GGUF's types, and experts have unlike ones.
        """
        return StoredCodesMethod(self._form, self._dtype, self._keeps_codes, is_exact=True)

    def make_table(self, weights: Mapping[str, StoredTensor]) -> EmbeddingTable:
        return make_table(read_weight(self._layout, weights), self._dtype, self._keeps_codes)

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        kernel = self._kernel(weights, bias, out_dtype)
        if not self._keeps_codes:
            return kernel
        stored = getattr(kernel, "stored", ())
        factors = _factors(self._form, weights)
        if factors is not None:
            return StoringKernel(lambda x: kernel((x * factors).to(x.dtype)), stored)
        if self._form.input_transform:
            matrix = weights[self._form.input_transform].placed().to(self._dtype)
            num_inputs = weights[self._form.weight].data.shape[1]
            return StoringKernel(_transformed(kernel, matrix, num_inputs), stored)
        return kernel

    def _kernel(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None,
    ) -> LinearKernel:
        form = self._form
        input_scale, _ = _input_scale(form, weights)
        codes = weights[form.weight].placed()
        if self._keeps_codes and self._ops is not None and _is_scaled(form, codes):
            scales = weights[form.scale].placed()
            scales = scales if scales.dim() == 2 else scales[:, None]
            group = SCALE_BLOCK if form.block[1] and scales.shape[1] > 1 else 0
            has_powers = form.rounding is not None and form.rounding.scale == "ue8m0"
            by = (codes, scales, bias, out_dtype, self._ops, input_scale, group)
            return _bounded(ScaledKernel(*by, has_powers=has_powers), form.rounding)
        weight = read_weight(self._layout, weights)
        if not self._keeps_codes:
            values, factors = expand(weight), _factors(form, weights)
            values = values if factors is None else values * factors
            if form.input_transform:
                matrix = weights[form.input_transform].placed()
                values = (values.view(len(values), -1, len(matrix)) @ matrix.T).flatten(1)
            return plain_kernel(values.to(self._dtype), bias, out_dtype)
        is_exact = self._is_exact or is_fast_in_groups(self._dtype)
        rounding = rounding_of(form, weights, weight)
        return grouped_kernel(weight, bias, out_dtype, rounding, is_exact)


def _is_scaled(form: StoredCodes, codes: Tensor) -> bool:
    """Whether a GPU's `scaled_linear` multiplies by the codes as they are stored."""
    rounding = form.rounding
    if form.packing != "bytes" or form.zero_point or form.order or form.scale_number != "float32":
        return False
    if rounding is None or rounding.number != form.number or not rounding.is_symmetric:
        return False
    if rounding.scale not in ("float32", "ue8m0"):
        return False
    if form.number not in ("int", "float8_e4m3fn") or rounding.bits != 8:
        return False
    if form.block[1] is None:
        return rounding.scope == "token" or rounding.is_static
    # The operation's groups are whole.
    is_whole = form.block == (SCALE_BLOCK, SCALE_BLOCK) and codes.shape[1] % SCALE_BLOCK == 0
    return is_whole and rounding.scope == "group" and rounding.group_size == SCALE_BLOCK


def _bounded(kernel: ScaledKernel, rounding: Rounding | None) -> LinearKernel:
    """The kernel, of inputs whose magnitudes beyond the rounding's largest are cut off."""
    largest = 0.0 if rounding is None else rounding.largest
    if not largest:
        return kernel
    return StoringKernel(lambda x: kernel(x.clamp(-largest, largest)), kernel.stored)


# Inputs that a transform multiplies together: products of fewer are slow.
_TRANSFORMED = 128


def _transformed(kernel: LinearKernel, matrix: Tensor, num_inputs: int) -> LinearKernel:
    """The kernel, of inputs of which each group [g] is multiplied by `matrix` [g, g]."""
    size, by = len(matrix), matrix.T.contiguous()
    groups = math.gcd(num_inputs // size, max(_TRANSFORMED // size, 1))
    transform = plain_kernel(torch.kron(torch.eye(groups).to(matrix), by), None, None)
    by_groups = (-1, groups * size)

    def multiply(x: Tensor) -> Tensor:
        # A view is part of a recorded step.
        rows = x.view(by_groups) if x.is_contiguous() else x.reshape(by_groups)
        return kernel(transform(rows).view(x.shape))

    return multiply


def _factors(form: StoredCodes, weights: Mapping[str, StoredTensor]) -> Tensor | None:
    """The numbers [N] float32 by which inputs are multiplied; None: none are."""
    if not form.input_factor:
        return None
    stored = weights[form.input_factor]
    return None if bool((stored.data == 1).all()) else stored.placed()


def _input_scale(
    form: StoredCodes, weights: Mapping[str, StoredTensor]
) -> tuple[Tensor | None, Tensor | None]:
    """The scale and the zero point [1] float32 that the checkpoint has for inputs.

    Parts of a fused layer read the same inputs, and theirs cover all that a part's cover.
    """
    if not form.input_scale:
        return None, None
    scales = weights[form.input_scale].placed()
    if not form.input_zero_point:
        return (scales.reciprocal() if form.divides else scales).max().view(1), None
    zeros = weights[form.input_zero_point].placed().float()
    low, high = (scales * (-128 - zeros)).min(), (scales * (127 - zeros)).max()
    scale = ((high - low) / 255).view(1)
    return scale, (-128 - low / scale).round()


def rounding_of(
    form: StoredCodes, weights: Mapping[str, StoredTensor], weight: GroupedWeight
) -> ActivationRounding | None:
    """How the inputs of a filled layer are rounded, whose `weight` was read; None: not at all."""
    if form.rounding is None:
        return None
    scales = _input_scale(form, weights)
    return activation_rounding(form.rounding, weight.codes.device, weight.num_inputs, *scales)


def activation_rounding(
    form: Rounding,
    device: torch.device,
    num_inputs: int,
    input_scale: Tensor | None = None,
    input_zero: Tensor | None = None,
) -> ActivationRounding:
    """The rounding as kernels take it, with the scale and the zero point [1] of a static one."""
    if form.bits == 8:
        return ActivationRounding(
            _ROUNDED[form.number],
            form.group_size,
            input_scale,
            scales=form.scale,
            is_shifted=not form.is_symmetric,
            zero=input_zero,
            largest=form.largest,
        )
    count = 2 ** (form.bits - 1)
    if form.number == "int":
        values = torch.arange(count, dtype=torch.float32, device=device)
    else:
        values = values_of(form.number)[:count].to(device) / form.divisor
    # Kernels have values for groups alone: a token is one.
    size = form.group_size or num_inputs
    return ActivationRounding(torch.float8_e4m3fn, size, input_scale, values, scales=form.scale)
